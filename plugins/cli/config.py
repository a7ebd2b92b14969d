"""``kvarena config``: what a config file comes to, and the schema of what one may say."""

import json
from pathlib import Path
from typing import Any

import click

from kvarena.plugins.cli.config_kinds import READ_BY
from kvarena.plugins.cli.config_schema import schema_of
from kvarena.plugins.cli.config_show import Effective, Shown, effective
from kvarena.plugins.cli.context import FILE, catalog_of, json_option
from kvarena.plugins.cli.plain import lines, print_json, show_table, write_line


@click.group()
def config() -> None:
    """Show a config file with all its values, or print the schema of config files."""


@config.command()
@click.argument("file", type=FILE)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="As if the file said so; may be repeated.")
@json_option
@click.pass_context
def show(ctx: click.Context, /, file: Path, changes: tuple[str, ...], as_json: bool) -> None:
    """Print every value of FILE, and where it comes from: a line of the file, --set, the environment, a default.

    FILE is what `kvarena plan`, `run`, `stress --config` or `replay --gpu` reads. Mistakes are told as they tell them.
    """
    root = ctx.find_root()
    asked = {"logs.level": "log", "logs.format": "log_format"}
    given = {key: root.params[name] for key, name in asked.items() if _on_the_line(root, name)}
    found = effective(file, changes, catalog_of(ctx), given)
    if as_json:
        print_json(_document(found))
    else:
        lines(f"{found.file}: {found.kind}, read by {READ_BY[found.kind]}")
        show_table(["key", "value", "from"], [[row.key, _spelt(row.value), row.source] for row in found.values])


@config.command()
@click.pass_context
def schema(ctx: click.Context, /) -> None:
    """Print the JSON schema (draft 2020-12) of config files, the settings of the installed plugins in it.

    A plugin that cannot be used here is left out, and told on stderr.
    """
    document, refusals = schema_of(catalog_of(ctx))
    for refusal in refusals:
        write_line(f"kvarena config schema: left out: {refusal}")
    print_json(document)


def _on_the_line(root: click.Context, name: str) -> bool:
    return root.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _document(found: Effective) -> dict[str, Any]:
    return {"version": 1, "file": found.file, "kind": found.kind, "values": [_row(row) for row in found.values]}


def _row(row: Shown) -> dict[str, Any]:
    return {"key": row.key, "value": json.loads(_spelt(row.value)), "from": row.source}


def _spelt(value: Any) -> str:
    """A value as JSON writes it."""
    return json.dumps(value, default=str, ensure_ascii=False)
