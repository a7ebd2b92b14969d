"""``kvarena new``: a plugin's package to begin with: its code, its test, and the door that it comes in by."""

import importlib.util
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import click

from kvarena.assembly.catalog import KINDS, Catalog
from kvarena.plugins.cli.context import FILE, catalog_of
from kvarena.plugins.cli.plain import lines
from kvarena.plugins.scaffold.package import POLICIES, PREFIX, SORTS, Names, package
from kvarena.terms.errors import ConfigError

CHOICES = ["layout", "lifetime", "policy", "backend"]


@click.command()
@click.argument("kind", type=click.Choice(CHOICES))
@click.argument("name")
@click.option("--sort", type=click.Choice(POLICIES), help="Of a policy: what it decides. [default: compaction]")
@click.option("--into", type=FILE, default=".", show_default=True, help="The folder to put the package's folder into.")
@click.pass_context
def new(ctx: click.Context, kind: str, name: str, sort: str | None, into: Path) -> None:
    """Write the package of a new plugin: a KIND, in a distribution called NAME, such as kvarena-mine.

    It is a small plugin that works, with comments where you edit, and its tests are the conformance kit.
    """
    if sort and kind != "policy":
        raise ConfigError(f"--sort {sort}: only a policy has one; leave it out, or say: kvarena new policy {name}")
    chosen = (sort or "compaction") if kind == "policy" else kind
    names = Names.of(name)
    _check_free(catalog_of(ctx), SORTS[chosen].group, names)
    folder, files = into / names.distribution, package(chosen, names)
    write_folder(folder, files)
    lines(
        f"{folder}: {SORTS[chosen].one} named {names.entry!r}",
        *(f"  {file}  {text.count(chr(10))} lines" for file, text in files.items()),
        "next:",
        f"  cd {shlex.quote(str(folder))}",
        "  pip install -e '.[test]'",
        "  python -m pytest",
        f"  kvarena plugins --kind {SORTS[chosen].group}",
    )


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write a new folder, whole or not at all.

    Raises:
        ConfigError: it is there, or cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder}: is there already; choose another name, or --into another folder") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}; choose another folder by --into") from None
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(folder)
        if isinstance(error, OSError):
            raise ConfigError(f"{folder}: cannot be written: {error.strerror}; nothing of it is left") from None
        raise


def _check_free(catalog: Catalog, group: str, names: Names) -> None:
    """Nothing that is installed has these names.

    Raises:
        ConfigError: something has.
    """
    if catalog.offers(group, names.entry):
        owners = [f" of {one.distribution} {one.version}" for one in catalog.entries(group) if one.name == names.entry]
        taken = f"a {KINDS[group]} {names.entry!r}{''.join(owners[:1])}"
    elif importlib.util.find_spec(names.module) is not None:
        taken = f"a module {names.module!r}"
    else:
        return
    another = f"choose another name, such as {PREFIX}my-{names.entry}"
    raise ConfigError(f"NAME {names.distribution!r}: {taken} is installed; {another}")
