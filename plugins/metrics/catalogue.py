"""Every metric, by name: what it counts, and where it is read. ``docs/metrics.md`` lists the same names."""

from collections.abc import Callable, Iterable, Iterator

import attrs

from kvarena.plugins.metrics.counts import BandCounts
from kvarena.plugins.metrics.reading import Reading

COUNTER, GAUGE = "counter", "gauge"

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The values of one metric, each with the values of its labels."""


@attrs.frozen
class Metric:
    """One metric. A counter only grows while its storage lives, and starts anew when the arena is resized.

    ``read`` gives nothing where a source that the metric needs was not handed over, or does not count it.
    """

    name: str
    kind: str
    help: str
    read: Callable[[Reading], Samples]
    labels: tuple[str, ...] = ()


def one(name: str, kind: str, text: str, value: Callable[[Reading], float | None]) -> Metric:
    """A metric without labels."""

    def read(reading: Reading) -> Iterator[tuple[tuple[str, ...], float]]:
        found = value(reading)
        if found is not None:
            yield (), found

    return Metric(name, kind, text, read)


def by_band(name: str, kind: str, text: str, value: Callable[[BandCounts], float]) -> Metric:
    """A metric with a value for each band."""
    return Metric(name, kind, text, lambda reading: [((band.name,), value(band)) for band in reading.bands], ("band",))


def counted(name: str, text: str, counter: str) -> Metric:
    """A counter of the loop, where the loop counts it."""
    return one(name, COUNTER, text, lambda reading: reading.counts.get(counter))


def cached(name: str, kind: str, text: str, figure: str) -> Metric:
    """A figure of the prefix cache, where there is one that gives it."""
    return one(name, kind, text, lambda reading: reading.cache.get(figure))


def cached_by_band(name: str, kind: str, text: str, figure: str) -> Metric:
    """A figure of the prefix cache for each band."""

    def read(reading: Reading) -> Samples:
        names = [band.name for band in reading.bands]
        return [((name,), value) for name, value in zip(names, reading.cache_units.get(figure, ()), strict=False)]

    return Metric(name, kind, text, read, ("band",))


STATES = ("live", "holes", "pending", "vacated", "reserved")
"""What each unit of a span is in one of; they add up to it."""


def _states(reading: Reading) -> Samples:
    return [((band.name, state), getattr(band, state)) for band in reading.bands for state in STATES]


_BANDS = (
    Metric(
        "kvarena_band_units", GAUGE,
        "Units of the band's span by state; the states add up to kvarena_band_span_units.", _states, ("band", "state"),
    ),
    by_band("kvarena_band_span_units", GAUGE, "Units from the first to the last that the band has.", lambda b: b.span),
    by_band("kvarena_band_fixed_units", GAUGE, "Units of the span that may not move now.", lambda b: b.fixed),
    by_band("kvarena_band_free_ids", GAUGE, "Units that could still be given an id.", lambda b: b.ids_free),
    by_band("kvarena_band_unit_bytes", GAUGE, "Bytes of one unit.", lambda b: b.unit_bytes),
    by_band("kvarena_band_moved_units_total", COUNTER, "Units moved to close holes or make room.", lambda b: b.moves),
    by_band("kvarena_band_refusals_total", COUNTER, "Refused takes that asked for units of the band.",
            lambda b: b.refusals),
)  # fmt: skip

_ARENA = (
    one("kvarena_arena_bytes", GAUGE, "Bytes of the arena.", lambda r: r.arena_bytes),
    one("kvarena_arena_usable_bytes", GAUGE, "Bytes beside the sinks, which bands share.", lambda r: r.usable_bytes),
    one("kvarena_arena_free_bytes", GAUGE, "Bytes that no live or reserved unit holds: an estimate of what fits.",
        lambda r: r.free_bytes),
    one("kvarena_arena_largest_gap_bytes", GAUGE, "The longest run of bytes that lies in no band's span.",
        lambda r: r.largest_gap_bytes),
    one("kvarena_arena_takes_total", COUNTER, "Takes that were served.", lambda r: r.takes),
    one("kvarena_arena_refusals_total", COUNTER, "Takes that were refused; nothing changed.", lambda r: r.refusals),
    one("kvarena_arena_moved_bytes_total", COUNTER, "Bytes moved to close holes or make room.",
        lambda r: r.moved_bytes),
    one("kvarena_arena_relocations_total", COUNTER, "Bands moved as a whole between their neighbours.",
        lambda r: r.relocations),
)  # fmt: skip

_LEDGER = (
    one("kvarena_forwards_in_flight", GAUGE, "Forwards that are launched and not processed.",
        lambda r: r.forwards_in_flight),
    one("kvarena_forwards_total", COUNTER, "Forwards launched.", lambda r: r.forwards),
    one("kvarena_copies_under_way", GAUGE, "Host copies that have not ended.", lambda r: r.copies),
    one("kvarena_transfers_under_way", GAUGE, "Transfers that are not released.", lambda r: r.transfers),
    one("kvarena_page_uses_open", GAUGE, "Uses of pages that no forward makes and that have not ended.",
        lambda r: r.uses),
)  # fmt: skip

_REQUESTS = (
    one("kvarena_request_rows", GAUGE, "Requests that may run at once.", lambda r: r.rows),
    one("kvarena_requests_running", GAUGE, "Requests that have a row.", lambda r: r.running),
    one("kvarena_requests_waiting", GAUGE, "Requests in the queue, arrived and not running.", lambda r: r.waiting),
    counted("kvarena_requests_admitted_total", "Starts of requests, those after a stop included.", "admitted"),
    counted("kvarena_requests_waited_total", "Requests that started in a later step than they arrived in.", "waits"),
    counted("kvarena_requests_done_total", "Requests that ended with all their tokens.", "done"),
    counted("kvarena_requests_refused_total", "Requests that nothing could serve, refused at arrival.", "refused"),
    counted("kvarena_requests_failed_total", "Requests that ended with an error after they were queued.", "failed"),
    counted("kvarena_requests_aborted_total", "Requests ended by whoever sent them.", "aborts"),
    counted("kvarena_requests_clipped_total", "Requests whose output was cut to what can be served.", "clipped"),
    counted("kvarena_retractions_total", "Times that a shortage stopped a running request.", "retractions"),
    counted("kvarena_preemptions_total", "Times that one of higher priority stopped a running request.", "preemptions"),
    counted("kvarena_steps_total", "Steps of the loop.", "steps"),
    counted("kvarena_prompt_tokens_total", "Tokens that started requests had to have before the next one.",
            "prompt_tokens"),
    counted("kvarena_cached_tokens_total", "Of those, tokens that the prefix cache had.", "cached_tokens"),
    counted("kvarena_forwarded_tokens_total", "Tokens that went through the model, those computed again included.",
            "forwarded_tokens"),
    counted("kvarena_generated_tokens_total", "Tokens sampled.", "generated_tokens"),
    counted("kvarena_checkpoints_taken_total", "State checkpoints that were given to the cache.", "checkpoints_taken"),
    counted("kvarena_checkpoints_skipped_total", "Grid points passed without a state checkpoint.",
            "checkpoints_skipped"),
)  # fmt: skip

_CACHE = (
    cached("kvarena_cache_entries", GAUGE, "Entries of the prefix cache.", "entries"),
    cached("kvarena_cache_tokens", GAUGE, "Tokens whose pages the prefix cache holds.", "tokens"),
    cached("kvarena_cache_lookups_total", COUNTER, "Look-ups, repeated ones of a waiting prompt too.", "lookups"),
    cached("kvarena_cache_hits_total", COUNTER, "Of those, prompts with a prefix that could be resumed.", "hits"),
    cached("kvarena_cache_hit_tokens_total", COUNTER, "Tokens that those prefixes had.", "hit_tokens"),
    cached("kvarena_cache_evictions_total", COUNTER, "Pieces that left the cache to make room.", "evictions"),
    cached_by_band("kvarena_cache_units", GAUGE, "Units that the cache holds, part of the live ones.", "units"),
    cached_by_band("kvarena_cache_evictable_units", GAUGE, "Units that eviction would bring back now.", "evictable"),
    cached_by_band("kvarena_cache_evicted_units_total", COUNTER, "Units that evictions brought back.", "evicted_units"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*_BANDS, *_ARENA, *_LEDGER, *_REQUESTS, *_CACHE)
"""All metrics, in the order in which they are told."""
