"""Estimates: what they say, and who may not read them."""

import logging
import threading
from collections.abc import Callable

import attrs
import numpy as np
import pytest
from chains import POLICIES, chain_of, filled_up, planned, take_new, take_tokens, three_kinds

from kvarena.admission.admission import Admission
from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain
from kvarena.chain.estimates import deciding, free_bytes
from kvarena.planning.charges import Limits
from kvarena.planning.sizing import size_plan
from kvarena.policies.hole_order import NearestHoles
from kvarena.terms.answers import Admit, Refused, Wait
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Chunk, Full, State, Window
from kvarena.terms.ports import End, Holes, IntArray

pytestmark = pytest.mark.req("CAP-6")


def test_the_free_bytes_are_those_that_no_unit_holds() -> None:
    """The same from the chain, from a snapshot, and in a refusal's sum."""
    chain = three_kinds()
    whole = chain.estimates.free_bytes
    take_tokens(chain, 9, "window-8")

    assert whole == len(chain.usable)
    assert chain.estimates.free_bytes == free_bytes(chain.snapshot()) == whole - 9 * (4 + 10)
    refused = chain.take_new("full", 90)
    assert isinstance(refused, Refused)
    assert refused.free_bytes == chain.estimates.free_bytes


@pytest.mark.parametrize(
    ("name", "units", "binds"),
    [("state", 8, "ids"), ("window-8", 100, "ids"), ("full", 94, "the index space")],
)
def test_an_empty_chain_could_take_what_bytes_pages_and_ids_allow(name: str, units: int, binds: str) -> None:
    """Whichever of the three is scarcest says how many."""
    chain = three_kinds()
    grid = chain.bands[name].grid
    bounds = {
        "ids": grid.id_count,
        "the index space": len(chain.usable) // grid.unit_bytes,
    }
    assert chain.estimates.available(name) == min(bounds.values()) == bounds[binds] == units


def test_the_index_space_binds_where_a_grid_starts_late_and_ends_early() -> None:
    """895 bytes would hold 22 rows of 40; on their own grid there are 21 pages."""
    chain = chain_of(planned((State(), 50), (Window(8), 35), (Full(), 40)), 1000)
    assert len(chain.usable) // 40 == 22
    assert chain.estimates.available("full") == 21
    assert chain.feasible((0, 0, 21))
    assert not chain.feasible((0, 0, 22))


def test_an_estimate_counts_the_same_bytes_for_everybody() -> None:
    """What one sub-pool takes is missing in the others' estimates, and each looks as if all were its own."""
    chain = three_kinds()
    before = chain.estimates.available("full")
    take_new(chain, "state", 8)

    assert before - chain.estimates.available("full") == 8 * 50 // 10
    assert chain.estimates.available("state") == 0
    both = (0, chain.estimates.available("window-8"), chain.estimates.available("full"))
    assert not chain.feasible(both)


def test_an_estimate_is_no_promise() -> None:
    """A fixed page in the middle: the bytes are there, the estimate says so, and the take is refused."""
    chain = chain_of(planned((State(), 50), (Full(), 10)), 1000, slots=40)
    slots = take_new(chain, "state", 10).ids
    chain.usage.fix("state", slots[9:])
    chain.free("state", slots[:9])
    count = chain.estimates.available("full")

    assert count > 45
    assert isinstance(chain.take_new("full", count), Refused)


def test_usage_is_the_share_that_is_held() -> None:
    """0 when empty, 1 when nothing more can be had, of the arena or of a sub-pool."""
    chain = chain_of(planned((Full(), 10)), 1000)
    assert chain.estimates.usage() == chain.estimates.usage("full") == 0
    take_new(chain, "full", 99)
    assert chain.estimates.usage() == chain.estimates.usage("full") == 1
    chain.free_all({"full": np.arange(33)})
    assert chain.estimates.usage("full") == pytest.approx(2 / 3)


def test_a_sub_pool_without_bytes_is_bound_by_its_ids() -> None:
    """No byte stands in its way."""
    chain = chain_of(planned((Chunk(10), 5), (Window(8), 4)), 1000)
    owner = chain.plan.owner
    assert owner is not None
    assert chain.bands[owner].grid.unit_bytes == 0
    assert chain.estimates.available(owner) == chain.bands[owner].grid.id_count
    assert chain.estimates.usage(owner) == 0


def test_an_unknown_sub_pool_is_an_error_that_helps() -> None:
    """The nearest name is told."""
    with pytest.raises(KvarenaError, match="did you mean 'full'"):
        three_kinds().estimates.available("ful")


# -- who may not read them

READS: dict[str, Callable[[Chain], object]] = {
    "free_bytes": lambda chain: chain.estimates.free_bytes,
    "available": lambda chain: chain.estimates.available("full"),
    "usage": lambda chain: chain.estimates.usage(),
}


@attrs.define
class Spy:
    """A policy, and a cache, that read an estimate wherever they are asked. Quiet until ``chain`` is set."""

    read: Callable[[Chain], object]
    chain: Chain | None = None
    name = "spy"

    def look(self) -> None:
        """Read."""
        if self.chain is not None:
            self.read(self.chain)

    def moves(self, live: int, holes: int) -> int:
        """A compaction policy."""
        self.look()
        return 0

    def start(self, lowest: int, highest: int) -> int:
        """A placement policy."""
        self.look()
        return lowest

    def evictable(self) -> tuple[int, ...]:
        """A cache."""
        self.look()
        return (0, 0, 9)

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Nothing is evicted."""
        self.look()

    def lock(self, entry: object) -> None:
        """Nothing is locked."""

    def unlock(self, entry: object) -> None:
        """Nothing is unlocked."""


class SpyHoles(NearestHoles):
    """A hole order that reads an estimate when it hands out holes. ``spy`` is set afterwards."""

    spy: Spy

    def take(self, count: int) -> np.ndarray:
        """Read, then the usual."""
        self.spy.look()
        return super().take(count)


@attrs.frozen
class SpyOrder:
    """Opens ``SpyHoles``."""

    spy: Spy
    name = "spy"

    def open(self, page_count: int, end: End) -> Holes:
        """The holes of a band."""
        holes = SpyHoles(page_count, end, 0)
        holes.spy = self.spy
        return holes


def spied(read: Callable[[Chain], object], checks: int) -> tuple[Chain, Spy]:
    """A chain with holes in its ends, all of whose policies read an estimate from now on."""
    spy = Spy(read)
    policies = attrs.evolve(POLICIES, hole_order=SpyOrder(spy), compaction=spy, placement=spy)
    chain = chain_of(
        planned((State(), 50), (Window(8), 4), (Full(), 10)), 1000, policies=policies, checks=checks,
        device=HostDevice(),
    )  # fmt: skip
    ids = take_tokens(chain, 20)
    chain.free_all({"full": ids[np.argsort(chain.pages("full", ids))][10:16]})
    spy.chain = chain
    return chain, spy


@attrs.frozen
class Nothing:
    """What the rows of no storage hold: one runs, and has no unit yet."""

    sub_pools: int
    rows: int
    version = 0
    open_count = 1

    def held(self) -> IntArray:
        """No unit."""
        return np.zeros((self.sub_pools, self.rows), dtype=np.int64)

    charged = held


def admission_of(chain: Chain, spy: Spy) -> Admission:
    """Admission over the chain, with the spy as its cache; a request of 5 tokens asks for 1, 5 and 5 units."""
    limits = Limits(context_tokens=64, max_running=4, mirrors=False)
    sizing = size_plan(chain.plan, 1 << 16, limits)
    return Admission(chain, sizing, Nothing(len(chain.plan.sub_pools), sizing.running), chunk_tokens=8, cache=spy)


def ask_when_full(chain: Chain, spy: Spy) -> object:
    """A question that only the cache could help with."""
    spy.chain, kept = None, spy.chain
    filled_up(chain, "full")
    spy.chain = kept
    return admission_of(chain, spy).ask(4, 2)


DECISIONS: dict[str, Callable[[Chain, Spy], object]] = {
    "take_new into holes": lambda chain, _: chain.take_new("full", 2),
    "take that places a float": lambda chain, _: chain.take({"window-8": np.arange(2)}),
    "flush": lambda chain, _: chain.flush(),
    "ask": ask_when_full,
    "make_room": lambda chain, spy: admission_of(chain, spy).make_room(Admit((0, 0, 900), evicts=True)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_an_estimate_read_inside_a_decision_raises_at_level_2(
    decide: Callable[[Chain, Spy], object], read: Callable[[Chain], object]
) -> None:
    """Whichever of the policies or the cache reads it, whichever it reads."""
    chain, spy = spied(read, checks=2)
    with pytest.raises(InvariantError, match=r"^chain\.estimate_read_in_decision: estimate='\w+' decision='\w+\.\w+'"):
        decide(chain, spy)


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_it_is_logged_once_for_each_estimate_at_level_1(
    decide: Callable[[Chain, Spy], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Two estimates read many times are two lines, and the decision is the same as without them."""
    chain, spy = spied(lambda chain: (chain.estimates.free_bytes, chain.estimates.usage()), checks=1)
    plain, quiet = spied(lambda chain: None, checks=1)
    with caplog.at_level(logging.WARNING, "kvarena"):
        answer = decide(chain, spy)
        chain.flush()
        chain.flush()

    told = [line for line in caplog.messages if "chain.estimate_read_in_decision" in line]
    assert len(told) == 2
    assert "'free_bytes'" in told[0]
    assert "'usage'" in told[1]
    assert type(answer) is type(decide(plain, quiet))
    assert plain.snapshot() == chain.snapshot()


def test_nobody_looks_at_level_0(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a line nor an error."""
    chain, spy = spied(lambda chain: chain.estimates.free_bytes, checks=0)
    with caplog.at_level(logging.DEBUG, "kvarena"):
        for decide in DECISIONS.values():
            decide(chain, spy)
    assert not [line for line in caplog.messages if "estimate" in line]


def test_outside_a_decision_everybody_may_read(caplog: pytest.LogCaptureFixture) -> None:
    """Between decisions, after one that failed, and from a thread that watches while another decides."""
    read: list[int] = []

    def watch(chain: Chain) -> None:
        watcher = threading.Thread(target=lambda: read.append(chain.estimates.free_bytes))
        watcher.start()
        watcher.join()

    chain, _ = spied(watch, checks=2)
    with pytest.raises(InvariantError, match=r"chain\.negative_demand"):
        chain.take_new("full", -1)
    chain.flush()
    with caplog.at_level(logging.DEBUG, "kvarena"):
        assert read == [chain.estimates.free_bytes]
        assert chain.estimates.available("full") > 0
    assert not caplog.messages
    assert deciding() is None


def test_units_held_are_exact_and_free_to_read() -> None:
    """A policy may look at what its sub-pool holds, inside any decision."""
    seen: list[int] = []
    chain, _ = spied(lambda chain: seen.append(chain.snapshot().bands[2].live), checks=2)
    chain.flush()
    assert seen == [14]


def test_every_method_that_decides_is_marked() -> None:
    """Seen from inside: the chain's questions and takes, and admission's, are decisions; a free is none."""
    seen: list[str | None] = []
    chain, spy = spied(lambda chain: seen.append(deciding()), checks=1)
    shot = chain.bands["full"].shot

    def look() -> object:
        seen.append(deciding())
        return shot()

    chain.bands["full"].shot = look  # type: ignore[method-assign, assignment]
    bound = np.flatnonzero(chain.bands["full"].ids.is_bound(np.arange(20)))
    chain.free("full", bound[:1])
    spy.chain = None
    assert chain.feasible((0, 0, 1))
    chain.free("full", bound[1:2])
    assert chain.feasible_after((0, 0, 1), (0, 0, 1))
    assert seen == ["Chain.feasible", "Chain.feasible_after"]
    spy.chain = chain
    assert isinstance(ask_when_full(chain, spy), Admit | Wait)
    assert "Admission.ask" in seen
