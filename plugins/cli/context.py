"""What every command shares: the catalog of this run, and the options that mean the same everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvarena.assembly.catalog import Catalog
from kvarena.terms.fields import dtype_name
from kvarena.terms.units import parse_bytes


def catalog_of(ctx: click.Context) -> Catalog:
    """The catalog of this run: read from the installed metadata once, at the first question."""
    root = ctx.find_root()
    if not isinstance(root.obj, Catalog):
        root.obj = Catalog.installed()
    return root.obj


class Amount(click.ParamType):  # type: ignore[type-arg]
    """An amount of bytes on the command line: ``80GiB``, ``512MB``, ``4096``."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, or a usage error that lists the units."""
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Dtype(click.ParamType):  # type: ignore[type-arg]
    """The type of keys and values on the command line: ``bfloat16``, ``fp8``."""

    name = "dtype"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Its full name, or a usage error that lists those that are known."""
        try:
            return dtype_name(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class File(click.Path):
    """A path on the command line, of anything that a file can be called."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error where no file can be called so."""
        try:
            return super().convert(value, param, ctx)
        except ValueError as error:  # a zero byte
            self.fail(f"{value!r}: no file can be called so: {error}", param, ctx)


AMOUNT = Amount()
DTYPE = Dtype()
FILE = File(path_type=Path)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``: one JSON document on stdout and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")(command)
