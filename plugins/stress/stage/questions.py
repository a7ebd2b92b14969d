"""On the stage: what is asked, what is counted, and what is done to the arena as a whole."""

from collections.abc import Callable, Mapping
from typing import Any

from kvarena.admission.admission import Admission
from kvarena.chain.chain import Chain
from kvarena.planning.charges import most
from kvarena.planning.demand import RequestShape, decode_peak_pages, request_demand
from kvarena.plugins.stress.stage.entries import Entries
from kvarena.plugins.stress.stage.props import Props
from kvarena.plugins.stress.stage.requests import Requests, free_units, take_units
from kvarena.terms.answers import Admit, Never, Refused
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.lifetimes import Window


class Questions:
    """The verbs that ask, and those of the whole arena."""

    def __init__(
        self,
        props: Props,
        entries: Entries,
        requests: Requests,
        admission: Callable[[], Admission],
        reopen: Callable[[], None],
    ) -> None:
        """``reopen`` is called after a resize."""
        self._props = props
        self._entries = entries
        self._requests = requests
        self._admission = admission
        self._reopen = reopen

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "fits": self._fits, "demand": self._demand, "admit": self._admit, "counts": self._counts,
            "estimates": self._estimates, "maps": self._maps, "quiet": self.quiet, "flush": self._flush,
            "relief": self._relief, "resize": self._resize,
        }  # fmt: skip

    def quiet(self) -> list[str]:
        """After one flush: who still holds something, and what. An empty list where it is quiet."""
        props = self._props
        storage = props.storage
        storage.flush()
        chain, wishes = storage.chain, self._entries.wishes.known.items()
        found = [f"request {name} is open" for name in props.requests]
        found += [f"units {name} are held" for name in props.units]
        found += [f"entry {name} is cached" for name in self._entries.known]
        found += [f"request {name} waits with what it matched locked" for name, wish in wishes if wish.locked]
        if self._entries.is_open and self._entries.tree.stats().entries:
            found.append(f"the cache holds {self._entries.tree.stats().units} units")
        steps, uses = chain.ledger.steps, chain.ledger.uses
        found += [f"{steps.flying} forwards are in flight"] if steps.flying or steps.is_open else []
        found += [f"the ledger holds {use}" for use in uses]
        for shot in chain.snapshot().bands:
            sums = {word: getattr(shot, word) for word in ("live", "holes", "pending", "vacated", "reserved")}
            found += [f"{shot.name} has {count} {word}" for word, count in sums.items() if count]
            if shot.fixed_stop > shot.fixed_start:
                found.append(f"{shot.name} has fixed pages")
        for name, minter in chain.minters.items():
            if minter.pool.free != minter.pool.count:
                found.append(f"{minter.pool.count - minter.pool.free} ids of {name} are out")
        if storage.requests.free_count != len(storage.requests):
            found.append(f"{len(storage.requests) - storage.requests.free_count} request rows are open")
        for ids, what in ((storage.ownership.handed_over(), "pages"), (storage.ownership.slots.ids(), "state slots")):
            found += [f"{len(ids)} {what} are handed over"] * bool(len(ids))
        if not found:
            storage.verify()
        return found

    # -- inside

    def _fits(self, units: Mapping[str, int], evict: bool = False) -> bool:
        chain = self._props.storage.chain
        demand = _in_order(chain, units)
        return chain.feasible_after(demand, self._entries.tree.evictable()) if evict else chain.feasible(demand)

    def _demand(
        self,
        prompt: int = 1,
        output: int = 1,
        *,
        chunk: int = 0,
        cached: int = 0,
        window: int = 0,
        page_tokens: int = 0,
    ) -> int | dict[str, int]:
        if window:
            return decode_peak_pages(Window(window), page_tokens or 1, 4 * (window + (page_tokens or 1)))
        plan, limits = self._props.storage.plan, self._props.storage.sizing.limits
        units = request_demand(
            plan, RequestShape(prompt, output, cached), chunk_tokens=chunk or self._admission().prices.chunk_tokens,
            slots_per_request=limits.slots_per_request, grid=limits.grid,
        )  # fmt: skip
        return dict(zip(plan.names, units, strict=True))

    def _admit(self, request: str, prompt: int, output: int = 1, clip: bool = False) -> dict[str, Any]:
        admission, names = self._admission(), self._props.storage.plan.names
        if request in self._requests.promised:
            raise ConfigError(f"{request} was admitted before; take its rows, or abort it")
        output = admission.clip(prompt, output) if clip else output
        if clip and not output:
            return {"answer": "never", "largest_prompt": admission.largest_prompt(1)}
        wish = self._entries.wishes.known.get(request)
        match = self._entries.wishes.look_again(wish, prompt) if wish is not None else None
        reading, cached = (match.entry, match.tokens) if match is not None else (None, 0)
        answer = admission.ask(prompt, output, cached_tokens=cached, reading=reading)
        if isinstance(answer, Never):
            return {"answer": "never", "largest_prompt": answer.largest_prompt}
        charge = dict(zip(names, answer.charge, strict=True))
        if not isinstance(answer, Admit) or not admission.make_room(answer, reading):
            self._entries.gone()
            return {"answer": "wait", "charge": charge}
        if wish is not None and reading is not None:
            if wish.locked is not None:
                self._entries.tree.unlock(wish.locked)  # admission has locked it by itself
            wish.locked = reading
        admission.promise(answer.charge)
        self._requests.promised[request] = answer.charge
        said = {"answer": "yes", "charge": charge, "output": output, "cached": cached, "evicted": self._entries.gone()}
        return said if answer.chunk_tokens is None else {**said, "chunk": answer.chunk_tokens}

    def _counts(self, sub_pool: str = "") -> dict[str, Any]:
        storage = self._props.storage
        chain, every = storage.chain, storage.stats()
        names = [sub_pool] if sub_pool else list(every)
        if sub_pool and sub_pool not in every:
            raise ConfigError(f"there is no sub-pool {sub_pool!r}; {nearest(sub_pool, every)}")
        counts = {name: {**every[name], "free": free_of(chain, name)} for name in names}
        return dict(counts[sub_pool]) if sub_pool else counts

    def _estimates(self) -> dict[str, int]:
        estimates = self._props.storage.chain.estimates
        available = {name: estimates.available(name) for name in self._props.storage.plan.names}
        return {**available, "free_bytes": estimates.free_bytes}

    def _maps(self) -> dict[str, dict[str, int]]:
        """How many ids each sub-pool's minter can ever give, and how long the map is."""
        chain = self._props.storage.chain
        minted = {name: minter.pool.count for minter in chain.minters.values() for name in minter.names}
        return {name: {"ids": minted[name], "length": band.grid.id_count} for name, band in chain.bands.items()}

    def _flush(self) -> int:
        return self._props.storage.flush()

    def _relief(self, units: Mapping[str, int]) -> int | Refused:
        """Rearrange as for a take, and give it back: the pages moved."""
        props = self._props
        before = props.storage.chain.counters.moves
        ids = take_units(props, units)
        if isinstance(ids, Refused):
            return ids
        free_units(props, ids)
        return props.storage.chain.counters.moves - before

    def _resize(self, memory: int | str) -> int:
        self._props.storage.resize(memory)
        self._props.reopen()
        self._reopen()
        return self._props.storage.sizing.arena_bytes


def free_of(chain: Chain, name: str) -> int:
    """How many units of a sub-pool a take would get now."""
    at = list(chain.bands).index(name)

    def fits(count: int) -> bool:
        return chain.feasible(tuple(count if place == at else 0 for place in range(len(chain.bands))))

    return most(fits, chain.bands[name].grid.id_count)


def _in_order(chain: Chain, units: Mapping[str, int]) -> tuple[int, ...]:
    """Units per sub-pool in chain order."""
    unknown = sorted(set(units) - set(chain.bands))
    if unknown:
        raise ConfigError(f"there is no sub-pool {unknown[0]!r}; {nearest(unknown[0], chain.bands)}")
    return tuple(units.get(name, 0) for name in chain.bands)
