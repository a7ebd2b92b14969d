"""Any order of takes, frees, fixes and flushes on real bytes, beside a model that knows ids, tags and sums.

The model is a dictionary: sub-pool and id -> tag. After each rule everything that the chain says is compared with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from chain_model import ChainModel
from chains import any_chain, everything, nothing_changes, unit
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarena.chain.chain import Chain
from kvarena.planning.pricing import feasible
from kvarena.policies.compaction import Eager
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError


def holding(choices: Callable[["ChainMachine", str], object]) -> Callable[..., Any]:
    """The rule is drawn only where a sub-pool has such ids."""
    return precondition(lambda self: any(choices(self, name) for name in self.tags))


class ChainMachine(ChainModel, RuleBasedStateMachine):
    """Every page gets a tag when it is taken; wherever it moves, its id finds the tag again."""

    @initialize(chain=any_chain())
    def build(self, chain: Chain) -> None:
        self.open(chain)

    # -- takes

    @rule(data=st.data(), count=st.integers(0, 12) | st.sampled_from((10**3, 2**31, 10**18)))
    def take_new(self, data: st.DataObject, count: int) -> None:
        """Minted and bound in every sub-pool that shares the ids, exactly when ``feasible`` says so; or absurd."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        self.taking_new(minter, count)

    @rule(data=st.data(), count=st.integers(1, 12))
    def take_a_subset(self, data: st.DataObject, count: int) -> None:
        """Ids minted by hand, bound in the sub-pools that were chosen and in no other."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        chosen = [name for name in self.names[minter] if data.draw(st.booleans())]
        ids = self.chain.minters[minter].mint(count)
        assert (ids is None) == (count > self.ids_left(minter))
        if ids is None:
            return
        if chosen and self.taking(dict.fromkeys(chosen, ids)):
            self.out[minter] |= set(ids.tolist())
        else:
            self.chain.minters[minter].give_back(ids)

    @rule(data=st.data())
    def bind_again(self, data: st.DataObject) -> None:
        """Ids that are out are bound in sub-pools that have let them go."""
        demand = {}
        for minter, names in self.names.items():
            for name in names:
                lacking = sorted(self.out[minter] - self.tags[name].keys())
                if lacking:
                    ids = data.draw(st.lists(st.sampled_from(lacking), unique=True, max_size=12))
                    demand[name] = np.array(ids, dtype=np.int64)
        self.taking(demand)

    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """As many as ``feasible`` allows, to the last unit, whatever must be moved for it; one more is refused."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        count, most = 0, self.ids_left(minter)
        while count < most and self.chain.feasible(self.counts(dict.fromkeys(self.names[minter], count + 1))):
            count += 1
        assert self.taking_new(minter, count)
        assert not self.taking_new(minter, 1)

    @rule(data=st.data())
    def fill_a_subset(self, data: st.DataObject) -> None:
        """The same with ids minted by hand, for some of the sub-pools that share them: the others get in the way."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        chosen = [name for name in self.names[minter] if data.draw(st.booleans())]
        if not chosen:
            return
        count, most = 0, self.ids_left(minter)
        while count < most and self.chain.feasible(self.counts(dict.fromkeys(chosen, count + 1))):
            count += 1
        ids = self.chain.minters[minter].mint(count)
        assert ids is not None
        self.out[minter] |= set(ids.tolist())
        assert self.taking(dict.fromkeys(chosen, ids))

    def taking_new(self, minter: str, count: int) -> bool:
        names, left = self.names[minter], self.ids_left(minter)
        expected = count <= left and self.chain.feasible(self.counts(dict.fromkeys(names, count)))
        before = self.before_a_take()
        taken = self.chain.take_new(minter, count)
        assert isinstance(taken, Refused) != expected
        if isinstance(taken, Refused):
            self.nothing_changed(before, dict.fromkeys(names, count))
            return False
        new = taken.ids.tolist()
        assert len(set(new)) == len(new) == count
        assert not self.out[minter] & set(new)
        self.out[minter] |= set(new)
        self.write(dict.fromkeys(names, taken.ids), taken.pages)
        return True

    def taking(self, demand: dict[str, np.ndarray]) -> bool:
        """A take of ids that were minted before."""
        counts = {name: len(ids) for name, ids in demand.items()}
        expected = self.chain.feasible(self.counts(counts))
        before = self.before_a_take()
        taken = self.chain.take(demand)
        assert isinstance(taken, Refused) != expected
        if isinstance(taken, Refused):
            self.nothing_changed(before, {name: count for name, count in counts.items() if count})
            return False
        self.write(demand, dict(taken))
        return True

    def before_a_take(self) -> tuple[object, ...]:
        self.places = self.pages()
        return everything(self.chain)

    def nothing_changed(self, before: tuple[object, ...], asked: dict[str, int]) -> None:
        assert everything(self.chain) == before
        self.refusals += 1
        for name in asked:
            self.refused[name] = self.refused.get(name, 0) + 1

    def write(self, demand: dict[str, np.ndarray], pages: dict[str, np.ndarray]) -> None:
        """The pages are clean, and tagged from here on; whatever moved for them is counted."""
        self.takes += 1
        self.count_moves()
        for name, ids in demand.items():
            assert np.array_equal(pages[name], self.chain.pages(name, ids))
            for id_ in ids.tolist():
                self.serial += 1
                assert id_ not in self.tags[name]
                self.tags[name][id_] = self.serial
                if name in self.backed:
                    assert not unit(self.chain, name, id_).any(), "handed out with old bytes"
                    unit(self.chain, name, id_)[:] = self.pattern(name, self.serial)

    # -- frees

    @holding(lambda self, name: self.may_go(name))
    @rule(data=st.data(), spared=st.integers(0, 3))
    def free_some(self, data: st.DataObject, spared: int) -> None:
        """Any of the ids that a sub-pool may let go, or all but a few; those that none holds any more come back."""
        name = self.draw_held(data, self.may_go)
        ids = data.draw(st.lists(st.sampled_from(self.may_go(name)), unique=True, min_size=1))
        if spared:
            ids = [id_ for id_ in self.may_go(name) if id_ not in ids[:spared]]
        minter = next(minter for minter, names in self.names.items() if name in names)
        demand = tuple(data.draw(st.integers(0, 9)) for _ in self.chain.bands)
        answer = self.chain.feasible_after(demand, self.counts({name: len(ids)}))
        self.chain.free(name, np.array(ids, dtype=np.int64))
        assert self.chain.feasible(demand) == answer
        for id_ in ids:
            del self.tags[name][id_]
        done = [id_ for id_ in self.out[minter] if not any(id_ in self.tags[user] for user in self.names[minter])]
        self.chain.minters[minter].give_back(np.array(done, dtype=np.int64))
        self.out[minter] -= set(done)

    @rule(data=st.data(), spared=st.integers(0, 3))
    def free_all(self, data: st.DataObject, spared: int) -> None:
        """Ids go from wherever they are bound, and come back; what that will make room for was known before."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        names = self.names[minter]
        loose = [id_ for id_ in self.tags[minter] if not any(id_ in self.fixed[name] for name in names)]
        if not loose:
            return
        ids = data.draw(st.lists(st.sampled_from(loose), unique=True, min_size=1))
        if spared:
            ids = [id_ for id_ in loose if id_ not in ids[:spared]]
        demand = tuple(data.draw(st.integers(0, 9)) for _ in self.chain.bands)
        frees = self.counts({name: sum(id_ in self.tags[name] for id_ in ids) for name in names})
        left, ids_of = self.ids_left(minter), np.array(ids, dtype=np.int64)
        answer = self.chain.feasible_after(demand, frees)
        self.chain.free_all({minter: ids_of})
        assert self.chain.feasible(demand) == answer
        for name in names:
            for id_ in ids:
                self.tags[name].pop(id_, None)
        self.out[minter] -= set(ids)
        assert self.ids_left(minter) == left + len(ids)

    @holding(lambda self, name: name not in self.out and self.loose(name))
    @rule(data=st.data())
    def rebind(self, data: st.DataObject) -> None:
        """Pages go to other ids of the same minter that have none there: none moves, and every count is as before."""
        name = self.draw_held(data, lambda name: self.loose(name) if name not in self.out else [])
        minter = next(minter for minter, names in self.names.items() if name in names)
        targets = data.draw(st.permutations(sorted(self.out[minter] - self.tags[name].keys())))
        sources = data.draw(st.lists(st.sampled_from(self.loose(name)), unique=True, max_size=len(targets)))
        targets = targets[: len(sources)]
        snapshot, places = self.chain.snapshot(), self.pages()[name]
        self.chain.rebind(name, np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64))
        assert self.chain.snapshot() == snapshot
        assert self.chain.pages(name, np.array(targets, dtype=np.int64)).tolist() == [places[id_] for id_ in sources]
        for source, target in zip(sources, targets, strict=True):
            self.tags[name][target] = self.tags[name].pop(source)

    # -- fixed pages

    @holding(lambda self, name: name in self.backed and self.loose(name))
    @rule(data=st.data())
    def fix(self, data: st.DataObject) -> None:
        """Some pages stay where they are."""
        name = self.draw_held(data, lambda name: self.loose(name) if name in self.backed else [])
        ids = data.draw(st.lists(st.sampled_from(self.loose(name)), unique=True, min_size=1, max_size=3))
        self.chain.usage.fix(name, np.array(ids, dtype=np.int64))
        self.fixed[name] |= {id_: int(self.chain.pages(name, np.array([id_]))[0]) for id_ in ids}

    @holding(lambda self, name: self.fixed[name])
    @rule(data=st.data())
    def unfix(self, data: st.DataObject) -> None:
        """They may move again."""
        name = self.draw_held(data, lambda name: sorted(self.fixed[name]))
        ids = data.draw(st.lists(st.sampled_from(sorted(self.fixed[name])), unique=True, min_size=1))
        self.chain.usage.unfix(name, np.array(ids, dtype=np.int64))
        for id_ in ids:
            del self.fixed[name][id_]

    # -- mistakes

    @holding(lambda self, name: self.tags[name])
    @rule(data=st.data(), verb=st.sampled_from(("free", "fix", "unfix")))
    def name_wrong_ids(self, data: st.DataObject, verb: str) -> None:
        """Named twice, unbound, negative, beyond, fixed or loose where they may not be: nothing changes."""
        name = self.draw_held(data, lambda name: sorted(self.tags[name]))
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tags[name])), unique=True, min_size=1))
        room = self.chain.bands[name].grid.id_count
        wrong = [*sorted(set(range(room)) - self.tags[name].keys()), -1, room, 10**6, ids[0]]
        wrong += sorted(self.tags[name].keys() - self.fixed[name].keys() if verb == "unfix" else self.fixed[name])
        ids.append(data.draw(st.sampled_from(wrong)))
        pageless = name not in self.backed and verb != "free"  # right or wrong, none of them has a page to fix
        ids = ids[data.draw(st.integers(0, len(ids))) if pageless else 0 :]
        with self.caught("id_band.fix_of_id_without_page" if pageless else ""):
            getattr(self.chain if verb == "free" else self.chain.usage, verb)(name, np.array(ids, dtype=np.int64))

    @holding(lambda self, name: set(self.loose(name)) - set(self.may_go(name)))
    @rule(data=st.data())
    def let_go_first(self, data: st.DataObject) -> None:
        """A minter frees ids that others still have a page for, beside any others: no id is let go."""
        minter = self.draw_held(data, lambda name: set(self.loose(name)) - set(self.may_go(name)))
        ids = data.draw(st.sets(st.sampled_from(self.loose(minter))))
        ids.add(data.draw(st.sampled_from(sorted(set(self.loose(minter)) - set(self.may_go(minter))))))
        with self.caught("chain.window_segment_released"):
            self.chain.free(minter, np.array(sorted(ids), dtype=np.int64))

    @rule(data=st.data(), count=st.integers(0, 3))
    def give_back_wrongly(self, data: st.DataObject, count: int) -> None:
        """An id that is bound, not out, named twice or unknown, beside good ones: those can come back afterwards."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        source = self.chain.minters[minter]
        good = source.mint(min(count, self.ids_left(minter)))
        assert good is not None
        fresh = sorted(set(range(source.pool.count)) - self.out[minter] - set(good.tolist()))
        wrong = data.draw(st.sampled_from((*self.out[minter], *fresh, *good.tolist(), -1, source.pool.count, 10**6)))
        with self.caught(r"(id_pool.give_back_|chain.give_back_of_bound_id)"):
            source.give_back(np.append(good, wrong))
        source.give_back(good)

    @holding(lambda self, name: name in self.out and self.tags[name])
    @rule(data=st.data())
    def free_all_wrongly(self, data: st.DataObject) -> None:
        """One wrong id among good ones: no sub-pool loses any."""
        minter = self.draw_held(data, lambda name: sorted(self.tags[name]) if name in self.out else [])
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tags[minter])), unique=True, min_size=1))
        room = self.chain.bands[minter].grid.id_count
        wrong = [*sorted(set(range(room)) - self.tags[minter].keys()), -1, room, 10**6, ids[0]]
        wrong += [id_ for name in self.names[minter] for id_ in self.fixed[name]]
        ids.append(data.draw(st.sampled_from(wrong)))
        with self.caught():
            self.chain.free_all({minter: np.array(ids, dtype=np.int64)})

    @rule(data=st.data())
    def take_wrongly(self, data: st.DataObject) -> None:
        """A bound id, one that does not exist, one that nobody minted, beside ids that are good: none is taken."""
        minter = data.draw(st.sampled_from(sorted(self.chain.minters)))
        name = data.draw(st.sampled_from(self.names[minter]))
        good, room = sorted(self.out[minter] - self.tags[name].keys()), self.chain.bands[name].grid.id_count
        ids = data.draw(st.lists(st.sampled_from(good), unique=True)) if good else []
        fresh = sorted(set(range(room)) - self.out[minter])
        wrong = data.draw(st.sampled_from((*self.tags[name], *fresh, *ids, -1, room, 10**6)))
        with self.caught("chain.take_of_id_not_minted" if wrong in fresh else "band.take_of"):
            self.chain.take({name: np.array([*ids, wrong], dtype=np.int64)})

    @holding(lambda self, name: name not in self.out and self.tags[name])
    @rule(data=st.data())
    def rebind_wrongly(self, data: st.DataObject) -> None:
        """From an id without a page, a fixed one, one named twice; to one with a page, of nobody's, named twice."""
        name = self.draw_held(data, lambda name: sorted(self.tags[name]) if name not in self.out else [])
        minter = next(minter for minter, names in self.names.items() if name in names)
        bound, room = sorted(self.tags[name]), self.chain.bands[name].grid.id_count
        loose = sorted(self.out[minter] - self.tags[name].keys())
        fresh = sorted(set(range(room)) - self.out[minter])
        pairs = list(zip(self.loose(name), loose, strict=False))
        pairs = pairs[: data.draw(st.integers(0, len(pairs)))]
        twice = [(pairs[0][0], loose[-1]), (bound[-1], pairs[0][1])] if pairs else []
        good = next(iter(set(self.loose(name)) - {source for source, _ in pairs}), None)
        aims = [(good, id_) for id_ in (*bound, *fresh, -1, room)] if good is not None else []
        free = next(iter(set(loose) - {target for _, target in pairs}), None)
        from_ = [(id_, free) for id_ in (*loose, *self.fixed[name], -1, room)] if free is not None else []
        if wrong := [*twice, *aims, *from_]:
            sources, targets = zip(*pairs, data.draw(st.sampled_from(wrong)), strict=True)
            with self.caught(
                r"chain\.(window_segment_bound|rebind_onto_bound_id|rebind_of_reserved_page|take_of_id_not)"
            ):
                self.chain.rebind(name, np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64))

    @contextmanager
    def caught(self, name: str = "") -> Iterator[None]:
        with nothing_changes(self.chain), pytest.raises(InvariantError, match=f"^{name}"):
            yield

    # -- moves

    @rule()
    def flush(self) -> None:
        """What the compaction policy allows: each page moves once at most, floats not at all, spans only shrink."""
        before, self.places = self.chain.snapshot().bands, self.pages()
        epoch, so_far = self.chain.epoch, dict(self.moved)
        moved = self.chain.flush()
        self.count_moves()
        assert (moved, self.chain.epoch - epoch) == (sum(self.moved.values()) - sum(so_far.values()), moved > 0)
        for was, shot in zip(before, self.chain.snapshot().bands, strict=True):
            policy, count = self.chain.policies.compaction, self.moved[shot.name] - so_far[shot.name]
            assert count <= (0 if shot.end is None else policy.moves(was.live, was.holes))
            assert (shot.live, was.start <= shot.start, shot.stop <= was.stop) == (was.live, True, True)
            if isinstance(policy, Eager) and shot.end is not None and not self.fixed[shot.name]:
                assert shot.holes == 0

    # -- what must always hold

    @precondition(lambda self: hasattr(self, "chain"))
    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        self.chain.verify()
        owned: list[tuple[int, int]] = []
        for name, tags in self.tags.items():
            ids = np.array(list(tags), dtype=np.int64)
            size = self.chain.bands[name].grid.unit_bytes
            everyone = np.arange(self.chain.bands[name].grid.id_count)
            assert set(everyone[self.chain.bands[name].ids.is_bound(everyone)].tolist()) == tags.keys()
            for id_, page in zip(ids.tolist(), self.chain.pages(name, ids).tolist(), strict=True):
                assert self.fixed[name].get(id_, page) == page, "a fixed page moved"
                if size:
                    assert np.array_equal(unit(self.chain, name, id_), self.pattern(name, tags[id_])), (name, id_)
                    owned.append((page * size, (page + 1) * size))
        owned.sort()
        assert all(low[1] <= high[0] for low, high in pairwise(owned)), "two pages on the same bytes"
        assert all(self.chain.usable.start <= low < high <= self.chain.usable.stop for low, high in owned)
        assert not any(unit(self.chain, name, -1).any() for name in self.backed), "a sink was written"

    @precondition(lambda self: hasattr(self, "chain"))
    @invariant()
    def the_snapshot_is_what_can_be_counted(self) -> None:
        shots = tuple(self.counted(name) for name in self.chain.bands)
        snapshot = self.chain.snapshot()
        assert snapshot.bands == shots
        assert (snapshot.base, snapshot.top) == (self.chain.usable.start, self.chain.usable.stop)
        for count in (0, 1, 4):
            demand = (count,) * len(shots)
            assert self.chain.feasible(demand) == feasible(snapshot._replace(bands=shots), demand)
        counters = self.chain.counters
        assert (counters.takes, counters.refusals, counters.refused_by) == (self.takes, self.refusals, self.refused)
        assert {name: count for name, count in counters.moved_by.items() if count} == {
            name: count for name, count in self.moved.items() if count
        }
        sizes = {name: band.grid.unit_bytes for name, band in self.chain.bands.items()}
        assert counters.moves == sum(self.moved.values())
        assert counters.moved_bytes == sum(count * sizes[name] for name, count in self.moved.items())
        assert all(minter.pool.free == self.ids_left(name) for name, minter in self.chain.minters.items())

    def draw_held(self, data: st.DataObject, choices: object) -> str:
        """A sub-pool that has any such ids."""
        return data.draw(st.sampled_from([name for name in self.tags if choices(name)]))  # type: ignore[operator]


TestChainMachine = ChainMachine.TestCase
TestChainMachine.pytestmark = [
    pytest.mark.req(row)
    for row in ("ALC-1", "ALC-2", "ALC-3", "CAP-1", "CAP-4", "CAP-5", "CMP-6", "CMP-8", "IDS-2", "IDS-4")
]
TestChainMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
