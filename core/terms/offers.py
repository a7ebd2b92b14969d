"""What installed distributions offer: entry points of the groups ``kvarena.*``, from metadata; nothing is imported.

What is broken takes nobody else down: an entry point keeps its fault, a distribution that cannot be read is told.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import importlib_metadata

GROUPS = "kvarena."
"""What the entry-point groups of plugins begin with."""

OWN = "kvarena"
"""The distribution that this is."""


class Offer(NamedTuple):
    """One entry point: its group without ``kvarena.``, its ``module:attribute``, and who brought it.

    ``extras`` are the optional extras that it names; ``requires`` the distribution's requirements; ``fault`` says why
    it can never be imported, and is empty where it may.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str
    extras: tuple[str, ...]
    requires: tuple[str, ...]
    fault: str = ""


class Survey(NamedTuple):
    """All offers of an environment, and a line for each distribution of which none could be read."""

    offers: tuple[Offer, ...]
    faults: tuple[str, ...]


def offers() -> tuple[Offer, ...]:
    """Every entry point of such a group in this environment, as it is now."""
    return survey().offers


def survey() -> Survey:
    """What this environment offers now, and what in it is broken."""
    found: list[Offer] = []
    faults: list[str] = []
    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        try:
            if not _concerns_us(distribution) or (name := str(distribution.metadata["Name"])) in seen:
                continue
            mine = tuple(_offers_of(distribution))
            if name == OWN and not any(offer.kind == "commands" for offer in mine):
                faults.append(
                    f"{_folder(distribution)}: it is named {OWN!r} and is another distribution: two have that name; "
                    f"uninstall it (kvarena itself is in {Path(__file__).parents[1]})"
                )
                continue
            if name != OWN and _points(importlib_metadata.distribution(name)) != _points(distribution):
                continue  # an older one, which the first of its name on the path hides
        except Exception as error:  # bytes that are no text, metadata without a name: whatever its files hold
            why = f"{type(error).__name__}: {error}".rstrip(".")
            faults.append(f"{_folder(distribution)}: cannot be read: {why}; reinstall it")
            continue
        seen.add(name)
        found.extend(mine)
    return Survey(tuple(found), tuple(faults))


def _concerns_us(distribution: Any) -> bool:
    """Whether it may offer anything to kvarena; of all others nothing is read any further."""
    try:
        return f"[{GROUPS}" in _points(distribution)
    except UnicodeDecodeError as error:
        if f"[{GROUPS}".encode() in error.object:
            raise
        return False


def _points(distribution: Any) -> str:
    return distribution.read_text("entry_points.txt") or ""


def _offers_of(distribution: Any) -> Iterator[Offer]:
    """The offers of one distribution; its metadata is parsed once, as each property of it would do that again."""
    metadata = distribution.metadata
    brought = str(metadata["Name"]), str(metadata["Version"])
    requires = tuple(metadata.get_all("Requires-Dist") or ())
    for point in distribution.entry_points:
        if point.group.startswith(GROUPS):
            kind, target = point.group.removeprefix(GROUPS), point.value.partition("[")[0].strip()
            try:
                extras, fault = tuple(point.extras), "" if point.name else "it has no name"
            except Exception:
                extras, fault = (), f"{point.value!r} is no module:attribute"
            yield Offer(kind, point.name, target, *brought, extras, requires, fault)


def _folder(distribution: Any) -> str:
    """Where its metadata lies, or at least in which folder: there is no public name for the first."""
    return str(getattr(distribution, "_path", None) or distribution.locate_file(""))
