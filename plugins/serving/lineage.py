"""Which forwards computed the rows of a prefix: kept with what is cached, so that they can be repeated."""

from collections.abc import Sequence
from typing import NamedTuple


class Lineage(NamedTuple):
    """Rows that were computed by forwards which ended at these rising ``stops``, after those of ``before``."""

    before: "Lineage | None"
    stops: tuple[int, ...]


def stops_of(lineage: Lineage | None, tokens: int) -> tuple[int, ...]:
    """The lengths at which the forwards of the first ``tokens`` rows ended, the last cut to ``tokens``."""
    pieces: list[Sequence[int]] = []
    while lineage is not None:
        pieces.append(lineage.stops)
        lineage = lineage.before
    stops = [stop for piece in reversed(pieces) for stop in piece if stop < tokens]
    return (*stops, tokens) if tokens else ()
