"""A sub-pool with a cap: so many of its units live at once and no more, whatever the arena could hold."""

import numpy as np
import pytest
from chains import chain_of, nothing_changes, planned, take_new
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, run_forward, stepped, storage_of

from kvarena.admission.admission import Admission
from kvarena.assembly.config import StorageConfig, structure
from kvarena.planning.charges import Limits
from kvarena.planning.packing import packs
from kvarena.planning.plan import Plan, capped
from kvarena.planning.sizing import size_plan
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.errors import ConfigError, PlanError
from kvarena.terms.lifetimes import Chunk, Full, State, Window

pytestmark = pytest.mark.req("CAP-4")

ARENA = 2000


def three(**caps: int) -> Plan:
    """State units of 50 bytes, window rows of 4, full rows of 10; ``window`` stands for ``window-8``."""
    plan = planned((State(), 50), (Window(8), 4), (Full(), 10))
    return capped(plan, {name.replace("window", "window-8"): units for name, units in caps.items()})


def test_the_last_unit_under_a_cap_is_taken_and_one_more_is_not() -> None:
    """By a take that extends the band, that reuses holes, of named ids; the refusal says so, and nothing changes."""
    chain = chain_of(three(full=6, state=2), ARENA)
    assert chain.feasible((2, 0, 6))
    assert not chain.feasible((0, 0, 7))
    assert not chain.feasible((3, 0, 0))
    taken = take_new(chain, "full", 6)
    with nothing_changes(chain):
        refused = chain.take_new("full", 1)
    assert isinstance(refused, Refused)
    assert refused.reason == "full has 0 units left under its cap of 6"
    chain.free_all({"full": taken.ids[1:4]})
    assert len(chain.bands["full"].holes) == 3
    with nothing_changes(chain):
        assert isinstance(chain.take_new("full", 4), Refused)
    take_new(chain, "full", 3)
    ids = chain.minters["state"].mint(3)
    assert ids is not None
    with nothing_changes(chain):
        assert isinstance(chain.take({"state": ids}), Refused)
    assert not isinstance(chain.take({"state": ids[:2]}), Refused)
    chain.verify()


def test_a_cap_on_one_kind_of_shared_ids_stops_the_take_of_all() -> None:
    """Pages bound in two sub-pools by one id: the one with a cap decides, also when only holes are taken."""
    chain = chain_of(three(window=5), ARENA)
    first = take_new(chain, "full", 8 - 3)
    chain.free("window-8", first.ids[:2])
    take_new(chain, "full", 2)
    for count in (1, 2):
        with nothing_changes(chain):
            assert isinstance(chain.take_new("full", count), Refused)
    chain.free_all({"full": first.ids})
    assert chain.bands["window-8"].live == 2
    take_new(chain, "full", 3)
    with nothing_changes(chain):
        assert chain.take_new("full", 1).reason == "window-8 has 0 units left under its cap of 5"


def test_what_is_not_capped_may_take_all_the_rest() -> None:
    """A cap sets no bytes aside."""
    chain, free = chain_of(three(state=1), ARENA), chain_of(three(), ARENA)
    count = next(count for count in range(ARENA) if not free.feasible((0, count + 1, count + 1)))
    assert chain.feasible((0, count, count))


def test_pages_that_wait_for_a_forward_are_not_live() -> None:
    """What was freed under a forward in flight counts as free under the cap as well."""
    storage = storage_of((FULL,), memory=4000, forwards_in_flight=1, caps={"full": 6})
    row = storage.open()
    assert isinstance(row, int)
    run_forward(storage, stepped(storage, (row, 24)))
    assert not storage.chain.feasible((1,))
    storage.close(row)
    assert storage.chain.bands["full"].pending.count == 6
    assert storage.chain.feasible((6,))
    assert not storage.chain.feasible((7,))
    take_new(storage.chain, "full", 6)
    with nothing_changes(storage.chain):
        assert isinstance(storage.chain.take_new("full", 1), Refused)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 30), st.integers(1, 30)),
    st.lists(st.tuples(st.booleans(), st.sampled_from(["state", "full"]), st.integers(0, 12)), max_size=30),
    st.tuples(st.integers(0, 9), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)),
)
def test_a_capped_chain_says_no_exactly_where_a_free_one_does_or_the_cap_is_passed(
    caps: tuple[int, int, int],
    steps: list[tuple[bool, str, int]],
    demand: tuple[int, int, int],
    frees: tuple[int, int, int],
) -> None:
    """After any takes and frees: a take is refused if it is without caps, or if more would live than the cap says."""
    names = ("state", "window-8", "full")
    chain = chain_of(capped(three(), dict(zip(names, caps, strict=True))), ARENA, slots=40)
    twin = chain_of(three(), ARENA, slots=40)
    held: dict[str, list[int]] = {"state": [], "full": []}
    for taking, minter, count in steps:
        if not taking:
            gone = np.array(held[minter][:count], dtype=np.int64)
            del held[minter][:count]
            for each in (chain, twin):
                each.free_all({minter: gone})
            continue
        over = any(
            chain.bands[name].live + count > cap
            for name, cap in zip(names, caps, strict=True)
            if (name == "state") == (minter == "state")
        )
        fits = twin.feasible((count, 0, 0) if minter == "state" else (0, count, count))
        taken = chain.take_new(minter, count)
        assert isinstance(taken, Refused) == (over or not fits)
        if not isinstance(taken, Refused):
            same = take_new(twin, minter, count)
            assert taken.ids.tolist() == same.ids.tolist()
            held[minter] += taken.ids.tolist()
        chain.verify()
    live = [chain.bands[name].live for name in names]
    under = all(has + asked <= cap for has, asked, cap in zip(live, demand, caps, strict=True))
    assert chain.feasible(demand) == (under and twin.feasible(demand))
    frees = tuple(min(has, gone) for has, gone in zip(live, frees, strict=True))
    after = all(has - gone + asked <= cap for has, gone, asked, cap in zip(live, frees, demand, caps, strict=True))
    assert chain.feasible_after(demand, frees) == (after and twin.feasible_after(demand, frees))


def test_planning_and_admission_know_of_caps() -> None:
    """An empty arena holds no more than the caps; who needs more is told never, who must wait waits."""
    plan = three(state=3, full=60)
    assert packs(plan, ARENA, (3, 60, 60))
    assert not packs(plan, ARENA, (4, 0, 0))
    assert not packs(plan, ARENA, (0, 0, 61))
    limits = Limits(context_tokens=20, mirrors=False)
    sizing = size_plan(plan, ARENA, limits)
    assert (sizing.running, sizing.tokens) == (3, 60)

    storage = storage_of((STATE, FULL), memory=4000, running=8, context=60, caps={"state": 2, "full": 6})
    admission = Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8)
    assert isinstance(admission.ask(24, 1), Admit)
    never = admission.ask(25, 1)
    assert isinstance(never, Never)
    assert never.largest_prompt == 24
    answers, stopped = admission.admit([(4, 1), (4, 1), (4, 1)])
    assert len(answers) == 2
    assert isinstance(stopped, Wait)


def test_a_config_names_caps_of_what_there_is() -> None:
    """Unknown sub-pools, those without bytes and caps that are no counts are named."""
    with pytest.raises(PlanError, match="caps: the plan has no sub-pool 'ful'; did you mean 'full'"):
        capped(three(), {"ful": 3})
    with pytest.raises(PlanError, match="caps: sub-pool 'ids' only mints ids"):
        capped(planned((Window(6), 4), (Chunk(8), 4)), {"ids": 3})
    for value, found in ((0, " of units >= 1, not 0"), (True, ", not True"), (-1, " of units >= 1, not -1")):
        with pytest.raises(ConfigError, match=rf"arena\.caps\.full: must be a whole number{found}"):
            structure(StorageConfig, {"arena": {"memory": 99, "caps": {"full": value}}}, "a.toml")
    with pytest.raises(PlanError, match=r"caps: one request holds 1 units of 'state'.*its cap is 0"):
        size_plan(capped(three(), {"state": 0}), ARENA, Limits(context_tokens=20, mirrors=False))
    with pytest.raises(PlanError, match=r"caps: one request holds 3 units of 'window-6' at once; its cap is 1"):
        storage_of((SHORT, FULL), caps={"window-6": 1})
