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
    rights = merge(right)
    return merge(range(max(a.start, b.start), min(a.stop, b.stop)) for a in merge(left) for b in rights)


def subtract(left: Iterable[range], right: Iterable[range]) -> Ranges:
    """The positions of ``left`` that do not lie in ``right``."""
    rest = list(merge(left))
    for hole in merge(right):
        rest = [
            piece
            for whole in rest
            for piece in (
                range(whole.start, min(whole.stop, hole.start)),
                range(max(whole.start, hole.stop), whole.stop),
            )
            if piece
        ]
    return tuple(rest)
