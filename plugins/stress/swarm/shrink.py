"""From a list of operations that breaks a promise to the shortest that still breaks it."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen
class Shrunk(Generic[T]):
    """What is left, and how many runs that took. ``is_least``: no operation of it can go."""

    left: tuple[T, ...]
    tries: int
    is_least: bool


def shrink(
    whole: Sequence[T],
    breaks: Callable[[Sequence[T]], bool],
    simpler: Callable[[T], Sequence[T]] = lambda item: (),
    *,
    tries_max: int = 2000,
) -> Shrunk[T]:
    """Leave out stretches, from halves down to single items, as long as what is left ``breaks``; then simplify items.

    ``whole`` breaks. ``simpler``: what may stand in an item's place, the simplest first.
    """
    search = _Search(list(whole), breaks, tries_max)
    while not search.is_spent:
        before = search.left
        _leave_out(search)
        _simplify(search, simpler)
        if search.left == before:
            return Shrunk(tuple(search.left), search.tries, True)
    return Shrunk(tuple(search.left), search.tries, False)


class _Search(Generic[T]):
    """The shortest list so far, and the runs that may still be made."""

    def __init__(self, left: list[T], breaks: Callable[[Sequence[T]], bool], tries_max: int) -> None:
        self.left = left
        self.tries = 0
        self._breaks = breaks
        self._tries_max = tries_max

    @property
    def is_spent(self) -> bool:
        return self.tries >= self._tries_max

    def try_with(self, other: list[T]) -> bool:
        """Keep the other list where it breaks too."""
        if self.is_spent:
            return False
        self.tries += 1
        if not self._breaks(other):
            return False
        self.left = other
        return True


def _leave_out(search: _Search[T]) -> None:
    """Stretches from the back, which hang on more than what is in front of them; sizes halve."""
    size = max(1, len(search.left) // 2)
    while size:
        stop = len(search.left)
        while stop > 0 and not search.is_spent:
            start = max(0, stop - size)
            search.try_with(search.left[:start] + search.left[stop:])
            stop = min(start, len(search.left))
        size //= 2


def _simplify(search: _Search[T], simpler: Callable[[T], Sequence[T]]) -> None:
    """One item at a time takes its simplest form that still breaks."""
    for place in range(len(search.left)):
        for other in simpler(search.left[place]):
            if search.try_with([*search.left[:place], other, *search.left[place + 1 :]]):
                break
