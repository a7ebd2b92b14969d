"""Lists of pages, as backends look at them: whether all lie inside, where runs begin, what may be done at once."""

from itertools import pairwise
from typing import Any

import numpy as np

from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import IntArray

FEW_PAGES = 16
"""So many numbers are looked at one by one: less work than as an array."""


def are_inside(places: IntArray, count: int) -> bool:
    """Whether these, one at least, lie in ``[0, count)``. In a long list a negative one is a huge unsigned one."""
    if len(places) <= FEW_PAGES:
        few = places.tolist()
        return bool(min(few) >= 0 and max(few) < count)
    return int(np.maximum.reduce(places.view(np.uint64))) < count


def host_rows(host: Any, unit_bytes: int, places: IntArray, *, is_written: bool, is_kept: bool = True) -> IntArray:
    """The places in memory outside the arena, all inside; the memory is what ``host_memory`` gives, or like it.

    ``is_kept``: the places are copied, for whoever named them may change them.
    """
    is_array = isinstance(host, np.ndarray) and host.dtype == np.uint8 and host.ndim == 2
    if not is_array or host.shape[1] != unit_bytes or not host.flags.c_contiguous:
        found = f"{host.dtype} {host.shape}" if isinstance(host, np.ndarray) else type(host).__name__
        fail("device.host_memory", expected=f"uint8 (count, {unit_bytes}), contiguous", found=found)
    invariant("device.host_memory_is_writable", host.flags.writeable or not is_written)
    places = np.array(places, dtype=np.int64) if is_kept else np.asarray(places, dtype=np.int64)
    if not are_inside(places, len(host)):
        fail("device.places_inside", places=len(host))
    return places


def run_starts(*lists: IntArray) -> IntArray:
    """Where a run begins: an index at which a list does not go on with the next page."""
    first = np.ones(len(lists[0]), dtype=np.bool_)
    first[1:] = lists[0][1:] - lists[0][:-1] != 1
    for pages in lists[1:]:
        first[1:] |= pages[1:] - pages[:-1] != 1
    return first.nonzero()[0]


def run_sizes(first: IntArray, count: int) -> IntArray:
    """How many pages each run has, of so many in all."""
    sizes = np.empty_like(first)
    sizes[:-1] = first[1:] - first[:-1]
    sizes[-1] = count - first[-1]
    return sizes


def rounds_of(sources: IntArray, targets: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Copies of one page after another as rounds: the pairs of a round may be copied in any order, or at once.

    In a round no page is both read and written, and none is written twice. No target is also a later source. Pages
    that are moved to where nobody reads make one round; a block that slides by n pages makes one for each n.
    """
    written = np.unique(targets)
    if len(written) == len(targets) and not np.isin(written, sources).any():
        return [(sources, targets)]
    sources, targets = last_writes(sources[sources != targets], targets[sources != targets])
    pairs = list(zip(sources.tolist(), targets.tolist(), strict=True))
    return [_as_lists(pairs[start:stop]) for start, stop in pairwise(_cuts(pairs))]


def last_writes(sources: IntArray, targets: IntArray) -> tuple[IntArray, IntArray]:
    """The same copies, in their order, without those whose target is written again by a later one."""
    _, last = np.unique(targets[::-1], return_index=True)
    if len(last) == len(targets):
        return sources, targets
    kept = np.sort(len(targets) - 1 - last)
    return sources[kept], targets[kept]


def _cuts(pairs: list[tuple[int, int]]) -> list[int]:
    """Where rounds begin, and the end: before a pair that writes what its round has read."""
    cuts, read_at = [0], dict[int, int]()
    for at, (source, target) in enumerate(pairs):
        if read_at.get(target, -1) >= cuts[-1]:
            cuts.append(at)
        read_at[source] = at
    return [*cuts, len(pairs)] if pairs else []


def _as_lists(pairs: list[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    sources, targets = np.array(pairs, dtype=np.int64).T
    return sources, targets
