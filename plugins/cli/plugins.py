"""``kvarena plugins``: what is installed, of which kind, from where."""

from collections.abc import Mapping

import click

from kvarena.assembly.catalog import KINDS, Catalog, Entry, whereabouts
from kvarena.plugins.cli.context import catalog_of, json_option
from kvarena.plugins.cli.plain import print_json, show_table, write_line

EXIT_BROKEN = 2


@click.command()
@json_option
@click.option("--check", is_flag=True, help="Import each one, and say which cannot be used and why.")
@click.option("--kind", type=click.Choice(list(KINDS)), help="Only this kind.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, check: bool, kind: str | None) -> int:
    """List the installed plugins: kind, name, distribution, version, target, and where the distribution lies.

    Reads metadata only, unless --check is given: then each is imported, and the exit code is 2 if one is refused.
    A name that two distributions offer is told on stderr.
    """
    catalog = catalog_of(ctx)
    rows = [(entry, _refusal(catalog, entry) if check else None) for entry in catalog.entries(kind)]
    places = {name: whereabouts(name) for name in {entry.distribution for entry, _ in rows}}
    if as_json:
        print_json([_document(entry, refusal, places, check=check) for entry, refusal in rows])
    else:
        _print(rows, places, check=check)
    if not check:
        for duplicate in catalog.duplicates():
            write_line(f"kvarena plugins: {duplicate}")
    return EXIT_BROKEN if any(refusal for _, refusal in rows) else 0


def _refusal(catalog: Catalog, entry: Entry) -> str | None:
    refusal = catalog.refusal(entry)
    return str(refusal) if refusal else None


def _document(
    entry: Entry, refusal: str | None, places: Mapping[str, str], *, check: bool
) -> dict[str, str | bool | None]:
    document: dict[str, str | bool | None] = {
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "lies_in": places[entry.distribution],
    }
    return {**document, "usable": refusal is None, "refusal": refusal} if check else document


def _print(rows: list[tuple[Entry, str | None]], places: Mapping[str, str], *, check: bool) -> None:
    columns = ["name", "kind", "distribution", "lies in", "target", *(["check"] if check else [])]
    cells = [
        [
            entry.name,
            KINDS[entry.kind],
            f"{entry.distribution} {entry.version}",
            places[entry.distribution],
            entry.target,
            *([refusal or "ok"] if check else []),
        ]
        for entry, refusal in rows
    ]
    show_table(columns, cells)
