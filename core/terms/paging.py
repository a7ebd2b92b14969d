"""Token positions and the pages they lie in, for whole arrays. Powers of two are shifted: divisions are slow."""

from kvarena.terms.ports import IntArray


class Paging:
    """Pages of ``tokens`` positions each, counted from 0. Arrays are int64, of any shape."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._shift = tokens.bit_length() - 1 if tokens & (tokens - 1) == 0 else None

    def pages(self, positions: IntArray) -> IntArray:
        """The page of each position; not a copy where a page is one token."""
        if self._shift is None:
            return positions // self.tokens
        return positions >> self._shift if self._shift else positions

    def offsets(self, positions: IntArray) -> IntArray:
        """The place of each position in its page."""
        return positions % self.tokens if self._shift is None else positions & (self.tokens - 1)

    def covering(self, lengths: IntArray) -> IntArray:
        """How many pages hold each length; not a copy where a page is one token."""
        if self._shift is None:
            return -(-lengths // self.tokens)
        return (lengths + (self.tokens - 1)) >> self._shift if self._shift else lengths

    def starts(self, pages: IntArray) -> IntArray:
        """The first position of each page; not a copy where a page is one token."""
        return pages if self._shift == 0 else pages * self.tokens

    def physical(self, pages: IntArray, offsets: IntArray) -> IntArray:
        """Physical tokens, page * tokens + offset; not a copy where a page is one token."""
        if self._shift == 0:
            return pages
        physical: IntArray = pages * self.tokens
        physical += offsets
        return physical
