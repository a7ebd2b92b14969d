"""Which pages retire as a row advances: at the step in which nobody needs them any more, not before and not later."""

import numpy as np
import pytest
from storages import FULL, LONG, SHORT, Storage, nothing_changes, rows_of, storage_of
from toys import SinksAndWindow

from kvarena.planning.demand import whole_pages
from kvarena.storage.advance import never_retires, retirements
from kvarena.terms import ranges
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Chunk, Lifetime
from kvarena.terms.ports import IntArray

PAGE = 4
SINKS = SinksAndWindow(5, 4)
KINDS = (SHORT, LONG, Chunk(10), SINKS)
"""``SINKS`` retires no prefix, and is asked page by page."""


class OddFirst:
    """Rows at odd positions go four tokens back, the others twelve: a page is done when a row inside it is."""

    own_ids = False
    name = "odd-first"
    rank = (1, -2)

    def _gone(self, length: int) -> set[int]:
        return {at for at in range(length) if at <= length - (4 if at % 2 else 12)}

    def entries(self, length: int) -> int:
        """What the query before held on to, and the newest row."""
        return length - len(self._gone(max(0, length - 1)))

    def retained(self, length: int) -> int:
        """All that are not gone."""
        return length - len(self._gone(length))

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        """Row by row."""
        return ranges.merge(range(at, at + 1) for at in self._gone(stop) - self._gone(start))


class Row:
    """A row beside what it should hold: the places of its pages in a window, from the lifetime alone."""

    def __init__(self, lifetime: Lifetime, *, owner: bool = False) -> None:
        kinds = (lifetime,) if owner else (lifetime, FULL)
        self.storage: Storage = storage_of(kinds, context=60)
        self.lifetime = lifetime
        self.owner = owner
        self.row = self.storage.open()
        self.length = self.lent = 0
        self.gone: set[int] = set()

    def step(self, length: int) -> None:
        """Advance: what the present length needs no more retires, then pages for the new one are taken."""
        assert not isinstance(self.storage.step(rows_of(self.row), rows_of(length)), Refused)
        retired = self.lifetime.retired(0, self.length)
        pages = {page for pages in whole_pages(retired, PAGE) for page in pages}
        self.gone |= {page for page in pages if page >= self.lent or self.owner}
        self.length = length
        self.check()

    def hand_over(self, pages: int) -> None:
        """The first pages are another's."""
        self.storage.ownership.hand_over(self.row, pages * PAGE)
        self.lent = pages
        self.check()

    def shorten(self, length: int) -> None:
        """The last tokens are given back."""
        self.storage.ownership.free_rows(self.row, [range(length, self.length)])
        self.gone &= set(range(-(-length // PAGE)))
        self.length = length
        self.check()

    def check(self) -> None:
        """Every page that it should hold is bound, and no other."""
        ids = self.storage.requests.pages[self.row]
        bound = self.storage.chain.bands[self.lifetime.name].ids.is_bound(ids).nonzero()[0].tolist()
        assert bound == sorted(set(range(-(-self.length // PAGE))) - self.gone)
        self.storage.verify()


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
@pytest.mark.parametrize("stride", [1, 3, 7])
@pytest.mark.parametrize("lifetime", KINDS, ids=str)
def test_a_page_retires_in_the_step_that_needs_it_no_more(lifetime: Lifetime, stride: int, owner: bool) -> None:
    """Token by token or in chunks; the row's ids come back with it where nobody outlives it."""
    row = Row(lifetime, owner=owner)
    for length in range(stride, 60, stride):
        row.step(length)
    assert row.gone


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
def test_a_page_is_done_when_a_row_inside_it_is(owner: bool) -> None:
    """The last of its rows to go need not be its last row."""
    row = Row(OddFirst(), owner=owner)
    for length in range(1, 60):
        row.step(length)
    assert row.gone


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
@pytest.mark.parametrize("stride", [3, 7])
def test_a_page_that_goes_in_several_pieces_retires_once(stride: int, owner: bool) -> None:
    """A step may leave rows behind in more than one piece of a page."""
    row = Row(OddFirst(), owner=owner)
    for length in range(stride, 60, stride):
        row.step(length)


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("pages", [1, 2, 3])
@pytest.mark.parametrize("lifetime", KINDS, ids=str)
def test_pages_behind_those_handed_over_retire_as_ever(lifetime: Lifetime, pages: int) -> None:
    """The last one handed over stays, the next one goes."""
    row = Row(lifetime)
    for length in range(1, 4 * pages + 1):
        row.step(length)
    row.hand_over(pages)
    for length in range(4 * pages + 1, 50):
        row.step(length)
    assert pages in row.gone or lifetime is SINKS


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
@pytest.mark.parametrize("shorter", [22, 23, 24, 25, 28])
@pytest.mark.parametrize("lifetime", KINDS, ids=str)
def test_a_shortened_row_goes_on_from_where_it_ends(lifetime: Lifetime, shorter: int, owner: bool) -> None:
    """It is looked at in its next step: pages are taken for its new tokens, and retire when they would have."""
    row = Row(lifetime, owner=owner)
    for length in range(1, 23):
        row.step(length)
    row.step(35)
    row.shorten(shorter)
    for length in range(shorter + 1, 50):
        row.step(length)


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
@pytest.mark.parametrize("lifetime", KINDS, ids=str)
def test_a_row_shortened_to_what_it_handed_over_begins_anew(lifetime: Lifetime, owner: bool) -> None:
    """What had retired of the pages behind is forgotten with them: they are taken, and retire, again.

    Not where ids retire: of those that it handed over the row names none any more that it had no need of.
    """
    row = Row(lifetime, owner=owner)
    for length in range(1, 11):
        row.step(length)
    row.hand_over(2)
    for length in range(11, 32):
        row.step(length)
    if owner and row.gone & {0, 1}:
        with nothing_changes(row.storage), pytest.raises(InvariantError, match=r"storage\.free_below_what_retired"):
            row.storage.ownership.free_rows(row.row, [range(8, 31)])
        return
    row.shorten(8)
    for length in range(9, 50):
        row.step(length)


@pytest.mark.req("WIN-1")
def test_a_row_may_end_before_what_retired_but_not_behind_it() -> None:
    """Pages from its new end on are taken again; one before it would be missing from what its next query reads."""
    row = Row(SINKS)
    for length in range(1, 23):
        row.step(length)
    row.step(31)
    assert row.gone == {2, 3}
    for shorter in (9, 12, 17):
        with nothing_changes(row.storage), pytest.raises(InvariantError, match=r"storage\.free_below_what_retired"):
            row.storage.ownership.free_rows(row.row, [range(shorter, 31)])
    row.shorten(8)
    for length in range(9, 50):
        row.step(length)


def test_a_shortened_row_asks_its_lifetime_of_what_lies_ahead_alone() -> None:
    """Never of a span that ends before it starts, though the row was looked at farther on."""

    class Forward(SinksAndWindow):
        """Tells who asks backwards."""

        def retired(self, start: int, stop: int) -> tuple[range, ...]:
            """As ever."""
            assert start <= stop
            return super().retired(start, stop)

    row = Row(Forward(5, 4))
    for length in (*range(1, 23), 31):
        row.step(length)
    row.shorten(21)
    for length in range(22, 40):
        row.step(length)


class TwoSteps:
    """Four rows behind the last multiple of six; how soon a row goes is said, if at all, by ``told``."""

    own_ids = False
    name = "two-steps"
    rank = (1, -3)

    def floor(self, lengths: IntArray) -> IntArray:
        """The first row still needed."""
        return np.maximum(lengths // 6 * 6 - 4, 0)

    def entries(self, length: int) -> int:
        """From the floor of the query before."""
        return length - int(self.floor(np.array(max(0, length - 1))))

    def retained(self, length: int) -> int:
        """From the floor on."""
        return length - int(self.floor(np.array(length)))

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        """Between the floors."""
        return (range(int(self.floor(np.array(start))), int(self.floor(np.array(stop)))),)


class Hasty(TwoSteps):
    """Tells its lengths, some of them too low: those of rows at which planning does not try it out."""

    name = "hasty"

    def reaches(self, rows: IntArray) -> IntArray:
        """Of the row itself, there."""
        return np.where((rows > 18) & (rows < 31), rows + 1, -(-(rows + 4) // 6) * 6)


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("owner", [False, True], ids=["full owns", "alone"])
@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize("lifetime", [TwoSteps(), Hasty()], ids=["told nothing", "told wrong"])
def test_a_lifetime_is_asked_for_its_floor_alone(lifetime: Lifetime, stride: int, owner: bool) -> None:
    """When pages retire is found from it, whatever else the lifetime says."""
    row = Row(lifetime, owner=owner)
    for length in range(stride, 60, stride):
        row.step(length)
    assert row.gone


def test_the_owner_retires_last() -> None:
    """Its page ids come back when nobody else is bound to them; what lives to the end is not looked at."""
    for kinds in ((SHORT, FULL), (SHORT, LONG), (Chunk(10), SHORT), (FULL,)):
        plan = storage_of(kinds).plan
        found = retirements(plan, pages=8)
        assert found[-1].name == plan.owner
        assert [plan.names[pool.column] for pool in found] == [pool.name for pool in found]
        assert [never_retires(pool) for pool in found] == [pool.name == "full" for pool in found]
