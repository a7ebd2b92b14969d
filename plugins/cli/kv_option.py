"""``--kv-layout``: the layout that keeps keys and values, for planning, a replay and a run alike."""

import tomllib
from collections.abc import Callable
from typing import Any

import click


class KvLayoutChoice(click.ParamType):  # type: ignore[type-arg]
    """A layout on the command line: its name, or a TOML table with the name and settings as in a config."""

    name = "layout"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, or the table; a usage error where the table cannot be read."""
        if not isinstance(value, str) or not value.lstrip().startswith("{"):
            return value
        try:
            return tomllib.loads(f"kv_layout = {value}")["kv_layout"]
        except tomllib.TOMLDecodeError as error:
            self.fail(f"{value}: {error}; write '{{ name = \"...\", setting = ... }}'", param, ctx)


def kv_layout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--kv-layout NAME``, or a table with the name and the layout's settings."""
    words = "Keep keys and values in this layout, such as a plugin's with a codec. [default: as the model writes them]"
    return click.option("--kv-layout", type=KvLayoutChoice(), help=words)(command)
