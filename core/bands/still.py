"""The pages of one band that may not move, and those that are nobody's and yet not to be had."""

from collections.abc import Callable

import numpy as np

from kvarena.ledger.batches import NO_PAGES
from kvarena.terms.invariants import invariant
from kvarena.terms.members import among
from kvarena.terms.ports import IntArray


class Still:
    """Three reasons to stay, as arrays of pages, rising.

    ``fixed``: kept by somebody who owns them: they are not freed either, until they are unfixed.
    Pinned: under an open use. They may be freed, and are ``reserved`` then, nobody's, until no use pins them.
    ``immovable``: all of these.
    """

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        """``name`` is the sub-pool's; ``changed`` is called when a page joins or leaves."""
        self.fixed = NO_PAGES
        self.reserved = NO_PAGES
        self.immovable = NO_PAGES
        self._name = name
        self._changed = changed
        self._pins: dict[int, IntArray] = {}

    @property
    def pins(self) -> bool:
        """Whether a use pins pages."""
        return bool(self._pins)

    def fix(self, pages: IntArray) -> None:
        """These live pages stay where they are, and cannot be freed."""
        invariant("band.fix_of_fixed_page", not among(pages, self.fixed).any(), sub_pool=self._name, pages=pages)
        self.fixed = np.sort(np.concatenate((self.fixed, pages)))
        self._update()

    def unfix(self, pages: IntArray) -> None:
        """These pages may move and be freed again."""
        invariant("band.unfix_of_loose_page", among(pages, self.fixed).all(), sub_pool=self._name, pages=pages)
        self.fixed = np.setdiff1d(self.fixed, pages)
        self._update()

    def pin(self, use: int, pages: IntArray) -> None:
        """These live pages stay where they are, and are nobody else's, until this use is over."""
        self._pins[use] = pages
        self._update()

    def unpin(self, use: int) -> IntArray:
        """The use is over: those of its pages that lost their owner, and that no other use keeps."""
        self._pins.pop(use)
        kept = among(self.reserved, np.concatenate([NO_PAGES, *self._pins.values()]))
        loose, self.reserved = self.reserved[~kept], self.reserved[kept]
        self._update()
        return loose

    def reserve(self, pages: IntArray) -> IntArray:
        """These pages lost their owner: those that are pinned are reserved; returns the others."""
        if not self._pins:
            return pages
        pinned = among(pages, np.concatenate(list(self._pins.values())))
        self.reserved = np.sort(np.concatenate((self.reserved, pages[pinned])))
        return pages[~pinned]

    def _update(self) -> None:
        self.immovable = np.unique(np.concatenate((self.fixed, *self._pins.values()))) if self._pins else self.fixed
        self._changed()
