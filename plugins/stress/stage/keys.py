"""The token values of requests on the stage: numbers that tell whose they are, so that a prefix is shared by asking."""

import zlib

import attrs
import numpy as np

from kvarena.terms.ports import IntArray

POSITIONS = 1 << 25
"""More positions than a request has."""


@attrs.frozen
class Keys:
    """The values of one sequence. ``serial`` is its own; the values up to each stop in ``heads`` are another's.

    ``heads``: pairs of a stop, rising, and the serial whose values stand before it. Sequences of different namespaces
    share nothing.
    """

    serial: int
    heads: tuple[tuple[int, int], ...] = ()
    namespace: str = ""

    def first(self, count: int) -> IntArray:
        """The values of the first positions, int64 (count,)."""
        values = np.arange(count, dtype=np.int64)
        serials = np.full(count, self.serial, dtype=np.int64)
        for stop, serial in reversed(self.heads):
            serials[:stop] = serial
        return np.asarray(serials * POSITIONS + values)

    def spelled(self, pages: int, page_tokens: int) -> list[int]:
        """Of each page a number that tells all values up to its end, and the namespace."""
        values, found, so_far = self.first(pages * page_tokens), [], zlib.crc32(self.namespace.encode())
        for page in values.reshape(pages, page_tokens):
            so_far = zlib.crc32(page.tobytes(), so_far)
            found.append(so_far)
        return found

    def forked(self, tokens: int, serial: int, namespace: str | None = None) -> "Keys":
        """A sequence that begins with the same values, so many, and goes on with its own."""
        heads = []
        for stop, owner in (*self.heads, (POSITIONS, self.serial)):
            heads.append((min(stop, tokens), owner))
            if stop >= tokens:
                break
        return Keys(serial, tuple(heads) if tokens else (), self.namespace if namespace is None else namespace)
