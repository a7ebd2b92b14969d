"""What a batch of requests, units or an entry reads and writes, as work on a stream: pages and tags, resolved now."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvarena.plugins.stress.stage.props import Check, Props, Request, Units, Write, distinct
from kvarena.plugins.stress.stage.tags import PoolTags
from kvarena.storage.iteration_ids import IterationIds
from kvarena.terms.errors import ConfigError
from kvarena.terms.lifetimes import NEVER, Full, floor_reaches, on_grid, prefix_floor
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray

Only = Mapping[int, Iterable[int]]
"""Positions by row: all that is written of what could be."""


def reads_of(props: Props, names: Sequence[str], ids: IterationIds) -> list[Check]:
    """Every page that rows have now, in every sub-pool, with what it should hold in the order of the calls."""
    if not props.tags.on or not len(ids.rows):
        return []
    found = []
    tables, rows, requests = ids.tables, ids.rows, props.storage.requests
    held: IntArray | None = None
    for tags in props.tags.token_pools:
        table = tables[tags.name]
        if not table.shape[1]:
            continue
        whose, at = (table != tags.sink_page).nonzero()
        if held is None:
            held = requests.pages[rows, : table.shape[1]]
        found.append(Check(tags, table[whose, at], tags.by_id.take(held[whose, at], 0), names, whose, at))
    slots, slot_ids = props.tags.slots, ids.live_slots
    if slots is not None and slot_ids is not None:
        mine = requests.slots[rows, : requests.live_slots]
        whose, at = (mine != UNBOUND).nonzero()
        found.append(Check(slots, slot_ids[whose, at], slots.by_id.take(mine[whose, at], 0), names, whose, at))
    return found


def writes_of(props: Props, ids: IterationIds, only: Only | None = None, sub_pool: str = "") -> list[Write]:
    """The new rows of a step, and the slots of those that have any: each gets a tag of its own."""
    if not props.tags.on or not len(ids.rows):
        return []
    found = []
    index, positions = ids.write_positions()
    chosen = slice(None) if only is None else _chosen(ids.rows[index], positions, only)
    index, positions = index[chosen], positions[chosen]
    places = ids.write_offsets()[chosen] if len(index) else positions
    rows, requests = ids.rows.take(index), props.storage.requests
    token_pools = props.tags.token_pools
    at_pages = rows * requests.pages_per_row + positions // ids.page_tokens
    held = requests.flat.take(at_pages) if token_pools else at_pages  # rows of a model of states alone have no pages
    for tags in token_pools:
        if not len(index) or (sub_pool and tags.name != sub_pool):
            continue
        pages = ids.write_pages(tags.name)[chosen]
        bound = pages != tags.sink_page
        count = int(np.count_nonzero(bound))
        fresh = props.tags.fresh(count)
        if count == len(pages):
            tags.by_id[held, places] = fresh
            found.append(Write(tags, pages, places, fresh))
        else:
            tags.by_id[held[bound], places[bound]] = fresh
            found.append(Write(tags, pages[bound], places[bound], fresh))
    slots, slot_ids = props.tags.slots, ids.live_slots
    if slots is not None and slot_ids is not None and sub_pool in ("", slots.name):
        writers = distinct(index) if props.maps.names else np.arange(len(ids.rows))
        mine = requests.slots[ids.rows[writers], : requests.live_slots]
        is_there = mine != UNBOUND
        pages, mine = slot_ids[writers][is_there], mine[is_there]
        fresh = props.tags.fresh(len(pages))
        slots.by_id[mine, 0] = fresh
        found.append(Write(slots, pages, np.zeros_like(pages), fresh))
    return found


def reads_of_units(props: Props, units: Units) -> list[Check]:
    """Every page that is held under a name, or by an entry, with what it should hold."""
    found = []
    for name, ids in units.ids.items():
        tags = props.tags.pools.get(name)
        if tags is None or not len(ids):
            continue
        pages = props.storage.chain.pages(name, ids)
        bound = (pages != tags.sink_page).nonzero()[0]
        zeros = np.zeros_like(bound)
        found.append(Check(tags, pages[bound], tags.by_id[ids[bound]], (units.name,), zeros, bound))
    return found


def missing_rows(props: Props, names: Sequence[str], ids: IterationIds) -> str:
    """Who of those that share pages lacks a row that its next query needs, in words; empty where nobody does."""
    table = props.storage.requests
    sharing = (table.handed[ids.rows] > 0).nonzero()[0]
    if not len(sharing):
        return ""
    stops = -(-ids.lengths // ids.page_tokens)
    for pool in props.storage.plan.token_pools:
        floor = prefix_floor(pool.lifetime, ids.lengths[sharing]) if pool.unit_bytes else None
        if floor is None:
            continue
        pages, sink = ids.tables[pool.name], props.storage.chain.bands[pool.name].grid.sink_page
        for at, first in zip(sharing.tolist(), (floor // ids.page_tokens).tolist(), strict=True):
            lost = (pages[at, first : stops[at]] == sink).nonzero()[0]
            if len(lost):
                return f"{names[at]} needs page {first + int(lost[0])} of {pool.name}, which is not bound"
    return ""


def whole_of(props: Props, request: Request, tokens: int = -1) -> int:
    """So many of a request's rows, as they can be handed over: whole pages that it has, all of them where -1.

    Raises:
        ConfigError: they end inside a page, or are more than it has.
    """
    size, length = props.maps.paging.tokens, props.length(request)
    if tokens < 0:
        return length // size * size
    if tokens > length or tokens % size:
        raise ConfigError(f"{request.name} has {length} rows, in pages of {size}: {tokens} are no whole pages")
    return tokens


def has_rows(props: Props, request: Request, tokens: int) -> bool:
    """Whether a request still has all that one needs that starts at so many of its rows."""
    storage, size = props.storage, props.maps.paging.tokens
    pages, lengths = storage.requests.pages[request.row], np.array([tokens])
    for pool in storage.plan.token_pools:
        floor = prefix_floor(pool.lifetime, lengths)
        first = 0 if floor is None else int(floor[0]) // size
        if not storage.sharing.bound(pool.name, pages[first : tokens // size]).all():
            return False
    return True


def is_past(props: Props, request: Request, length: int) -> bool:
    """Whether a request of this length needs neither the window rows nor the state of the entry that it reads."""
    storage, reading = props.storage, request.reading
    assert reading is not None
    grid, rows = storage.sizing.limits.grid, np.array([reading.tokens])
    lifetimes = [on_grid(pool.lifetime, grid) for pool in storage.plan.token_pools]
    reached = [floor_reaches(one, rows) for one in lifetimes if not isinstance(one, Full)]
    without = 0 if storage.plan.slots else NEVER
    least = max((NEVER if found is None else int(found[0]) for found in reached), default=without)
    return length >= least


def rows_of_request(props: Props, row: int, length: int) -> IterationIds:
    """The ids of a request's rows as they are, all of them to be written."""
    one = np.array([row], dtype=np.int64)
    stop = np.array([length], dtype=np.int64)
    return IterationIds(props.maps, one, np.zeros_like(stop), stop, to_the_end=False)


def places_of(props: Props, tags: PoolTags, row: int) -> IntArray:
    """The physical page at each page position of a row in one sub-pool; -1 where none is bound."""
    table = props.storage.requests
    pages = props.storage.chain.pages(tags.name, table.pages[row, : int(table.page_counts[row])])
    return np.where(pages == tags.sink_page, -1, pages)


def _chosen(rows: IntArray, positions: IntArray, only: Only) -> IntArray:
    wanted = {row: set(some) for row, some in only.items()}
    pairs = zip(rows.tolist(), positions.tolist(), strict=True)
    return np.array([at for at, (row, position) in enumerate(pairs) if position in wanted.get(row, ())], dtype=np.int64)
