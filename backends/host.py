"""A device without bytes, for planning and replay: it counts what it is asked to do."""

from typing import Any

import attrs

from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import FieldView, IntArray


@attrs.define
class HostDevice:
    """Holds no bytes; an arena of any size costs nothing."""

    name = "host"
    holds_bytes = False
    arena_bytes: int = attrs.field(default=0, init=False)
    copied_pages: int = attrs.field(default=0, init=False)
    copied_bytes: int = attrs.field(default=0, init=False)
    zeroed_pages: int = attrs.field(default=0, init=False)
    zeroed_bytes: int = attrs.field(default=0, init=False)

    def reserve(self, arena_bytes: int) -> None:
        """Remember the size."""
        self.arena_bytes = arena_bytes

    def resize(self, arena_bytes: int) -> None:
        """Remember the new size; any is reached."""
        self.arena_bytes = arena_bytes

    def view(self, field: FieldView) -> Any:
        """Refused: there is nothing to view.

        Raises:
            KvarenaError: always.
        """
        raise KvarenaError('backend "host" holds no bytes, so it has no views; choose backend = "cpu" for them')

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Count."""
        invariant("device.copy_pairs", len(sources) == len(targets), sources=len(sources), targets=len(targets))
        self.copied_pages += len(sources)
        self.copied_bytes += len(sources) * unit_bytes

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """Count."""
        self.zeroed_pages += len(pages)
        self.zeroed_bytes += len(pages) * unit_bytes

    def close(self) -> None:
        """Nothing to give back."""
        self.arena_bytes = 0
