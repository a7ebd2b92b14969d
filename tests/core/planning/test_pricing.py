"""Pricing: shapes with a name. What every answer is worth is searched in ``test_pricing_search.py``."""

import random

import pytest

from kvarena.planning.pricing import (
    Action,
    Arrangement,
    Placing,
    Step,
    Waits,
    feasible,
    first_plan,
    move_order,
    plan,
)
from kvarena.planning.snapshot import BandShot, ChainSnapshot, after_transfers, settled
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW


def snapshot_of(*bands: BandShot, base: int = 0, top: int = 100) -> ChainSnapshot:
    return ChainSnapshot(base, top, bands)


def low(live: int, holes: int = 0, *, unit: int = 1, first: int = 0, ids: int = 999) -> BandShot:
    return BandShot("low", unit, LOW, live, holes, first, first + live + holes, ids)


def high(live: int, holes: int = 0, *, unit: int = 1, top: int = 100, ids: int = 999) -> BandShot:
    return BandShot("high", unit, HIGH, live, holes, top // unit - live - holes, top // unit, ids)


def floating(live: int, holes: int = 0, *, unit: int = 1, start: int = 0, name: str = "float") -> BandShot:
    return BandShot(name, unit, None, live, holes, start, start + live + holes, 999)


def spans(arrangement: Arrangement | None) -> dict[str, tuple[int, int]]:
    """Where each band ends up; nothing if it does not fit."""
    return {place.name: (place.start, place.stop) for place in arrangement.places} if arrangement else {}


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


def test_a_demand_of_other_bands_is_a_mistake() -> None:
    """One count per band, whoever asks."""
    snapshot = snapshot_of(low(1), high(1))
    for ask in (feasible, first_plan):
        with pytest.raises(InvariantError, match=r"pricing\.demand_of_other_bands: bands=2 demand=1"):
            ask(snapshot, (1,))
        with pytest.raises(InvariantError, match=r"pricing\.negative_demand: sub_pool='high' count=-3"):
            ask(snapshot, (0, -3))


def test_an_absurd_demand_simply_does_not_fit() -> None:
    """Counts that no machine holds are a no, not an error."""
    snapshot = snapshot_of(low(1, ids=10**40), high(1))
    assert not feasible(snapshot, (10**30, 0))
    assert first_plan(snapshot, (10**30, 0)) is None
    assert not feasible(snapshot, (0, 10**30))


# -- pending and vacated pages


@pytest.mark.req("ALC-1")
def test_holes_then_pending_pages_then_growth() -> None:
    """A take settles only what its holes do not cover, and grows only by what both do not."""
    shot = low(10, 3)._replace(pending=4, stop=17)
    for count, settles, stop in ((3, 0, 17), (5, 2, 17), (7, 4, 17), (9, 4, 19)):
        arrangement = plan(snapshot_of(shot, high(10)), (count, 0), Step.NO_MOVE)
        assert arrangement is not None
        assert arrangement.places[0] == Placing("low", Action.STAY, 0, stop, settles)
        assert arrangement.waits is Waits.NOTHING
    assert str(arrangement) == "NO_MOVE: low [0, 19) stay, settles 4, high [90, 100) stay"


@pytest.mark.req("ALC-1")
def test_vacated_pages_are_free_to_their_own_band_and_to_others_after_recovery() -> None:
    """A take of their band waits for them alone; what needs their bytes for another band settles first."""
    snapshot = snapshot_of(low(10)._replace(vacated=5, stop=15), high(85))
    arrangement = plan(snapshot, (5, 0), Step.NO_MOVE)
    assert str(arrangement) == "NO_MOVE: low [0, 15) stay, high [15, 100) stay"
    assert not feasible(snapshot, (6, 0))
    assert plan(snapshot, (0, 1), Step.NO_MOVE) is None
    other = first_plan(snapshot, (0, 5))
    assert str(other) == "FLUSH_ENDS once settled: low [0, 10) flush, high [10, 100) stay"
    assert not feasible(snapshot, (0, 6))


@pytest.mark.req("ALC-6")
def test_a_float_of_pending_pages_is_transparent_once_settled() -> None:
    """Before recovery its bytes are in the way of its neighbours; after it nobody holds them."""
    idle = BandShot("float", 1, None, 0, 0, 40, 45, 99, pending=5)
    snapshot = snapshot_of(low(10), idle, high(10))
    assert plan(snapshot, (30, 0, 0), Step.NO_MOVE) is not None
    assert plan(snapshot, (31, 0, 0), Step.NO_MOVE) is None
    arrangement = first_plan(snapshot, (80, 0, 0))
    assert arrangement is not None
    assert (arrangement.waits, arrangement.step) == (Waits.SETTLE, Step.NO_MOVE)
    assert "float" not in spans(arrangement)
    assert settled(settled(snapshot)) == settled(snapshot) != snapshot
    assert plan(snapshot, (0, 5, 0), Step.NO_MOVE).places[1].settles == 5  # type: ignore[union-attr]


# -- fixed pages


@pytest.mark.req("CAP-5+")
def test_an_end_is_packed_around_its_fixed_pages() -> None:
    """Its span ends at the outermost fixed page, or after all it holds if that is more."""
    bound = low(5, 14)._replace(reserved=1, stop=20, fixed_start=11, fixed_stop=12)
    snapshot = snapshot_of(bound, high(80))
    assert spans(plan(snapshot, (0, 8), Step.FLUSH_ENDS)) == {"low": (0, 12), "high": (12, 100)}
    assert not feasible(snapshot, (0, 9))
    assert spans(plan(snapshot, (7, 7), Step.FLUSH_ENDS)) == {"low": (0, 13), "high": (13, 100)}
    assert not feasible(snapshot, (7, 8))


@pytest.mark.req("CAP-5+")
def test_a_relocated_float_covers_its_fixed_pages() -> None:
    """It is one block, so what lies between two fixed pages stays its own."""
    bound = floating(6, 14, start=40)._replace(fixed_start=45, fixed_stop=55)
    snapshot = snapshot_of(low(10), bound, high(10))
    assert spans(plan(snapshot, (35, 0, 35), Step.RELAYOUT)) == {"low": (0, 45), "float": (45, 55), "high": (55, 100)}
    assert not feasible(snapshot, (36, 0, 0))
    assert not feasible(snapshot, (0, 0, 36))
    assert feasible(snapshot, (35, 4, 35))
    assert not feasible(snapshot, (35, 5, 35))


# -- transfers


def test_nothing_is_put_over_pages_that_a_send_still_reads() -> None:
    """A float with nothing else left is in its neighbours' way, and grows beside them, until the send has ended."""
    read = BandShot("float", 2, None, 0, 0, 20, 21, 99, reserved=1, fixed_start=20, fixed_stop=21)
    free = read._replace(holes=1, reserved=0, fixed_start=0, fixed_stop=0)
    snapshot = snapshot_of(low(10), read, high(10))
    for step in Step:
        assert spans(plan(snapshot, (30, 0, 48), step)) == {"low": (0, 40), "float": (20, 21), "high": (42, 100)}
        assert plan(snapshot, (31, 0, 0), step) is None
        assert plan(snapshot, (0, 0, 49), step) is None
        assert spans(plan(snapshot, (30, 3, 42), step))["float"] == (20, 24)
        assert spans(plan(snapshot, (24, 3, 48), step))["float"] == (17, 21)
        assert plan(snapshot, (25, 3, 48), step) is None
    assert not feasible(snapshot, (31, 0, 0))
    later = first_plan(snapshot._replace(released=(low(10), free, high(10))), (31, 0, 49))
    assert str(later) == "NO_MOVE once transfers have ended: low [0, 41) stay, high [41, 100) stay"


@pytest.mark.req("ALC-3")
def test_transfers_are_waited_for_last() -> None:
    """A layout that leaves their pages alone comes first; a yes that needs them moved says so."""
    bound, free = low(10, 30)._replace(fixed_start=39, fixed_stop=40), low(10, 30)
    snapshot = ChainSnapshot(0, 100, (bound, high(50)), (free, high(50)))
    assert first_plan(snapshot, (0, 10)).waits is Waits.NOTHING  # type: ignore[union-attr]
    arrangement = first_plan(snapshot, (0, 40))
    assert feasible(snapshot, (0, 40))
    assert str(arrangement) == "FLUSH_ENDS once transfers have ended: low [0, 10) flush, high [10, 100) stay"
    assert after_transfers(snapshot) == ChainSnapshot(0, 100, (free, high(50)))
    assert not feasible(snapshot, (0, 41))


# -- moving less


@pytest.mark.req("ALC-3")
def test_a_relayout_leaves_an_end_with_holes_where_it_is() -> None:
    """Once a float has moved there is room enough: the holes of the ends stay."""
    snapshot = snapshot_of(low(10, 10), floating(5, start=60), high(10, 10))
    arrangement = first_plan(snapshot, (0, 0, 40))
    assert [str(place) for place in arrangement.places] == [  # type: ignore[union-attr]
        "low [0, 20) stay", "float [45, 50) move", "high [50, 100) stay",
    ]  # fmt: skip


def test_the_float_that_holds_less_moves() -> None:
    """Either would make room; the smaller one goes."""
    for sizes, moved in (((30, 5), "right"), ((5, 30), "left")):
        left, right = (floating(size, start=start, name=name) for size, start, name in
                       ((sizes[0], 15, "left"), (sizes[1], 55, "right")))  # fmt: skip
        snapshot = snapshot_of(low(5), left, floating(0, name="new"), right, high(5))
        arrangement = first_plan(snapshot, (0, 0, 45, 0, 0))
        assert arrangement is not None
        assert move_order(snapshot, arrangement) == (moved,)


def test_a_block_may_move_onto_its_own_old_place() -> None:
    """A float shifts by less than its length, after the neighbour it shifts onto."""
    snapshot = snapshot_of(low(10), floating(20, start=10, name="a"), floating(20, start=30, name="b"), high(10))
    arrangement = first_plan(snapshot, (5, 0, 0, 0))
    assert spans(arrangement) == {"low": (0, 15), "a": (15, 35), "b": (35, 55), "high": (90, 100)}
    assert arrangement is not None
    assert move_order(snapshot, arrangement) == ("b", "a")


def test_many_floats_are_answered_exactly_too() -> None:
    """With more floats than ways are remembered for, a plan is found wherever ``feasible`` says yes."""
    answers = []
    for seed in range(30):
        rng = random.Random(seed)
        bands, edge = [low(3, 4)], 7
        for index in range(14):
            live, holes = rng.randint(1, 90), rng.randint(0, 9)
            bands.append(floating(live, holes, start=edge + rng.randint(0, 20), name=f"float{index}"))
            edge = bands[-1].stop
        top = edge + 30
        bands.append(high(5, 5, top=top))
        snapshot = snapshot_of(*bands, top=top)
        for ask in range(20, 400, 10):
            demand = (0,) * 15 + (ask,)
            arrangement = first_plan(snapshot, demand)
            assert (arrangement is not None) == feasible(snapshot, demand)
            answers.append(arrangement is not None)
    assert any(answers)
    assert not all(answers)
