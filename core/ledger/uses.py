"""Open uses of pages that no forward makes: host copies, transfers, and what a plugin records; each until it ends."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from kvarena.ledger.clearance import Clearance, Hazard
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Event, IntArray


@attrs.frozen
class Pages:
    """The pages of one sub-pool that a use touches, rising."""

    unit_bytes: int
    pages: IntArray

    def over(self, unit_bytes: int, pages: IntArray) -> bool:
        """Whether these pages, on a grid of their own, share a byte with any of the use's."""
        if not len(self.pages) or not len(pages):
            return False
        if unit_bytes == self.unit_bytes:
            at = np.searchsorted(self.pages, pages)
            at[at == len(self.pages)] = 0
            return bool((self.pages[at] == pages).any())
        low = pages * unit_bytes
        after = np.searchsorted(self.pages * self.unit_bytes, low + unit_bytes)
        before = np.searchsorted((self.pages + 1) * self.unit_bytes, low, side="right")
        return bool((after > before).any())


@attrs.define(eq=False)
class Use:
    """One use that is not over. ``event``: comes after it; None for an engine outside every stream."""

    number: int = attrs.field(on_setattr=attrs.setters.frozen)
    hazard: Hazard = attrs.field(on_setattr=attrs.setters.frozen)
    pages: Mapping[str, Pages]
    event: Event | None = attrs.field(on_setattr=attrs.setters.frozen)

    def over(self, unit_bytes: int, pages: IntArray) -> bool:
        """Whether these pages share a byte with any page of the use."""
        return any(mine.over(unit_bytes, pages) for mine in self.pages.values())

    def __str__(self) -> str:
        held = ", ".join(f"{len(mine.pages)} {name}" for name, mine in self.pages.items())
        return f"{self.hazard.name} {self.number} ({held} pages)"


class Waiter(Protocol):
    """Who can wait, on the host, for uses that no stream knows the end of: a transfer plugin."""

    def wait(self, uses: Sequence[Use]) -> None:
        """Return once all of these are proven over, in the same round on every rank that shares the layout.

        Raises:
            KvarenaError: a deadline has passed, on every rank in the same round; it names what is under way.
        """
        ...


class Uses:
    """All uses of one arena that are not over, the oldest first.

    A use's life:  1. record  it may touch its pages from now on.
                   2. end     whoever made it says that it is over, in the same round on all ranks.
    """

    def __init__(self, clearance: Clearance) -> None:
        self.clearance = clearance
        self._open: dict[int, Use] = {}
        self._recorded = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Use]:
        return iter(tuple(self._open.values()))

    def __contains__(self, use: Use) -> bool:
        return self._open.get(use.number) is use

    def record(self, hazard: Hazard, pages: Mapping[str, Pages], event: Event | None) -> Use:
        """A use of these pages begins."""
        invariant("ledger.unknown_hazard", hazard in self.clearance.hazards, hazard=hazard.name)
        self._recorded += 1
        use = self._open[self._recorded] = Use(self._recorded, hazard, pages, event)
        return use

    def end(self, use: Use) -> None:
        """It is over.

        Raises:
            InvariantError: it is not open: it ended before, or is another arena's.
        """
        invariant("ledger.end_of_unknown_use", use in self, use=str(use))
        del self._open[use.number]

    def move(self, use: Use, pages: Mapping[str, Pages]) -> None:
        """The pages of a use that has not begun lie elsewhere now."""
        invariant("ledger.move_of_unknown_use", use in self, use=str(use))
        use.pages = pages

    def over(self, unit_bytes: int, pages: IntArray) -> list[Use]:
        """The uses that share a byte with these pages."""
        return [use for use in self._open.values() if use.over(unit_bytes, pages)]
