"""Ends and floats, each by itself."""

import numpy as np
import pytest

from kvarena.backends.host import HostDevice
from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.grid import Grid
from kvarena.bands.span import Span
from kvarena.bands.unit_ids import UnitIds
from kvarena.ledger.ledger import Ledger
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW, End, HoleOrder

PAGES = 40


def band(end: End | None) -> Span:
    """Pages 1 to 38 of 40, an id for each; page 39 is the sink."""
    grid = Grid("full", 8, end, 1, PAGES - 1, PAGES, PAGES - 1, PAGES, zero_on_take=True)
    made = FloatBand if end is None else Band
    return made(
        grid, UnitIds(PAGES, PAGES, PAGES - 1), Nearest(recent_max=0).open(PAGES, end or LOW), Ledger(HostDevice())
    )


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def fix(some: Span, which: np.ndarray) -> None:
    """As a chain's usage does it."""
    some.ids.check_bound(which)
    some.still.fix(some.ids.pages_of(which))


def unfix(some: Span, which: np.ndarray) -> None:
    """As a chain's usage does it."""
    some.ids.check_bound(which)
    some.still.unfix(some.ids.pages_of(which))


def state(some: Span) -> tuple[int, int, int, int]:
    shot = some.shot()
    return shot.live, shot.holes, shot.start, shot.stop


@pytest.mark.req("ALC-1")
def test_a_low_band_grows_up_and_fills_holes_first() -> None:
    """From its first page on; a hole before the frontier is used before the frontier moves."""
    some = band(LOW)
    assert some.take(np.arange(5), 1, 6).tolist() == [1, 2, 3, 4, 5]
    some.free(ids(1, 3))
    assert state(some) == (3, 2, 1, 6)
    assert some.shot().ids_free == PAGES - 3
    assert some.take(ids(10, 11, 12), 1, 7).tolist() == [2, 4, 6]
    assert state(some) == (6, 0, 1, 7)
    some.verify()


@pytest.mark.req("ALC-1")
def test_a_high_band_grows_down() -> None:
    """From the page below its sink; the nearest hole is the highest."""
    some = band(HIGH)
    assert sorted(some.take(np.arange(5), 34, 39).tolist()) == [34, 35, 36, 37, 38]
    pages = some.ids.pages_of(np.arange(5)).tolist()
    some.free(ids(pages.index(35), pages.index(37)))
    assert state(some) == (3, 2, 34, 39)
    assert some.take(ids(9), 34, 39).tolist() == [37]
    some.verify()


@pytest.mark.req("LIF-7")
@pytest.mark.parametrize(
    ("end", "span", "freed", "left"), [(LOW, (1, 6), (5, 4, 1), (2, 4)), (HIGH, (34, 39), (34, 35, 38), (36, 38))]
)
def test_holes_at_the_frontier_go_back_at_once(
    end: End, span: tuple[int, int], freed: tuple[int, ...], left: tuple[int, int]
) -> None:
    """A free leaves a hole; those at the frontier, and holes behind them, leave the span."""
    some = band(end)
    some.take(np.arange(5), *span)
    some.free(some.ids.owners_of(ids(*freed)))
    anchored = (1, left[1]) if end is LOW else (left[0], 39)
    assert state(some) == (2, 1, *anchored)
    some.verify()


def test_an_empty_band_begins_at_its_anchor() -> None:
    """Freed whole and taken again, it has not drifted."""
    for end, span in ((LOW, (1, 3)), (HIGH, (37, 39))):
        some = band(end)
        some.take(ids(0, 1), *span)
        some.free(ids(0, 1))
        assert state(some)[:2] == (0, 0)
        some.take(ids(5, 6), *span)
        assert state(some) == (2, 0, *span)


@pytest.mark.req("CMP-3")
@pytest.mark.parametrize("end", [LOW, HIGH])
def test_packing_brings_every_page_to_the_end(end: End) -> None:
    """The moves are as many as live pages lie outside the packed span, and none is source and target."""
    some = band(end)
    some.take(np.arange(20), *((1, 21) if end is LOW else (19, 39)))
    some.free(ids(0, 2, 4, 7, 9, 12))
    sources, targets = some.closing_moves(99)
    assert not set(sources.tolist()) & set(targets.tolist())
    some.moved(sources, targets)
    assert state(some) == (14, 0, *((1, 15) if end is LOW else (25, 39)))
    some.verify()


@pytest.mark.req("CMP-1")
@pytest.mark.parametrize("end", [LOW, HIGH])
def test_a_limit_moves_the_farthest_pages_to_the_nearest_holes(end: End) -> None:
    """So that each move brings the frontier nearer."""
    some = band(end)
    some.take(np.arange(20), *((1, 21) if end is LOW else (19, 39)))
    pages = (2, 3, 5, 20) if end is LOW else (37, 36, 34, 19)
    some.free(some.ids.owners_of(ids(*pages[:3])))
    sources, targets = some.closing_moves(2)
    assert targets.tolist() == list(pages[:2])
    assert sources.tolist() == ([20, 19] if end is LOW else [19, 20])
    some.moved(sources, targets)
    assert state(some) == (17, 1, *((1, 19) if end is LOW else (21, 39)))


def test_growth_is_checked_against_the_holes() -> None:
    """A span that grows by more than the holes lack would leak pages; one that gives way on a side would lose some."""
    some = band(LOW)
    with pytest.raises(InvariantError, match=r"band\.growth_is_what_is_lacking"):
        some.take(ids(0, 1), 1, 4)
    some = band(None)
    some.take(ids(0, 1, 2), 10, 13)
    for start, stop in ((11, 15), (8, 12), (10, 13), (9, 15)):
        with pytest.raises(InvariantError, match=r"band\.growth_is_what_is_lacking"):
            some.take(ids(3), start, stop)
    assert state(some) == (3, 0, 10, 13)
    some.verify()


@pytest.mark.req("ALC-1")
def test_a_float_grows_to_either_side() -> None:
    """As far as the plan says on each."""
    some = band(None)
    some.take(ids(0, 1), 10, 12)
    assert sorted(some.take(np.arange(2, 7), 8, 15).tolist()) == [8, 9, 12, 13, 14]
    assert state(some) == (7, 0, 8, 15)
    some.verify()


@pytest.mark.req("CMP-6")
def test_a_float_hands_back_boundary_holes_of_both_sides() -> None:
    """The holes between live pages stay, to be used in place."""
    some = band(None)
    some.take(np.arange(8), 10, 18)
    some.free(ids(0, 1, 4, 7))
    assert state(some) == (4, 1, 12, 17)
    some.free(ids(2, 3, 5, 6))
    assert state(some)[:2] == (0, 0)
    some.take(ids(9), 30, 31)
    assert state(some) == (1, 0, 30, 31)


@pytest.mark.parametrize("start", range(2, 25))
def test_a_relocated_float_keeps_the_pages_that_are_inside(start: int) -> None:
    """Also where the new block overlaps the old span: no page inside moves, no target is a source."""
    some = band(None)
    some.take(np.arange(10), 10, 20)
    some.free(ids(2, 3, 6))
    before = some.ids.pages_of(np.arange(10))
    sources, targets = some.relocation(start, start + 9)
    assert not set(sources.tolist()) & set(range(start, start + 9))
    assert set(targets.tolist()) <= set(range(start, start + 9)) - set(before.tolist())
    some.relocated(start, start + 9, (sources, targets))
    assert state(some) == (7, 2, start, start + 9)
    some.take(ids(20, 21), start, start + 9)
    some.verify()


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("end", [LOW, HIGH, None], ids=str)
def test_a_page_is_a_hole_once(end: End | None) -> None:
    """A second free and a move onto a live page are caught; holes that disagree with the maps are found."""
    some = band(end)
    some.take(np.arange(6), 14, 20) if end is None else some.take(np.arange(6), *((1, 7) if end is LOW else (33, 39)))
    pages = some.ids.pages_of(np.arange(6))
    inner = np.sort(pages)[2:4]
    freed = some.ids.owners_of(inner)
    some.free(freed)
    before = state(some)
    with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        some.free(freed[:1])
    with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        some.check_free(freed[:1])
    with pytest.raises(InvariantError, match=r"band\.move_onto_owned_page"):
        some.ids.rebind(np.sort(pages)[:1], np.sort(pages)[1:2])
    assert state(some) == before
    some.verify()
    some.holes.remove(inner[:1])
    with pytest.raises(InvariantError, match=r"band\.(sum|stale_shot|holes_are_unowned)"):
        some.verify()


def test_a_free_is_checked_without_changing_anything() -> None:
    """Bound, named once, and not fixed."""
    some = band(LOW)
    some.take(np.arange(5), 1, 6)
    fix(some, ids(3))
    before = state(some)
    for wrong, name in (
        (ids(5), "free_of_bound_page"),
        (ids(1, 1), "free_of_bound_page"),
        (ids(-1), "free_of_unknown_id"),
        (ids(PAGES), "free_of_unknown_id"),
        (ids(1, 3), "free_outside_reservation"),
    ):
        with pytest.raises(InvariantError, match=rf"band\.{name}"):
            some.check_free(wrong)
    some.check_free(ids(4, 0))
    assert state(some) == before
    some.verify()


@pytest.mark.req("CMP-3")
@pytest.mark.parametrize("end", [LOW, HIGH])
@pytest.mark.parametrize("held", [5, 12, 19])
def test_packing_goes_around_fixed_pages(end: End, held: int) -> None:
    """No fixed page is a source; the packed span ends at the outermost one, or where the live pages do."""
    some = band(end)
    some.take(np.arange(20), *((1, 21) if end is LOW else (19, 39)))
    anchor = 1 if end is LOW else 38
    page = anchor + held if end is LOW else anchor - held
    fixed = some.ids.owners_of(ids(page))
    fix(some, fixed)
    gone = np.setdiff1d(np.arange(20), fixed)[::2]
    some.free(gone)
    packed = some.packed
    assert len(packed) == max(10, held + 1)
    sources, targets = some.closing_moves(99)
    assert page not in sources
    some.moved(sources, targets)
    assert some.ids.pages_of(fixed).tolist() == [page]
    assert range(some.start, some.stop) == packed
    unfix(some, fixed)
    some.moved(*some.closing_moves(99))
    assert state(some)[:2] == (10, 0)
    some.verify()


def test_verify_finds_a_fixed_page_that_is_not_live() -> None:
    """And a shot that was kept past a change."""
    some = band(LOW)
    some.take(np.arange(5), 1, 6)
    some.shot()
    some.still.fixed = ids(9)
    with pytest.raises(InvariantError, match=r"band\.fixed_is_live"):
        some.verify()
    some.still.fixed = some.still.immovable = ids(2)
    with pytest.raises(InvariantError, match=r"band\.stale_shot"):
        some.verify()


@pytest.mark.req("CMP-1")
@pytest.mark.parametrize("end", [LOW, HIGH])
def test_the_farthest_pages_are_found_over_many_windows(end: End) -> None:
    """Where few pages live far out, the search goes on in wider windows, and skips no page between two of them."""
    count = 9000
    grid = Grid("full", 8, end, 0, count, count + 1, count, count, zero_on_take=True)
    some = Band(grid, UnitIds(count, count + 1, count), Nearest().open(count + 1, end), Ledger(HostDevice()))
    some.take(np.arange(count), 0, count)
    outer = np.unique([0, *range(500, 510), 1023, 1024, 1025, 3070, 3071, 3072, 3073, *range(4000, 7000, 97)])
    live = np.concatenate((count - 1 - outer, np.arange(100))) if end is LOW else np.concatenate((outer, 8999 - outer))
    pages = np.setdiff1d(np.arange(count), live)
    some.free(some.ids.owners_of(pages))
    far = np.sort(live)[::-1] if end is LOW else np.sort(live)
    for limit in (1, 12, 17, 30):
        sources, targets = some.closing_moves(limit)
        assert sources.tolist() == far[:limit].tolist()
        assert len(targets) == limit
    some.verify()


@pytest.mark.req("CMP-3")
@pytest.mark.parametrize("end", [LOW, HIGH])
@pytest.mark.parametrize("order", [Nearest(recent_max=1000), Recent()], ids=str)
def test_no_page_moves_beyond_where_the_packed_span_ends(order: HoleOrder, end: End) -> None:
    """Whichever holes the order names first: a page moved there would have to move again."""
    count = 400
    grid = Grid("full", 8, end, 0, count, count + 1, count, count, zero_on_take=True)
    some = Band(grid, UnitIds(count, count + 1, count), order.open(count + 1, end), Ledger(HostDevice()))
    some.take(np.arange(count), 0, count)
    anchored = (lambda places: places) if end is LOW else (lambda places: count - 1 - places)
    for places in (range(10, 60), range(300, 399, 2), range(200, 210)):
        some.free(some.ids.owners_of(anchored(np.array(places))))
    while len(some.holes):
        packed = some.packed
        sources, targets = some.closing_moves(7)
        assert all(page in packed for page in targets.tolist())
        assert not any(page in packed for page in sources.tolist())
        some.moved(sources, targets)
        some.verify()
    assert len(some.packed) == some.stop - some.start == count - 110


@pytest.mark.req("LIF-7")
@pytest.mark.parametrize("end", [LOW, HIGH, None], ids=str)
def test_those_that_are_bound_here_are_freed_among_others(end: End | None) -> None:
    """Their pages are holes, the frontier retreats, and ids that have no page here are passed over."""
    some = band(end)
    some.take(np.arange(6), 14, 20) if end is None else some.take(np.arange(6), *((1, 7) if end is LOW else (33, 39)))
    pages = np.sort(some.ids.pages_of(np.arange(6)))
    outer = pages[-2:] if end is not HIGH else pages[:2]
    gone = some.ids.owners_of(outer)
    some.shot()
    some.free_among(np.concatenate((ids(20), gone[:1])))
    some.verify()
    some.free_among(np.concatenate((ids(20), gone[1:], ids(7))))
    assert (state(some)[:2], some.stop - some.start, some.shot().ids_free) == ((4, 0), 4, PAGES - 4)
    some.verify()
    some.free_among(ids(20, 21))
    some.free_among(ids())
    assert state(some)[:2] == (4, 0)
    some.verify()


def test_a_relocation_is_seen_at_once() -> None:
    """A shot from before it is not kept."""
    some = band(None)
    some.take(np.arange(5), 10, 15)
    assert state(some) == (5, 0, 10, 15)
    some.relocated(20, 26, some.relocation(20, 26))
    assert state(some) == (5, 1, 20, 26)
    some.verify()


def test_pages_are_fixed_and_loosened_all_or_none() -> None:
    """One that is fixed already, or loose, is caught, wherever it lies among the others; nothing changes."""
    some = band(LOW)
    some.take(np.arange(8), 1, 9)
    assert some.shot().fixed_stop == 0
    fix(some, ids(6, 1))
    assert (some.shot().fixed_start, some.shot().fixed_stop) == (2, 8)
    fix(some, ids(3))
    before = some.shot()
    assert (before.fixed_start, before.fixed_stop) == (2, 8)
    for wrong in (ids(6), ids(3), ids(0, 6), ids(1, 0)):
        with pytest.raises(InvariantError, match=r"band\.fix_of_fixed_page"):
            fix(some, wrong)
    for wrong in (ids(0), ids(6, 0), ids(0, 1)):
        with pytest.raises(InvariantError, match=r"band\.unfix_of_loose_page"):
            unfix(some, wrong)
    for act in (fix, unfix):
        for wrong in (ids(9), ids(6, 6), ids(0, 0)):
            with pytest.raises(InvariantError, match=r"band\.free_of"):
                act(some, wrong)
    assert some.shot() == before
    unfix(some, ids(6, 1, 3))
    assert some.shot().fixed_stop == 0
    some.verify()


@pytest.mark.parametrize("end", [LOW, HIGH])
def test_a_recent_hole_beyond_the_packed_span_is_no_target(end: End) -> None:
    """Though the order would name it first."""
    count = 400
    grid = Grid("full", 8, end, 0, count, count + 1, count, count, zero_on_take=True)
    some = Band(grid, UnitIds(count, count + 1, count), Nearest().open(count + 1, end), Ledger(HostDevice()))
    some.take(np.arange(count), 0, count)

    def at(*places: int) -> np.ndarray:
        return ids(*(place if end is LOW else count - 1 - place for place in places))

    for place in (10, 11, 20, 396, 397):
        some.free(some.ids.owners_of(at(place)))
    sources, targets = some.closing_moves(2)
    assert sources.tolist() == at(399, 398).tolist()
    assert set(targets.tolist()) < set(at(10, 11, 20).tolist())
    some.moved(sources, targets)
    assert some.stop - some.start == 396
    some.verify()
