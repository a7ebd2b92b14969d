"""Token positions and the pages they lie in, for whole arrays. Powers of two are shifted: divisions are slow."""

from kvarena.terms.numbers import constant
from kvarena.terms.ports import IntArray


class Paging:
    """Pages of ``tokens`` positions each, counted from 0. Arrays are int64, of any shape."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._is_one = tokens == 1
        self._tokens, self._last = constant(tokens), constant(tokens - 1)
        self._shift = constant(tokens.bit_length() - 1) if tokens & (tokens - 1) == 0 else None

    def pages(self, positions: IntArray) -> IntArray:
        """The page of each position; not a copy where a page is one token."""
        if self._is_one:
            return positions
        return positions // self._tokens if self._shift is None else positions >> self._shift

    def offsets(self, positions: IntArray) -> IntArray:
        """The place of each position in its page."""
        return positions % self._tokens if self._shift is None else positions & self._last

    def covering(self, lengths: IntArray) -> IntArray:
        """How many pages hold each length; not a copy where a page is one token."""
        return lengths if self._is_one else self.pages(lengths + self._last)

    def starts(self, pages: IntArray) -> IntArray:
        """The first position of each page; not a copy where a page is one token."""
        return pages if self._is_one else pages * self._tokens

    def physical(self, pages: IntArray, offsets: IntArray) -> IntArray:
        """Physical tokens, page * tokens + offset; not a copy where a page is one token."""
        if self._is_one:
            return pages
        physical: IntArray = pages * self._tokens
        physical += offsets
        return physical
