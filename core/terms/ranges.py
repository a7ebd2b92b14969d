"""Sets of row positions as sorted, disjoint ranges of step 1."""

from collections.abc import Iterable

Ranges = tuple[range, ...]


def merge(pieces: Iterable[range]) -> Ranges:
    """The union of any pieces, sorted, with neighbours joined and empty pieces dropped."""
    merged: list[range] = []
    for piece in sorted((piece for piece in pieces if piece), key=lambda piece: piece.start):
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return tuple(merged)


def intersect(left: Iterable[range], right: Iterable[range]) -> Ranges:
    """The positions that lie in both."""
    lefts, rights = merge(left), merge(right)
    common = []
    i = j = 0
    while i < len(lefts) and j < len(rights):
        a, b = lefts[i], rights[j]
        both = range(max(a.start, b.start), min(a.stop, b.stop))
        if both:
            common.append(both)
        if a.stop <= b.stop:
            i += 1
        else:
            j += 1
    return tuple(common)


def spelled(positions: Iterable[int], shown: int | None = None) -> str:
    """Positions for people, runs joined, and cut after ``shown`` runs: ``0-2, 4-6, ...``."""
    runs = merge(range(position, position + 1) for position in positions)
    words = [str(run.start) if len(run) == 1 else f"{run.start}-{run.stop - 1}" for run in runs]
    return ", ".join(words[:shown] + (["..."] if len(words) > len(words[:shown]) else []))


def subtract(left: Iterable[range], right: Iterable[range]) -> Ranges:
    """The positions of ``left`` that do not lie in ``right``."""
    holes = merge(right)
    rest = []
    j = 0
    for piece in merge(left):
        start = piece.start
        while j < len(holes) and holes[j].stop <= start:
            j += 1
        at = j
        while at < len(holes) and holes[at].start < piece.stop:
            if holes[at].start > start:
                rest.append(range(start, holes[at].start))
            start = holes[at].stop
            at += 1
        if start < piece.stop:
            rest.append(range(start, piece.stop))
    return tuple(rest)
