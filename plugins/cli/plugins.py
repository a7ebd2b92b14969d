"""``kvarena plugins``: what is installed, of which kind, from where."""

from collections.abc import Mapping
from typing import Any

import click

from kvarena.assembly.catalog import KINDS, Catalog, Entry, whereabouts
from kvarena.plugins.cli.context import catalog_of, json_option
from kvarena.plugins.cli.plain import print_json, show_table, write_line

EXIT_BROKEN = 2


class Kind(click.Choice):  # type: ignore[type-arg]
    """A kind as entry points name it, or the word for one of it: ``layouts``, ``layout``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name of its group, without ``kvarena.``."""
        one = {word: kind for kind, word in KINDS.items()}
        return super().convert(one.get(value, value), param, ctx)


@click.command()
@json_option
@click.option("--check", is_flag=True, help="Import each one, and say which cannot be used and why.")
@click.option("--kind", type=Kind(list(KINDS)), help="Only this kind.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, check: bool, kind: str | None) -> int:
    """List the installed plugins: kind, name, distribution, version, target, and where the distribution lies.

    Reads metadata only, unless --check is given: then each is imported, and the exit code is 2 if one is refused.
    A name that two distributions offer, and a distribution that cannot be read, is told on stderr; as JSON each entry
    says who else offers it.
    """
    catalog = catalog_of(ctx)
    rows = [(entry, _refusal(catalog, entry) if check else None) for entry in catalog.entries(kind)]
    places = {name: whereabouts(name) for name in {entry.distribution for entry, _ in rows}}
    if as_json:
        print_json(
            [{**_document(entry, catalog, places), **(_found(refusal) if check else {})} for entry, refusal in rows]
        )
    else:
        _print(rows, places, check=check)
    if not check:
        for duplicate in catalog.duplicates():
            write_line(f"kvarena plugins: {duplicate}")
    for fault in catalog.faults:
        write_line(f"kvarena plugins: {fault}")
    return EXIT_BROKEN if check and (catalog.faults or any(refusal for _, refusal in rows)) else 0


def _refusal(catalog: Catalog, entry: Entry) -> str | None:
    refusal = catalog.refusal(entry)
    return str(refusal) if refusal else None


def _document(entry: Entry, catalog: Catalog, places: Mapping[str, str]) -> dict[str, object]:
    same = [each for each in catalog.entries(entry.kind) if each.name == entry.name and each is not entry]
    return {
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "lies_in": places[entry.distribution],
        "also_offered_by": [f"{each.distribution} {each.version}" for each in same],
    }


def _found(refusal: str | None) -> dict[str, object]:
    return {"usable": refusal is None, "refusal": refusal}


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
