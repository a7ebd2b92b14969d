"""Takes, frees and moves while forwards are in flight: what pends, what is vacated, what waits for whom."""

import numpy as np
import pytest
from chains import POLICIES, Raw, planned, take_new

from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain
from kvarena.ledger.clearance import FORWARD, HOST_LOAD, NETWORK_RECEIVE
from kvarena.ledger.steps import Forward
from kvarena.planning.plan import plan_storage
from kvarena.policies.compaction import Lazy
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window
from kvarena.terms.ports import Event, IntArray, Policies, Stream


class Watched(HostDevice):
    """Remembers, in order, what the allocator's stream was given: waits, and work on pages."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.names: dict[Event, str] = {}

    def record(self, stream: Stream) -> Event:
        """An event that knows its stream."""
        event = super().record(stream)
        self.names[event] = stream.name
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Told."""
        self.told.append(f"{stream.name} waits {self.names[event]}")

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Told."""
        self.told.append(f"copy {sources.tolist()} to {targets.tolist()}")

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Told."""
        self.told.append(f"zero {np.sort(pages).tolist()}")


def overlapped(
    *parts: tuple[Lifetime, int], memory: int, in_flight: int = 2, max_moves: int = 64, zeroed: bool = True
) -> Chain:
    """A chain that forwards overlap; its pages are zeroed when they are handed out, or not."""
    device = Watched()
    device.reserve(memory)
    policies = Policies(POLICIES.hole_order, Lazy(max_moves=max_moves), POLICIES.placement)
    plan = planned(*parts)
    if not zeroed:
        layers = [
            Layer(i, (Part(Raw(size, zero_on_take=False), lifetime),)) for i, (lifetime, size) in enumerate(parts)
        ]
        plan = plan_storage(layers, page_tokens=1)
    return Chain(plan, memory, device=device, policies=policies, slot_count=20, in_flight=in_flight)


def launch(chain: Chain, *, unknown: bool = False, **writes: list[int]) -> Forward:
    """One forward, launched and recorded."""
    steps, device = chain.ledger.steps, chain.device
    forward = steps.launch()
    event = device.record(chain.ledger.timeline.forward)
    pages = {name: np.array(values, dtype=np.int64) for name, values in writes.items()}
    steps.record(forward, event, pages, frozenset(chain.bands) if unknown else frozenset())
    return forward


def told(chain: Chain) -> list[str]:
    """What the device was told since the last look."""
    seen = list(chain.device.told)  # type: ignore[attr-defined]
    chain.device.told.clear()  # type: ignore[attr-defined]
    return seen


def counts(chain: Chain, name: str) -> tuple[int, int, int, int]:
    """Live, holes, pending, vacated."""
    shot = chain.bands[name].shot()
    return shot.live, shot.holes, shot.pending, shot.vacated


@pytest.mark.req("LIF-1")
@pytest.mark.req("LIF-2")
def test_a_page_freed_under_a_forward_pends_and_counts_as_free() -> None:
    """Its id is back at once, nobody waits; the answer to a question is as if it were a hole."""
    chain = overlapped((Full(), 10), memory=110)
    taken = take_new(chain, "full", 10)
    first = launch(chain)
    told(chain)
    chain.free_all({"full": taken.ids[2:6]})
    assert counts(chain, "full") == (6, 0, 4, 0)
    assert chain.minters["full"].pool.free == chain.minters["full"].pool.count - 6
    assert chain.feasible((4,))
    assert not chain.feasible((5,))
    assert told(chain) == []
    chain.process(first)
    assert counts(chain, "full") == (6, 4, 0, 0)
    chain.verify()


@pytest.mark.req("LIF-7")
def test_without_a_forward_in_flight_nothing_pends() -> None:
    """Where none was ever recorded, and where all have been processed."""
    for chain in (overlapped((Full(), 10), memory=110), overlapped((Full(), 10), memory=110, in_flight=0)):
        taken = take_new(chain, "full", 10)
        if chain.ledger.steps.in_flight:
            chain.process(launch(chain))
        chain.free_all({"full": taken.ids[2:6]})
        assert counts(chain, "full") == (6, 4, 0, 0)


@pytest.mark.req("LIF-3")
@pytest.mark.req("ALC-1")
def test_a_take_settles_the_oldest_whole_batches_that_it_needs() -> None:
    """Holes first; then the stream waits the oldest forward, once, and the rest of its batch is holes."""
    chain = overlapped((Full(), 10), memory=110, in_flight=3)
    taken = take_new(chain, "full", 10)
    ids = taken.ids[np.argsort(-taken.pages["full"])]  # from the anchor on
    chain.free_all({"full": ids[4:5]})
    forwards = []
    for freed in (ids[:3], ids[3:4], ids[5:7]):
        forwards.append(launch(chain))
        chain.free_all({"full": freed})
    assert counts(chain, "full") == (3, 1, 6, 0)
    told(chain)
    take_new(chain, "full", 1)
    assert [line for line in told(chain) if "waits" in line] == []
    take_new(chain, "full", 2)
    assert [line for line in told(chain) if "waits" in line] == ["memory waits forward"]
    assert counts(chain, "full") == (6, 1, 3, 0)
    assert chain.ledger.steps.retired == 1
    chain.process(forwards[0])
    assert counts(chain, "full") == (6, 1, 3, 0)
    take_new(chain, "full", 4)
    assert counts(chain, "full") == (10, 0, 0, 0)
    assert chain.ledger.steps.retired == 3
    chain.free_all({"full": ids[7:8]})  # a settled forward that is not processed keys frees still
    assert counts(chain, "full") == (9, 0, 1, 0)
    chain.process(forwards[1])
    assert counts(chain, "full") == (9, 0, 1, 0)
    chain.process(forwards[2])
    chain.verify()


@pytest.mark.req("ALC-2")
@pytest.mark.req("CAP-5")
def test_a_refused_take_settles_nothing() -> None:
    """Pending batches, counts and the stream are as before."""
    chain = overlapped((Full(), 10), memory=110)
    ids = take_new(chain, "full", 10).ids
    launch(chain)
    chain.free_all({"full": ids[:4]})
    told(chain)
    before = chain.snapshot()
    assert isinstance(chain.take_new("full", 5), Refused)
    assert (chain.snapshot(), told(chain), chain.ledger.steps.retired) == (before, [], 0)


@pytest.mark.req("LIF-4")
def test_nothing_is_taken_freed_or_moved_between_launch_and_record() -> None:
    """At every check level, by name, and nothing changes."""
    chain = overlapped((State(), 10), (Full(), 10), memory=400)
    ids = take_new(chain, "full", 5).ids
    chain.ledger.steps.launch()
    before = chain.snapshot()
    with pytest.raises(InvariantError, match=r"forwards\.change_before_record: asked='take' launched=1"):
        chain.take_new("full", 1)
    with pytest.raises(InvariantError, match=r"forwards\.change_before_record: asked='take'"):
        chain.take({"state": np.arange(1)})
    with pytest.raises(InvariantError, match=r"forwards\.change_before_record: asked='free'"):
        chain.free_all({"full": ids})
    with pytest.raises(InvariantError, match=r"forwards\.change_before_record: asked='free'"):
        chain.free("full", ids)
    with pytest.raises(InvariantError, match=r"forwards\.change_before_record: asked='flush'"):
        chain.flush()
    assert chain.snapshot() == before


@pytest.mark.req("CMP-2")
@pytest.mark.req("CMP-5")
def test_a_flush_vacates_what_forwards_may_read_and_waits_for_none() -> None:
    """The copy runs beside them; the old places are nobody's until they are over."""
    chain = overlapped((State(), 10), (Full(), 10), memory=400)
    ids = take_new(chain, "state", 10).ids
    chain.free_all({"state": ids[1:3]})
    first = launch(chain, state=[1])
    told(chain)
    assert chain.flush() == 2
    assert told(chain) == ["copy [10, 9] to [2, 3]"]
    assert counts(chain, "state") == (8, 0, 0, 2)
    assert chain.bands["state"].stop == 11  # type: ignore[union-attr]
    assert chain.feasible((2, 0))
    chain.process(first)
    assert counts(chain, "state") == (8, 0, 0, 0)
    assert chain.bands["state"].stop == 9  # type: ignore[union-attr]
    chain.verify()


@pytest.mark.req("CMP-2")
def test_a_flush_stops_at_a_page_that_a_forward_writes() -> None:
    """Pages beyond it move, it and those before it do not."""
    chain = overlapped((State(), 10), (Full(), 10), memory=400)
    ids = take_new(chain, "state", 10).ids
    chain.free_all({"state": ids[:4]})
    launch(chain, state=[9])
    told(chain)
    assert chain.flush() == 1
    assert told(chain) == ["copy [10] to [1]"]
    assert chain.flush() == 0


@pytest.mark.req("CMP-4")
@pytest.mark.req("LIF-6")
def test_nothing_moves_where_a_forward_may_write_anything() -> None:
    """Until it is over; a take that needs the moves waits for it instead."""
    chain = overlapped((State(), 10), (Full(), 10), memory=240)
    ids = take_new(chain, "state", 10).ids
    take_new(chain, "full", 10)
    chain.free_all({"state": ids[:4]})
    forward = launch(chain, unknown=True)
    told(chain)
    assert chain.flush() == 0
    assert told(chain) == []
    take_new(chain, "full", 4)
    assert told(chain)[:2] == ["memory waits forward", "copy [10, 9, 8, 7] to [1, 2, 3, 4]"]
    chain.process(forward)
    assert counts(chain, "state") == (6, 0, 0, 0)
    chain.verify()


@pytest.mark.req("CMP-2")
def test_a_band_with_pending_pages_only_absorbs() -> None:
    """No page of it moves; and its frontier does not retreat over what pends."""
    chain = overlapped((State(), 10), (Full(), 10), memory=400)
    ids = take_new(chain, "state", 10).ids
    chain.free_all({"state": ids[:2]})
    forward = launch(chain)
    chain.free_all({"state": ids[8:]})
    assert chain.flush() == 0
    assert counts(chain, "state") == (6, 2, 2, 0)
    assert chain.bands["state"].stop == 11  # type: ignore[union-attr]
    chain.process(forward)
    assert chain.bands["state"].stop == 9  # type: ignore[union-attr]
    assert chain.flush() == 2


@pytest.mark.req("LED-3")
@pytest.mark.req("CMP-5")
@pytest.mark.parametrize(
    ("actor", "zeroed", "waits"),
    [(FORWARD, True, True), (FORWARD, False, False), (HOST_LOAD, True, False), (NETWORK_RECEIVE, False, True)],
    ids=["zeroed for a forward", "a forward", "a load", "a peer"],
)
def test_holes_come_before_vacated_pages_and_the_actor_says_who_waits(actor, zeroed: bool, waits: bool) -> None:
    """A forward and a load come behind the forward that reads them anyway; zeroing does not, and a peer must not."""
    chain = overlapped((State(), 10), (Full(), 10), memory=400, max_moves=1, zeroed=zeroed)
    ids = take_new(chain, "state", 10).ids
    chain.free_all({"state": ids[1:3]})
    launch(chain)
    assert chain.flush() == 1
    assert counts(chain, "state") == (8, 1, 0, 1)
    told(chain)
    assert not isinstance(chain.take_new("state", 1, actor), Refused)
    zeroes = zeroed and actor is not HOST_LOAD
    assert (counts(chain, "state"), told(chain)) == ((9, 0, 0, 1), ["zero [3]"] * zeroes)
    assert not isinstance(chain.take_new("state", 1, actor), Refused)
    assert counts(chain, "state") == (10, 0, 0, 0)
    assert told(chain) == ["memory waits forward"] * waits + ["zero [10]"] * zeroes


@pytest.mark.req("ALC-3")
def test_relief_settles_everything_before_it_moves_anything() -> None:
    """Host counts first, then one wait for the newest forward, then moves; what moved is a hole at once."""
    chain = overlapped((State(), 20), (Window(8), 10), (Full(), 10), memory=480)
    slots = take_new(chain, "state", 10).ids
    ids = take_new(chain, "full", 10).ids
    launch(chain)
    chain.free("window-8", ids[:5])
    second = launch(chain)
    chain.free_all({"state": slots[:3]})
    told(chain)
    answer = chain.feasible((0, 4, 4))
    taken = chain.take_new("full", 4)
    assert answer is not isinstance(taken, Refused)
    said = told(chain)
    assert [line for line in said if "waits" in line] == ["memory waits forward"]
    assert said[0] == "memory waits forward"
    assert all(sum(counts(chain, name)[2:]) == 0 for name in chain.bands)
    assert chain.ledger.steps.retired == second.number
    chain.verify()


@pytest.mark.req("LIF-10")
@pytest.mark.req("CAP-2")
def test_decisions_do_not_change_when_an_event_comes() -> None:
    """A snapshot, an answer and the pages that a take chooses are the same before and after."""

    class Slow:
        has_come = False

        def done(self) -> bool:
            """When it is said."""
            return self.has_come

    seen = []
    for has_come in (False, True):
        chain = overlapped((State(), 10), (Full(), 10), memory=300)
        ids = take_new(chain, "full", 10).ids
        forward, event = chain.ledger.steps.launch(), Slow()
        event.has_come = has_come
        chain.device.names[event] = "slow"  # type: ignore[attr-defined]
        chain.ledger.steps.record(forward, event, {})
        chain.free_all({"full": ids[:6]})
        before = (chain.snapshot(), chain.feasible((0, 12)))
        taken = take_new(chain, "full", 9)
        seen.append((before, taken.pages["full"].tolist(), chain.snapshot(), told(chain)))
    assert seen[0] == seen[1]
