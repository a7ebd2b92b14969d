"""Open uses of pages that no forward makes: host copies, transfers, and what a plugin records; each until it ends."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvarena.ledger.batches import NO_PAGES
from kvarena.ledger.clearance import Clearance, Hazard
from kvarena.terms.invariants import invariant
from kvarena.terms.members import any_of
from kvarena.terms.ports import Event, IntArray


class Pages(NamedTuple):
    """The pages of one sub-pool that a use touches, rising."""

    unit_bytes: int
    pages: IntArray


class Use:
    """One use that is not over. ``event``: comes after it; None for an engine outside every stream.

    ``pages`` by sub-pool; ``put`` says that they lie elsewhere now.
    """

    __slots__ = ("_low", "_stop", "event", "hazard", "number", "pages")

    def __init__(self, number: int, hazard: Hazard, pages: Mapping[str, Pages], event: Event | None) -> None:
        self.number = number
        self.hazard = hazard
        self.event = event
        self.put(pages)

    def put(self, pages: Mapping[str, Pages]) -> None:
        """These are its pages. Those of several sub-pools share no byte, so their bytes can be sorted together."""
        self.pages = pages
        low = np.concatenate([NO_PAGES, *(mine.pages * mine.unit_bytes for mine in pages.values())])
        stop = np.concatenate([NO_PAGES, *((mine.pages + 1) * mine.unit_bytes for mine in pages.values())])
        low.sort()
        stop.sort()
        self._low, self._stop = low, stop

    def over(self, low: IntArray, stop: IntArray) -> bool:
        """Whether any of these byte ranges shares a byte with a page of the use."""
        begun: IntArray = self._low.searchsorted(stop)
        ended: IntArray = self._stop.searchsorted(low, side="right")
        return any_of(begun > ended)

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

    def hazards(self) -> set[Hazard]:
        """The hazards of the open uses."""
        return {use.hazard for use in self._open.values()}

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
        use.put(pages)

    def over(self, unit_bytes: int, pages: IntArray, hazards: Collection[Hazard] | None = None) -> list[Use]:
        """The uses, of these hazards or of any, that share a byte with these pages."""
        low = pages * unit_bytes
        stop = low + unit_bytes
        return [
            use for use in self._open.values() if (hazards is None or use.hazard in hazards) and use.over(low, stop)
        ]
