"""Pricing: exact against a search over every arrangement, and least in what it moves."""

import random
from collections.abc import Iterator

import pytest

from kvarena.planning.pricing import (
    Action,
    Arrangement,
    Step,
    feasible,
    first_plan,
    move_order,
    plan,
)
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW

SEEDS = range(4000)


def snapshot_of(*bands: BandShot, base: int = 0, top: int = 100) -> ChainSnapshot:
    return ChainSnapshot(base, top, bands)


def low(live: int, holes: int = 0, *, unit: int = 1, first: int = 0, ids: int = 999) -> BandShot:
    return BandShot("low", unit, LOW, live, holes, first, first + live + holes, ids)


def high(live: int, holes: int = 0, *, unit: int = 1, top: int = 100, ids: int = 999) -> BandShot:
    return BandShot("high", unit, HIGH, live, holes, top // unit - live - holes, top // unit, ids)


def floating(live: int, holes: int = 0, *, unit: int = 1, start: int = 0, name: str = "float") -> BandShot:
    return BandShot(name, unit, None, live, holes, start, start + live + holes, 999)


# -- a tiny arena, drawn at random, and every arrangement of it


def tiny(seed: int) -> tuple[ChainSnapshot, tuple[int, ...]]:
    """Two to five bands with mixed units on 6 to 22 bytes, in a state that a chain can be in; and a demand."""
    rng = random.Random(seed)
    count, top = rng.randint(1, 5), rng.randint(6, 22)
    units = [rng.choice((1, 1, 2, 3, 4, 5)) for _ in range(count)]
    base = units[0] if count > 1 and rng.random() < 0.5 else 0
    shots: list[BandShot] = []
    edge = base
    for index, unit in enumerate(units):
        end = HIGH if index == count - 1 else LOW if index == 0 else None
        span = 0 if rng.random() < 0.3 else rng.randint(1, max(1, top // (2 * unit)))
        start = -(-edge // unit) if end is LOW else -(-edge // unit) + rng.randint(0, 2)
        if end is HIGH:
            start = top // unit - span
        if start * unit < edge or (start + span) * unit > top:
            span, start = 0, (top // unit if end is HIGH else start)
        live = span if span < 2 else rng.randint(1, span)
        if end is None and live == 1:
            span = min(span, 1)
            start = min(start, top // unit)
        shots.append(BandShot(f"band{index}", unit, end, live, span - live, start, start + span, rng.choice((2, 9, 9))))
        if span:
            edge = (start + span) * unit
    demand = tuple(rng.choice((0, 0, 1, 1, 2, 3, rng.randint(0, 8))) for _ in units)
    return ChainSnapshot(base, top, tuple(shots)), demand


def spans(shot: BandShot, count: int, step: Step, snapshot: ChainSnapshot) -> Iterator[tuple[int, int]]:
    """Every span, in bytes, that this band may end up with."""
    unit, growth, size = shot.unit_bytes, max(0, count - shot.holes), shot.live + count
    length = shot.stop - shot.start + growth
    if shot.end is not None:
        lengths = {length} if step is Step.NO_MOVE else {length, size}
        for pages in lengths:
            start = shot.start if shot.end is LOW else shot.stop - pages
            yield start * unit, (start + pages) * unit
        return
    if shot.live:
        for below in range(growth + 1):
            yield (shot.start - below) * unit, (shot.start - below + length) * unit
    if not shot.live or step is Step.RELAYOUT:
        for start in range(snapshot.top // unit + 1):
            yield start * unit, (start + size) * unit


def search(snapshot: ChainSnapshot, demand: tuple[int, ...], step: Step) -> bool:
    """Whether any choice of spans lies in chain order inside the arena: all of them are tried."""
    if any(count > shot.ids_free for shot, count in zip(snapshot.bands, demand, strict=True)):
        return False

    def fits(index: int, edge: int) -> bool:
        if index == len(demand):
            return edge <= snapshot.top
        shot, count = snapshot.bands[index], demand[index]
        if not shot.live + count:
            return fits(index + 1, edge)
        return any(
            edge <= start and stop <= snapshot.top and fits(index + 1, stop)
            for start, stop in spans(shot, count, step, snapshot)
        )

    return fits(0, snapshot.base)


def check_arrangement(snapshot: ChainSnapshot, demand: tuple[int, ...], arrangement: Arrangement) -> None:
    """The arrangement's spans are among those the search would try, in order, and hold what was asked."""
    places = {place.name: place for place in arrangement.places}
    edge = snapshot.base
    for shot, count in zip(snapshot.bands, demand, strict=True):
        if not shot.live + count:
            assert shot.name not in places
            continue
        place = places[shot.name]
        assert edge <= place.start * shot.unit_bytes
        edge = place.stop * shot.unit_bytes
        assert edge <= snapshot.top
        growth = max(0, count - shot.holes)
        if place.action is Action.STAY:
            assert place.stop - place.start == shot.stop - shot.start + growth
            assert not shot.live or (place.start <= shot.start and place.stop >= shot.stop)
        else:
            assert arrangement.step >= (Step.RELAYOUT if place.action is Action.MOVE else Step.FLUSH_ENDS)
            assert place.stop - place.start == shot.live + count


@pytest.mark.req("CAP-3")
@pytest.mark.req("CAP-5+")
def test_every_step_agrees_with_a_search_over_all_layouts() -> None:
    """On tiny arenas each step says yes exactly where some arrangement of that step serves, and gives such a one."""
    answers = dict.fromkeys(Step, 0)
    for seed in SEEDS:
        snapshot, demand = tiny(seed)
        for step in Step:
            arrangement = plan(snapshot, demand, step)
            assert (arrangement is not None) == search(snapshot, demand, step), (seed, step, snapshot, demand)
            if arrangement is not None:
                check_arrangement(snapshot, demand, arrangement)
                answers[step] += 1
    assert len(SEEDS) * 0.1 < answers[Step.NO_MOVE] < answers[Step.FLUSH_ENDS] < answers[Step.RELAYOUT]
    assert answers[Step.RELAYOUT] < len(SEEDS) * 0.9


@pytest.mark.req("CAP-4")
@pytest.mark.req("CAP-5+")
def test_feasible_agrees_with_a_search_and_the_first_plan_is_of_the_least_step() -> None:
    """``feasible`` is yes exactly where any arrangement serves; the first is then of the least step that does."""
    for seed in SEEDS:
        snapshot, demand = tiny(seed)
        least = next((step for step in Step if search(snapshot, demand, step)), None)
        assert feasible(snapshot, demand) == (least is not None), (seed, snapshot, demand)
        arrangement = first_plan(snapshot, demand)
        assert (arrangement.step if arrangement else None) == least, (seed, snapshot, demand)


def test_any_preference_of_place_serves() -> None:
    """Where an empty float is put is a preference: the lowest, the highest or nonsense never breaks an arrangement."""
    for seed in SEEDS[:1500]:
        snapshot, demand = tiny(seed)
        for place in (min, max, lambda lowest, highest: lowest - 7, lambda lowest, highest: highest + 7):
            arrangement = first_plan(snapshot, demand, place)
            assert (arrangement is not None) == feasible(snapshot, demand)
            if arrangement is not None:
                check_arrangement(snapshot, demand, arrangement)


def test_floats_move_onto_bytes_that_nobody_holds() -> None:
    """In the order of ``move_order`` no block is written over the present bytes of a float still to move."""
    moved = 0
    for seed in range(20_000):
        snapshot, demand = tiny(seed)
        arrangement = plan(snapshot, demand, Step.RELAYOUT)
        if arrangement is None:
            continue
        places = {place.name: place for place in arrangement.places}
        order = move_order(snapshot, arrangement)
        assert set(order) == {place.name for place in arrangement.places if place.action is Action.MOVE}
        bytes_of = {
            shot.name: set(range(shot.start * shot.unit_bytes, shot.stop * shot.unit_bytes))
            for shot in snapshot.bands
            if shot.end is None and shot.live
        }
        units = {shot.name: shot.unit_bytes for shot in snapshot.bands}
        for name in order:
            block = set(range(places[name].start * units[name], places[name].stop * units[name]))
            others = set().union(*(held for other, held in bytes_of.items() if other != name))
            assert not block & others, (seed, name, order)
            bytes_of[name] = block
            moved += 1
    assert moved > 500


# -- shapes with a name


@pytest.mark.req("ALC-6")
def test_an_empty_float_is_transparent() -> None:
    """Its neighbours take the bytes where it last was."""
    snapshot = snapshot_of(low(10), BandShot("float", 7, None, 0, 0, 5, 5, 99), high(10))
    assert plan(snapshot, (80, 0, 0), Step.NO_MOVE) is not None
    assert plan(snapshot, (81, 0, 0), Step.NO_MOVE) is None


def test_an_empty_end_takes_nothing_beyond_its_sink() -> None:
    """A float may start right at the base: an empty low end does not round the sink up to its own grid."""
    snapshot = snapshot_of(low(0, unit=64, first=1), floating(0, unit=4), high(0, unit=50), base=64)
    assert feasible(snapshot, (0, 9, 0))
    assert not feasible(snapshot, (0, 10, 0))
    arrangement = plan(snapshot, (0, 9, 0), Step.NO_MOVE)
    assert arrangement is not None
    assert arrangement.places[0].start == 16


@pytest.mark.req("ALC-1")
def test_a_float_grows_towards_its_larger_gap() -> None:
    """Where both sides would do, the larger gap gives."""
    right = plan(snapshot_of(low(10), floating(10, start=20), high(10)), (0, 5, 0), Step.NO_MOVE)
    left = plan(snapshot_of(low(10), floating(10, start=70), high(10)), (0, 5, 0), Step.NO_MOVE)
    assert right is not None
    assert left is not None
    assert (right.places[1].start, right.places[1].stop) == (20, 35)
    assert (left.places[1].start, left.places[1].stop) == (65, 80)


def test_a_preference_never_eats_a_neighbours_need() -> None:
    """The larger gap is on the right, but the right neighbour asks for it: the float goes left."""
    snapshot = snapshot_of(low(10), floating(10, start=30), high(10))
    arrangement = plan(snapshot, (0, 20, 50), Step.NO_MOVE)
    assert arrangement is not None
    assert (arrangement.places[1].start, arrangement.places[1].stop) == (10, 40)


@pytest.mark.req("ALC-1")
def test_an_empty_float_goes_to_the_middle_of_what_later_bands_leave() -> None:
    """Today's demand of the bands to its right is subtracted first."""
    arrangement = plan(snapshot_of(low(10), floating(0), high(10)), (0, 10, 20), Step.NO_MOVE)
    assert arrangement is not None
    assert arrangement.places[1].start == 35
    assert arrangement.places[2].start == 70


def test_only_the_end_that_must_is_flushed() -> None:
    """A flush that the arrangement does not need is not asked for."""
    arrangement = first_plan(snapshot_of(low(10, 30), high(10, 30)), (0, 55))
    assert arrangement is not None
    assert arrangement.step is Step.FLUSH_ENDS
    assert [place.action for place in arrangement.places] == [Action.FLUSH, Action.STAY]
    assert str(arrangement) == "FLUSH_ENDS: low [0, 10) flush, high [35, 100) stay"


def test_a_float_that_fits_where_it_is_stays() -> None:
    """RELAYOUT moves only the floats that are in the way."""
    snapshot = snapshot_of(
        low(10), floating(10, start=40, name="near"), floating(10, start=60, name="far"), high(10)
    )  # between: 30 free, 10 free, 20 free
    arrangement = first_plan(snapshot, (0, 0, 0, 25))
    assert arrangement is not None
    assert arrangement.step is Step.RELAYOUT
    assert [place.action for place in arrangement.places] == [Action.STAY, Action.STAY, Action.MOVE, Action.STAY]
    assert move_order(snapshot, arrangement) == ("far",)


def test_ids_run_out_before_bytes() -> None:
    """A demand beyond the ids of a sub-pool does not fit, whatever room there is; without bytes only ids count."""
    snapshot = snapshot_of(low(1, ids=3), high(1), BandShot("ids", 0, None, 5, 0, 0, 0, 4))
    assert feasible(snapshot, (3, 1, 4))
    assert not feasible(snapshot, (4, 1, 4))
    assert not feasible(snapshot, (3, 1, 5))
    assert first_plan(snapshot, (3, 1, 5)) is None


def test_a_negative_demand_is_a_mistake() -> None:
    """It is never read as room."""
    with pytest.raises(InvariantError, match=r"pricing\.negative_demand"):
        feasible(snapshot_of(low(1), high(1)), (-1, 0))
