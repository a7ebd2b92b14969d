"""Reservations, copies and transfers: what they keep in place, who waits for them, and when all is free again."""

from collections.abc import Sequence

import numpy as np
import pytest
from chains import POLICIES, chain_of, everything, nothing_changes, planned, take_new

from kvarena.backends.host import HostDevice, Past
from kvarena.chain.chain import Chain
from kvarena.ledger.clearance import COPY_READ, COPY_WRITE, FIXED, NETWORK_RECEIVE, RECEIVING, SENDING
from kvarena.ledger.uses import Use
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Full, Lifetime, State, Window
from kvarena.terms.ports import Event, Stream


class Waits(HostDevice):
    """Counts the waits of the allocator's stream."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[Event] = []

    def wait(self, stream: Stream, event: Event) -> None:
        """Remembered."""
        if stream.name == "memory":
            self.waited.append(event)


def chain_with(*parts: tuple[Lifetime, int], memory: int, in_flight: int = 2) -> Chain:
    device = Waits()
    device.reserve(memory)
    return Chain(planned(*parts), memory, device=device, policies=POLICIES, slot_count=60, in_flight=in_flight)


def waited(chain: Chain) -> list[Event]:
    """The waits since the last look."""
    seen = list(chain.device.waited)  # type: ignore[attr-defined]
    chain.device.waited.clear()  # type: ignore[attr-defined]
    return seen


def counts(chain: Chain, name: str) -> tuple[int, int, int, int]:
    """Live, holes, pending, reserved."""
    shot = chain.bands[name].shot()
    return shot.live, shot.holes, shot.pending, shot.reserved


# -- copies, which a stream does


@pytest.mark.req("LED-1")
@pytest.mark.req("LED-2")
@pytest.mark.parametrize("hazard", [COPY_READ, COPY_WRITE], ids=lambda hazard: hazard.name)
def test_the_next_writer_of_a_page_under_a_copy_waits_for_the_copy(hazard) -> None:
    """A freed page is a hole at once; whoever takes it waits, another page's taker does not."""
    chain = chain_with((Full(), 10), memory=110)
    taken = take_new(chain, "full", 10)
    ids = taken.ids[np.argsort(-taken.pages["full"])]
    event = Past()
    use = chain.usage.record(hazard, {"full": ids[3:5]}, event)
    chain.free_all({"full": ids[1:2]})
    take_new(chain, "full", 1)
    assert waited(chain) == []
    chain.free_all({"full": ids[3:4]})
    assert counts(chain, "full") == (9, 1, 0, 0)
    take_new(chain, "full", 1)
    assert waited(chain) == [event]
    chain.usage.end(use)
    assert waited(chain) == [event]
    chain.free_all({"full": ids[4:5]})
    take_new(chain, "full", 1)
    assert waited(chain) == []
    assert not len(chain.ledger.uses)


@pytest.mark.req("CMP-5")
def test_bytes_that_a_band_gave_back_are_waited_for_by_the_next_band() -> None:
    """The frontier went past a page that a copy reads: the neighbour that grows over it waits."""
    chain = chain_with((State(), 40), (Full(), 10), memory=170)
    ids = take_new(chain, "full", 12).ids
    event = Past()
    chain.usage.record(COPY_READ, {"full": ids}, event)
    chain.free_all({"full": ids})
    take_new(chain, "state", 1)
    assert waited(chain) == [event]


@pytest.mark.req("CMP-1")
def test_a_move_waits_for_a_copy_that_writes_its_source_and_not_for_one_that_reads_it() -> None:
    """The vacated place of the latter is handed out behind the copy."""
    for hazard, waits in ((COPY_WRITE, 1), (COPY_READ, 0)):
        chain = chain_with((State(), 10), (Full(), 10), memory=400)
        ids = take_new(chain, "state", 6).ids
        event = Past()
        chain.usage.record(hazard, {"state": ids[5:]}, event)
        chain.free_all({"state": ids[:1]})
        assert chain.flush() == 1
        assert waited(chain) == [event] * waits
        take_new(chain, "state", 1)
        assert waited(chain) == [event]


# -- transfers, which no stream knows the end of


@pytest.mark.req("LED-2")
@pytest.mark.req("CMP-2")
@pytest.mark.parametrize("hazard", [SENDING, RECEIVING], ids=lambda hazard: hazard.name)
def test_a_page_under_a_transfer_stays_and_is_nobodys_when_it_is_freed(hazard) -> None:
    """It does not move; freed, it is reserved until the release, in no answer and in no take."""
    chain = chain_with((State(), 10), (Full(), 10), memory=130)
    ids = take_new(chain, "state", 8).ids
    use = chain.usage.record(hazard, {"state": ids[6:]})
    chain.free_all({"state": ids[:2]})
    assert chain.flush() == 0
    chain.free_all({"state": ids[6:]})
    assert counts(chain, "state") == (4, 2, 0, 2)
    assert (chain.feasible((5, 0)), chain.feasible((6, 0))) == (True, False)
    take_new(chain, "state", 5)
    assert counts(chain, "state") == (9, 0, 0, 2)
    chain.verify()
    chain.usage.end(use)
    assert counts(chain, "state") == (9, 2, 0, 0)
    assert chain.feasible((2, 0))
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"ledger\.end_of_unknown_use"):
        chain.usage.end(use)
    chain.verify()


def test_a_page_under_two_transfers_is_free_after_both() -> None:
    """Whichever ends first."""
    for first in (0, 1):
        chain = chain_with((Full(), 10), memory=110)
        ids = take_new(chain, "full", 4).ids
        uses = [chain.usage.record(SENDING, {"full": ids[some]}) for some in (slice(0, 3), slice(1, 4))]
        chain.free_all({"full": ids})
        chain.usage.end(uses[first])
        assert counts(chain, "full")[3] == 3
        chain.usage.end(uses[1 - first])
        assert counts(chain, "full") == (0, 0, 0, 0)
        chain.verify()


@pytest.mark.req("LIF-2")
def test_a_page_that_is_released_under_a_forward_pends() -> None:
    """The forward may still read what its owner gave up."""
    chain = chain_with((Full(), 10), memory=110)
    ids = take_new(chain, "full", 4).ids
    use = chain.usage.record(SENDING, {"full": ids[1:2]})
    forward = chain.ledger.steps.launch()
    chain.ledger.steps.record(forward, Past(), {})
    chain.free_all({"full": ids[1:2]})
    assert counts(chain, "full") == (3, 0, 0, 1)
    chain.usage.end(use)
    assert counts(chain, "full") == (3, 0, 1, 0)
    chain.process(forward)
    chain.verify()


@pytest.mark.req("CAP-2")
@pytest.mark.req("ALC-6")
def test_a_float_with_a_reserved_page_is_not_empty() -> None:
    """Its neighbours stay on their sides, and it may grow around the page; once released it is nowhere."""
    chain = chain_with((State(), 10), (Window(8), 10), (Full(), 10), memory=500)
    ids = take_new(chain, "full", 3).ids
    use = chain.usage.record(SENDING, {"window-8": ids[1:2]})
    page = int(chain.pages("window-8", ids[1:2])[0])
    chain.free("window-8", ids)
    assert counts(chain, "window-8") == (0, 0, 0, 1)
    assert (chain.feasible((page - 1, 0, 0)), chain.feasible((page, 0, 0))) == (True, False)
    more = chain.minters["full"].mint(4)
    taken = chain.take({"window-8": more})
    assert not isinstance(taken, Refused)
    assert page not in taken["window-8"]
    chain.free("window-8", more)
    chain.verify()
    chain.usage.end(use)
    assert counts(chain, "window-8") == (0, 0, 0, 0)
    assert chain.feasible((page, 0, 0))
    chain.verify()


class Proves:
    """A waiter for which every transfer is over when it is asked; or never."""

    def __init__(self, chain: Chain, *, ends: bool = True) -> None:
        self.chain, self.ends = chain, ends
        self.asked: list[list[str]] = []

    def wait(self, uses: Sequence[Use]) -> None:
        """Remember for what, and how many stream waits came before."""
        self.asked.append([use.hazard.name for use in uses])
        assert not self.chain.ledger.timeline.waited
        if not self.ends:
            raise KvarenaError(f"still under way: {', '.join(map(str, uses))}")


@pytest.mark.req("PDD-2")
@pytest.mark.req("ALC-3")
@pytest.mark.req("CAP-5+")
@pytest.mark.req("LIF-11")
def test_relief_waits_for_transfers_only_where_nothing_else_serves() -> None:
    """Around them first; then the host waits, before any stream does, and their pages move."""
    chain = chain_with((State(), 10), (Full(), 10), memory=220)
    waiter = chain.usage.waiter = Proves(chain)
    slots = take_new(chain, "state", 10).ids
    use = chain.usage.record(SENDING, {"state": slots[7:8]})
    forward = chain.ledger.steps.launch()
    chain.ledger.steps.record(forward, Past(), {})
    chain.free_all({"state": slots[:6]})
    take_new(chain, "full", 12)
    assert waiter.asked == []
    assert int(chain.pages("state", slots[7:8])[0]) == 8
    assert (chain.feasible((0, 4)), chain.feasible((0, 5))) == (True, False)
    chain.ledger.steps.record(chain.ledger.steps.launch(), Past(), {})  # else no stream has anything to wait for
    waited(chain)
    take_new(chain, "full", 4)
    assert waiter.asked == [["NETWORK_SEND"]]
    assert len(waited(chain)) == 1
    assert use not in chain.ledger.uses
    assert counts(chain, "state") == (4, 0, 0, 0)
    chain.verify()


@pytest.mark.req("PDD-1")
def test_a_wait_past_its_deadline_changes_nothing() -> None:
    """It names what is under way; all but the epoch is as it was, and a later try may succeed."""
    chain = chain_with((State(), 10), (Full(), 10), memory=220)
    chain.usage.waiter = Proves(chain, ends=False)
    slots = take_new(chain, "state", 10).ids
    use = chain.usage.record(SENDING, {"state": slots[9:]})
    chain.free_all({"state": slots[:6]})
    take_new(chain, "full", 10)
    *before, _, there = everything(chain)
    with pytest.raises(KvarenaError, match=r"still under way: NETWORK_SEND 1 \(1 state pages\)"):
        chain.take_new("full", 6)
    *after, _, still_there = everything(chain)
    assert (after, still_there) == (before, there)
    assert list(chain.ledger.uses) == [use]
    chain.verify()
    chain.usage.waiter = Proves(chain)
    take_new(chain, "full", 6)
    chain.verify()


@pytest.mark.req("CAP-5")
def test_without_anybody_to_wait_pages_under_transfers_stay_and_the_answer_says_so() -> None:
    """No yes that could not be kept."""
    chain = chain_with((State(), 10), (Full(), 10), memory=220)
    slots = take_new(chain, "state", 10).ids
    chain.usage.record(SENDING, {"state": slots[9:]})
    chain.free_all({"state": slots[:6]})
    take_new(chain, "full", 10)
    assert not chain.feasible((0, 1))
    assert isinstance(chain.take_new("full", 1), Refused)
    assert chain.feasible((6, 0))


@pytest.mark.req("PDD-3")
@pytest.mark.req("CMP-2")
def test_a_receive_that_is_not_published_is_left_alone_and_moves_where_nothing_else_serves() -> None:
    """A flush leaves its band; relief moves its pages without waiting for anybody, and they stay held."""
    chain = chain_with((State(), 10), (Full(), 10), memory=220)
    slots = take_new(chain, "state", 6).ids
    taken = chain.take_new("state", 4, NETWORK_RECEIVE)
    assert not isinstance(taken, Refused)
    use = chain.usage.record(RECEIVING, {"state": taken.ids}, held=True)
    chain.free_all({"state": slots})
    assert chain.flush() == 0
    take_new(chain, "full", 10)
    assert (chain.feasible((0, 6)), chain.feasible((0, 7))) == (True, False)
    take_new(chain, "full", 6)
    assert sorted(chain.pages("state", taken.ids).tolist()) == [1, 2, 3, 4]
    assert use.pages["state"].pages.tolist() == [1, 2, 3, 4]
    chain.usage.publish(use)
    assert not chain.usage.may_wait
    chain.free_all({"state": taken.ids})
    assert counts(chain, "state") == (0, 0, 0, 4)
    with pytest.raises(InvariantError, match=r"ledger\.publish_of_unknown_use"):
        chain.usage.publish(use)
    chain.usage.end(use)
    assert counts(chain, "state") == (0, 0, 0, 0)
    chain.verify()


# -- wrong input


@pytest.mark.req("CHK-1")
def test_a_use_of_what_has_no_page_or_no_end_is_named() -> None:
    """An unbound id, a copy without an event, another sub-pool's id: nothing has changed."""
    chain = chain_of(planned((State(), 10), (Full(), 10)), 220)
    ids = take_new(chain, "full", 3).ids
    with nothing_changes(chain):
        with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
            chain.usage.record(SENDING, {"full": np.array([7])})
        with pytest.raises(InvariantError, match=r"ledger\.use_without_an_end: hazard='COPY_READ'"):
            chain.usage.record(COPY_READ, {"full": ids})
        with pytest.raises(KvarenaError, match="did you mean 'full'"):
            chain.usage.record(SENDING, {"ful": ids})
    assert not len(chain.ledger.uses)
    use = chain.usage.record(FIXED, {"full": ids[:1]})
    chain.free_all({"full": ids})
    assert counts(chain, "full")[3] == 1
    chain.usage.end(use)
    assert counts(chain, "full") == (0, 0, 0, 0)
    chain.verify()


@pytest.mark.req("PDD-1")
def test_a_waiter_ends_uses_and_asks_for_nothing_else() -> None:
    """The take that waits goes on with what it knows: any other call stops by name, and the take with it."""

    class CallsBack:
        def __init__(self, act) -> None:
            self.act = act

        def wait(self, uses: Sequence[Use]) -> None:
            """Whatever it is told to do."""
            self.act(uses)

    def fresh() -> tuple[Chain, Use]:
        chain = chain_with((State(), 10), (Full(), 10), memory=220)
        slots = take_new(chain, "state", 10).ids
        use = chain.usage.record(SENDING, {"state": slots[9:]})
        chain.free_all({"state": slots[:6]})
        take_new(chain, "full", 10)
        return chain, use

    for name in ("take_new", "flush", "record"):
        chain, use = fresh()
        act = {
            "take_new": lambda _, chain=chain: chain.take_new("full", 1),
            "flush": lambda _, chain=chain: chain.flush(),
            "record": lambda _, chain=chain: chain.usage.record(SENDING, {}),
        }[name]
        chain.usage.waiter = CallsBack(act)
        with pytest.raises(InvariantError, match=r"chain\.call_from_a_waiter"):
            chain.take_new("full", 6)
        assert use in chain.ledger.uses
        chain.verify()
    chain, use = fresh()
    chain.usage.waiter = CallsBack(lambda uses, chain=chain: [chain.usage.end(each) for each in uses])
    take_new(chain, "full", 6)
    chain.verify()
