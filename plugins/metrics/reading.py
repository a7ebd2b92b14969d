"""One look at a storage, its loop and its cache: plain numbers, from any thread, changing nothing."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvarena.plugins.metrics.counts import BandCounts, free_bytes, largest_gap_bytes, read_bands
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError

COUNTED = (
    "admitted", "waits", "done", "refused", "failed", "aborts", "clipped", "retractions", "preemptions", "steps",
    "prompt_tokens", "cached_tokens", "forwarded_tokens", "generated_tokens",
    "checkpoints_taken", "checkpoints_skipped",
)  # fmt: skip
"""What a loop may count, by name; an engine of one's own counts those that it has."""

CACHE_FIGURES = ("entries", "tokens", "lookups", "hits", "hit_tokens", "evictions")
CACHE_UNITS = ("units", "evictable", "evicted_units")
"""What ``stats()`` of a cache may give: numbers, and numbers per sub-pool in chain order."""


@attrs.frozen(kw_only=True)
class Reading:
    """What was found at one moment. Bytes are bytes, the counts of bands are in their units.

    ``counts`` and ``cache`` have the names that their sources give; ``waiting`` is None where nobody says.
    """

    bands: tuple[BandCounts, ...]
    arena_bytes: int
    usable_bytes: int
    free_bytes: int
    largest_gap_bytes: int
    takes: int
    refusals: int
    moved_bytes: int
    relocations: int
    forwards_in_flight: int
    forwards: int
    copies: int
    transfers: int
    uses: int
    rows: int
    running: int
    waiting: int | None
    counts: Mapping[str, int]
    cache: Mapping[str, int]
    cache_units: Mapping[str, Sequence[int]]


@attrs.frozen(eq=False)
class Source:
    """What is looked at: a storage and, where they are, the counts of its loop, its cache and its queue.

    ``counts``: a mapping or an object with attributes, any of ``COUNTED``. ``cache``: its ``stats()`` gives any of
    ``CACHE_FIGURES`` and ``CACHE_UNITS``, and may be called from any thread. ``waiting`` gives the queue's length.
    """

    storage: Storage
    counts: Any = None
    cache: Any = None
    waiting: Callable[[], int] | None = None

    def __attrs_post_init__(self) -> None:
        """Look once, so that a wrong source is told here and not at each scrape.

        Raises:
            KvarenaError: the counts or the cache give nothing that is known, or something that is no number.
        """
        for what, source, known in (
            ("counts", self.counts, COUNTED),
            ("cache", self._stats(), (*CACHE_FIGURES, *CACHE_UNITS)),
        ):
            if source is not None and all(_get(source, name) is None for name in known):
                kind = type(source).__name__
                raise KvarenaError(f"metrics: {what}: {kind} gives none of: {', '.join(known)}")
        reading = self.read()
        for name, units in reading.cache_units.items():
            if len(units) != len(reading.bands):
                raise KvarenaError(
                    f"metrics: cache: {name} has {len(units)} figures for {len(reading.bands)} sub-pools"
                )

    def read(self) -> Reading:
        """One look. A resize of the arena meanwhile is seen by the next one."""
        storage, chain = self.storage, self.storage.chain
        bands, counters, steps = read_bands(chain), chain.counters, chain.ledger.steps
        table, stats = storage.requests, self._stats()
        return Reading(
            bands=bands,
            arena_bytes=chain.arena_bytes,
            usable_bytes=len(chain.usable),
            free_bytes=free_bytes(chain, bands),
            largest_gap_bytes=largest_gap_bytes(chain, bands),
            takes=counters.takes,
            refusals=counters.refusals,
            moved_bytes=counters.moved_bytes,
            relocations=counters.relocations,
            forwards_in_flight=max(0, steps.launched - steps.processed),
            forwards=steps.launched,
            copies=len(storage.copies),
            transfers=len(storage.transfers),
            uses=len(chain.ledger.uses),
            rows=len(table),
            running=len(table) - table.free_count,
            waiting=None if self.waiting is None else self.waiting(),
            counts=_numbers("counts", self.counts, COUNTED),
            cache=_numbers("cache", stats, CACHE_FIGURES),
            cache_units={name: found for name in CACHE_UNITS if (found := _get(stats, name)) is not None},
        )

    def _stats(self) -> Any:
        if self.cache is None:
            return None
        if not callable(getattr(self.cache, "stats", None)):
            raise KvarenaError(f"metrics: cache: {type(self.cache).__name__} has no stats() to read")
        return self.cache.stats()


def _get(source: Any, name: str) -> Any:
    """A value by name, of a mapping or of an object; None where there is none."""
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _numbers(what: str, source: Any, names: Sequence[str]) -> dict[str, int]:
    found = {name: value for name in names if (value := _get(source, name)) is not None}
    for name, value in found.items():
        if not isinstance(value, numbers.Real):
            raise KvarenaError(f"metrics: {what}: {name} is {value!r}; it must be a number")
    return found
