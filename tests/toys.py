"""Small layouts and lifetimes that tests share."""

import attrs

from kvarena import Field
from kvarena.terms import ranges


@attrs.frozen
class Bytes:
    """A layout of so many bytes."""

    size: int
    name = "bytes"

    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("raw", "uint8", (self.size,)),)


@attrs.frozen
class SinksAndWindow:
    """The first rows and a window stay: what retires is not a prefix, and no built-in lifetime is like it."""

    sinks: int
    window: int
    own_ids = False
    name = "sinks"
    rank = (1, -1)

    def entries(self, length: int) -> int:
        """The sinks and a whole window, once there are so many."""
        return min(length, self.sinks + self.window)

    def retained(self, length: int) -> int:
        """The sinks and what the next query's window reaches back to."""
        return min(length, self.sinks + self.window - 1)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        """What fell out of the window and is no sink."""
        gone = (range(self.sinks, max(self.sinks, start - self.window + 1)),)
        going = (range(self.sinks, max(self.sinks, stop - self.window + 1)),)
        return ranges.subtract(going, gone)

    def repeats(self) -> tuple[int, int]:
        """From a whole window behind the sinks on, each token needs one row more and one row less."""
        return self.sinks + self.window, 1
