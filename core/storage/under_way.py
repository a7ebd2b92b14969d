"""What was begun and is not over: numbered from 1, each known until it ends."""

from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A copy or a transfer: it gets its number here."""

    number: int


T = TypeVar("T", bound=Numbered)


class UnderWay(Generic[T]):
    """The oldest first. Always: numbers rise, and each was given once."""

    def __init__(self) -> None:
        self._begun = 0
        self._open: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, one: T) -> bool:
        return self._open.get(one.number) is one

    def all(self) -> list[T]:
        """Those that are not over."""
        return list(self._open.values())

    def begin(self, one: T) -> T:
        """Give it the next number."""
        self._begun += 1
        one.number = self._begun
        self._open[one.number] = one
        return one

    def end(self, one: T) -> None:
        """It is over, and unknown from here on."""
        del self._open[one.number]
