"""Pricing against a search: every page of a tiny arena is drawn, then every layout that may be reached is tried."""

import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from kvarena.planning.explain import most_moved
from kvarena.planning.pricing import Action, Arrangement, Step, Waits, feasible, first_plan, move_order, plan
from kvarena.planning.snapshot import BandShot, ChainSnapshot, after_transfers, settled
from kvarena.terms.ports import HIGH, LOW, End

SEEDS = range(2500)

LIVE, FIXED, RESERVED, HOLE, PENDING, VACATED = "live", "fixed", "reserved", "hole", "pending", "vacated"
"""``fixed`` has an id and may not move; ``reserved`` has none and may neither move nor be handed out."""
KINDS = (LIVE, LIVE, LIVE, HOLE, HOLE, PENDING, VACATED, FIXED, RESERVED)


class Drawn(NamedTuple):
    """One band, page by page: what each page of its span is."""

    name: str
    unit: int
    end: End | None
    start: int
    pages: tuple[str, ...]
    ids_free: int

    def count(self, *kinds: str) -> int:
        return sum(self.pages.count(kind) for kind in kinds)

    @property
    def stop(self) -> int:
        return self.start + len(self.pages)

    @property
    def bound(self) -> tuple[int, ...]:
        """The pages that may not move."""
        return tuple(self.start + at for at, kind in enumerate(self.pages) if kind in (FIXED, RESERVED))

    @property
    def holds(self) -> bool:
        """Whether it is in anybody's way."""
        return any(kind != HOLE for kind in self.pages)

    def turned(self, kinds: Mapping[str, str]) -> "Drawn":
        return self._replace(pages=tuple(kinds.get(kind, kind) for kind in self.pages))

    def shot(self) -> BandShot:
        low, high = (self.bound[0], self.bound[-1] + 1) if self.bound else (0, 0)
        return BandShot(
            self.name, self.unit, self.end, self.count(LIVE, FIXED), self.count(HOLE), self.start, self.stop,
            self.ids_free, self.count(PENDING), self.count(VACATED), self.count(RESERVED), low, high,
        )  # fmt: skip


class Arena(NamedTuple):
    """A tiny arena; ``released``: its bands once the host has waited for transfers, None where none runs."""

    base: int
    top: int
    bands: tuple[Drawn, ...]
    released: tuple[Drawn, ...] | None

    def snapshot(self) -> ChainSnapshot:
        released = tuple(band.shot() for band in self.released) if self.released is not None else None
        return ChainSnapshot(self.base, self.top, tuple(band.shot() for band in self.bands), released)

    def after(self, waits: Waits) -> "Arena":
        """The arena once that has been waited for."""
        if waits is Waits.NOTHING:
            return self
        free = {PENDING: HOLE, VACATED: HOLE}
        bands = self.bands
        if waits is Waits.TRANSFERS and self.released is not None:
            bands = self.released
        return self._replace(bands=tuple(band.turned(free) for band in bands))


def draw(seed: int) -> tuple[Arena, tuple[int, ...]]:
    """One to five bands with mixed units on 8 to 28 bytes, any page in any state; and a demand."""
    rng = random.Random(seed)
    count, top = rng.choice((1, 2, 2, 3, 3, 4, 5)), rng.randint(8, 28)
    units = [rng.choice((1, 1, 2, 3, 4, 5)) for _ in range(count)]
    base = units[0] if count > 1 and rng.random() < 0.5 else 0
    kinds = rng.choice((KINDS, (LIVE, LIVE, HOLE), (LIVE, HOLE, HOLE, PENDING, VACATED), (LIVE, FIXED, HOLE)))
    bands: list[Drawn] = []
    edge = base
    for index, unit in enumerate(units):
        end = HIGH if index == count - 1 else LOW if index == 0 else None
        span = 0 if rng.random() < 0.2 else rng.randint(1, max(1, top // (2 * unit)))
        start = -(-edge // unit) + (0 if end is LOW else rng.randint(0, 2))
        if end is HIGH:
            start = top // unit - span
        if start * unit < edge or (start + span) * unit > top:
            span, start = 0, (top // unit if end is HIGH else start)
        pages = tuple(rng.choice(kinds) for _ in range(span))
        bands.append(Drawn(f"band{index}", unit, end, start, pages, rng.choice((2, 9, 9, 9, 9, 9))))
        if span:
            edge = (start + span) * unit
    if rng.random() < 0.1:
        bands.insert(rng.randrange(count + 1), Drawn("ids", 0, None, 0, (), rng.choice((1, 9))))
    demand = tuple(rng.choice((0, 0, 1, 2, rng.randint(0, 6))) for _ in bands)
    return with_transfers(rng, Arena(base, top, tuple(bands), None)), demand


def with_transfers(rng: random.Random, arena: Arena) -> Arena:
    """Sometimes a transfer is open, and some of the bound pages are bound by it."""
    if rng.random() < 0.5:
        return arena
    freed = {FIXED: rng.choice((LIVE, FIXED)), RESERVED: rng.choice((HOLE, VACATED, RESERVED))}
    return arena._replace(released=tuple(band.turned(freed) for band in arena.bands))


# -- every layout that may be reached


def blocks(band: Drawn, count: int, top: int) -> Iterator[range]:
    """Every block in which the band fits once it is packed or relocated, its bound pages in place."""
    pages = top // band.unit
    reserved = [band.start + at for at, kind in enumerate(band.pages) if kind == RESERVED]
    bound, needed = band.bound, band.count(LIVE, FIXED) + count
    starts = range(pages + 1) if band.end is None else (band.start,) if band.end is LOW else range(band.stop + 1)
    for start in starts:
        for stop in (band.stop,) if band.end is HIGH else range(start + 1, pages + 1):
            if all(start <= page < stop for page in bound):
                usable = stop - start - sum(start <= page < stop for page in reserved)
                if usable >= needed:
                    yield range(start, stop)


def spans(band: Drawn, count: int) -> Iterator[range]:
    """Every span in place: its free pages are handed out, and it grows at its frontiers."""
    free = band.count(HOLE, PENDING, VACATED)
    for below in range(count + 1) if band.end is not LOW else (0,):
        for above in range(count + 1 - below) if band.end is not HIGH else (0,):
            if free + below + above >= count:
                yield range(band.start - below, band.stop + above)


@functools.lru_cache(maxsize=64)
def ways(band: Drawn, count: int, moves: bool, top: int) -> frozenset[tuple[int, int]] | None:
    """Every byte range that one band may end up with; None if it needs none."""
    if not band.unit or not (count or band.holds):
        return None
    if not band.holds:
        found = set(blocks(band, count, top))
    else:
        found = set(spans(band, count))
        if moves:
            found |= set(blocks(band, count, top))
    return frozenset((block.start * band.unit, block.stop * band.unit) for block in found)


def search(arena: Arena, demand: tuple[int, ...], moving: frozenset[str]) -> bool:
    """Whether any choice of places lies in chain order in the arena, these bands free to move, the others not."""
    if any(count > band.ids_free for band, count in zip(arena.bands, demand, strict=True)):
        return False
    edges = {arena.base}
    for band, count in zip(arena.bands, demand, strict=True):
        found = ways(band, count, band.name in moving, arena.top)
        if found is not None:
            first = min(edges, default=arena.top + 1)
            edges = {high for low, high in found if first <= low}
    return min(edges, default=arena.top + 1) <= arena.top


def movable(arena: Arena, step: Step) -> frozenset[str]:
    return frozenset(
        band.name for band in arena.bands if step is Step.RELAYOUT or (band.end and step is Step.FLUSH_ENDS)
    )


TIERS = [(Waits.NOTHING, Step.NO_MOVE), *itertools.product((Waits.SETTLE, Waits.TRANSFERS), Step)]


def least(arena: Arena, demand: tuple[int, ...]) -> tuple[Waits, Step] | None:
    """The least wait and step that the search finds a layout for."""
    for waits, step in TIERS:
        after = arena.after(waits)
        if search(after, demand, movable(after, step)):
            return waits, step
    return None


# -- an arrangement carried out page by page


def carry_out(arena: Arena, demand: tuple[int, ...], found: Arrangement, snapshot: ChainSnapshot) -> int:
    """Do what the arrangement says, checking every byte that is written; returns the bytes that moved."""
    arena = arena.after(found.waits)
    bands = {band.name: band for band in arena.bands}
    places = {place.name: range(place.start, place.stop) for place in found.places}
    spans_now = {band.name: range(band.start, band.stop) for band in arena.bands if band.holds and band.unit}
    held = {name: live_pages(bands[name]) for name in spans_now}
    assert set(spans_now) <= set(places)
    flushed = [place.name for place in found.places if place.action is Action.FLUSH]
    moved = 0
    for name in (*flushed, *move_order(snapshot, found)):
        band, block, span = bands[name], places[name], spans_now[name]
        if name in flushed:
            block = range(max(block.start, span.start), min(block.stop, span.stop))
        others = {
            byte for other, pages in spans_now.items() if other != name for byte in bytes_of(pages, bands[other].unit)
        }
        assert not set(bytes_of(block, band.unit)) & others
        away = {page for page in held[name] if page not in block}
        assert not away & set(band.bound)
        free = [page for page in block if page not in held[name] and page not in band.bound]
        assert len(away) <= len(free), (name, block)
        held[name] = (held[name] - away) | set(free[: len(away)])
        spans_now[name] = block
        moved += len(away) * band.unit
    edge = arena.base
    for place in found.places:
        band, block = bands[place.name], places[place.name]
        assert edge <= block.start * band.unit
        edge = block.stop * band.unit
        assert all(page in block for page in (*spans_now.get(band.name, ()), *band.bound))
    assert edge <= arena.top
    for band, count in zip(arena.bands, demand, strict=True):
        if band.name in places:
            check_take(band, count, held.get(band.name, set()), places[band.name])
        else:
            assert not band.unit or not count
    for place in found.places:
        band, count = bands[place.name], dict(zip(bands, demand, strict=True))[place.name]
        assert place.settles == max(0, min(count - band.count(HOLE, VACATED), band.count(PENDING)))
        if place.action is Action.STAY and band.holds:
            grown = max(0, count - band.count(HOLE, PENDING, VACATED))
            assert place.stop - place.start == band.stop - band.start + grown
    return moved


def check_take(band: Drawn, count: int, held: set[int], block: range) -> None:
    """The block has so many pages to hand out: nobody's, or the band's own holes and pending pages."""
    barred = {band.start + at for at, kind in enumerate(band.pages) if kind == RESERVED}
    assert len(set(block) - held - barred) >= count, (band, block)


def live_pages(band: Drawn) -> set[int]:
    return {band.start + at for at, kind in enumerate(band.pages) if kind in (LIVE, FIXED)}


def bytes_of(pages: range, unit: int) -> range:
    return range(pages.start * unit, pages.stop * unit)


# -- the promises


def check(arena: Arena, demand: tuple[int, ...], seed: object) -> tuple[Waits, Step] | None:
    """Every question about one arena; returns what the search found to be least."""
    snapshot = arena.snapshot()
    after = arena.after(Waits.SETTLE)
    for step in Step:
        reached = arena if step is Step.NO_MOVE else after
        found = plan(snapshot, demand, step)
        assert (found is not None) == search(reached, demand, movable(reached, step)), (seed, step)
        if found is not None:
            assert found.step is step
            carry_out(arena, demand, found, snapshot)
    found = plan(settled(snapshot), demand, Step.NO_MOVE)
    assert (found is not None) == search(after, demand, frozenset()), seed
    expected = least(arena, demand)
    assert feasible(snapshot, demand) == (expected is not None), seed
    found = first_plan(snapshot, demand)
    assert (found is not None) == (expected is not None), seed
    if found is not None and expected is not None:
        quiet = settled(snapshot) is snapshot and expected[0] is Waits.SETTLE
        assert (found.waits, found.step) == ((Waits.NOTHING, expected[1]) if quiet else expected), seed
        moved = carry_out(arena, demand, found, snapshot)
        assert moved <= sum(most.bytes for most in most_moved(snapshot, found)), seed
    return expected


@pytest.mark.req("CAP-3")
@pytest.mark.req("CAP-4")
@pytest.mark.req("CAP-5+")
def test_every_answer_equals_a_search_over_all_layouts() -> None:
    """Each step, each wait and ``feasible`` say yes exactly where a layout is found; each yes can be carried out."""
    answers = dict.fromkeys([*TIERS, None], 0)
    for seed in SEEDS:
        answers[check(*draw(seed), seed)] += 1
    assert all(answers.values()), answers
    assert 0.05 < answers[None] / len(SEEDS) < 0.9


@pytest.mark.req("ALC-3")
def test_what_moves_costs_the_least() -> None:
    """No other choice of ends and floats to move would serve and hold fewer bytes."""
    moved = 0
    for seed in SEEDS:
        arena, demand = draw(seed)
        snapshot, after = settled(arena.snapshot()), arena.after(Waits.SETTLE)
        for step in (Step.FLUSH_ENDS, Step.RELAYOUT):
            found = plan(snapshot, demand, step)
            if found is None:
                continue
            prices = {band.name: price(band) for band in after.bands if band.name in movable(after, step)}
            chosen = sum(prices[place.name] for place in found.places if place.action is not Action.STAY)
            cheaper = (
                names
                for size in range(len(prices))
                for names in itertools.combinations(prices, size)
                if sum(prices[name] for name in names) < chosen
            )
            assert not any(search(after, demand, frozenset(names)) for names in cheaper), seed
            moved += chosen > 0
    assert moved > 100


def price(band: Drawn) -> int:
    """What moving the band may cost at most, in bytes."""
    live = band.count(LIVE, FIXED)
    return band.unit * (live if band.end is None else min(live, band.count(HOLE)))


def test_any_preference_of_place_serves() -> None:
    """Where an empty float is put is a preference: the lowest, the highest or nonsense never breaks an arrangement."""
    for seed in SEEDS[:1000]:
        arena, demand = draw(seed)
        snapshot = arena.snapshot()
        for place in (min, max, lambda lowest, highest: lowest - 7, lambda lowest, highest: highest + 7):
            found = first_plan(snapshot, demand, place)
            assert (found is not None) == feasible(snapshot, demand)
            if found is not None:
                carry_out(arena, demand, found, snapshot)


@pytest.mark.req("CAP-4")
def test_a_longer_wait_never_serves_less() -> None:
    """Where an arrangement serves now, it serves once settled, and once transfers have ended."""
    for seed in SEEDS[:1000]:
        arena, demand = draw(seed)
        snapshot = arena.snapshot()
        reached = (snapshot, settled(snapshot), after_transfers(snapshot))
        for step in Step:
            served = [plan(each, demand, step) is not None for each in reached]
            assert served == sorted(served), (seed, step)


def every_pair(top: int, units: tuple[int, int]) -> Iterator[Arena]:
    """Every arena of two ends on so many bytes: every span, and every state of every page.

    Where a page is bound, once more with a transfer that binds it.
    """
    freed = {FIXED: LIVE, RESERVED: HOLE}
    low, high = units
    for below in range(top // low + 1):
        for above in range((top - below * low) // high + 1):
            for pages in itertools.product(sorted(set(KINDS)), repeat=below + above):
                first = Drawn("low", low, LOW, 0, pages[:below], 9)
                last = Drawn("high", high, HIGH, top // high - above, pages[below:], 9)
                yield Arena(0, top, (first, last), None)
                if freed.keys() & set(pages):
                    yield Arena(0, top, (first, last), (first.turned(freed), last.turned(freed)))


@pytest.mark.req("CAP-5+")
@pytest.mark.parametrize(("top", "units"), [(3, (1, 1)), (3, (2, 1)), (3, (1, 2)), (4, (2, 2))])
def test_every_answer_on_every_arena_of_a_few_bytes(top: int, units: tuple[int, int]) -> None:
    """None is left out: each state of each page, each demand of up to two units a band."""
    checked = 0
    for arena in every_pair(top, units):
        for demand in itertools.product(range(3), repeat=2):
            check(arena, demand, (arena, demand))
            checked += 1
    assert checked > 1000
