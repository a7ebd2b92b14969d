"""On the stage: what is asked, what is counted, what the cache does, and what is done to the arena as a whole."""

from collections.abc import Callable, Mapping
from typing import Any

from kvarena.admission.admission import Admission
from kvarena.chain.chain import Chain
from kvarena.planning.charges import most
from kvarena.planning.demand import RequestShape, decode_peak_pages, request_demand
from kvarena.plugins.stress.stage.props import Props
from kvarena.plugins.stress.stage.requests import Requests, free_units, take_units
from kvarena.plugins.stress.stage.shelf import Shelf
from kvarena.terms.answers import Admit, Never, Refused
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.lifetimes import Window


class Questions:
    """The verbs that ask, those of the cache, and those of the whole arena."""

    def __init__(
        self,
        props: Props,
        shelf: Shelf,
        requests: Requests,
        admission: Callable[[], Admission],
        reopen: Callable[[], None],
    ) -> None:
        """``reopen`` is called after a resize."""
        self._props = props
        self._shelf = shelf
        self._requests = requests
        self._admission = admission
        self._reopen = reopen

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "fits": self._fits, "demand": self._demand, "admit": self._admit, "counts": self._counts,
            "estimates": self._estimates, "maps": self._maps, "quiet": self.quiet, "cache": self._cache,
            "match": self._match, "lock": self._lock, "unlock": self._unlock, "evict": self._evict,
            "entries": self._entries, "flush": self._flush, "relief": self._relief, "resize": self._resize,
        }  # fmt: skip

    def quiet(self) -> list[str]:
        """After one flush: who still holds something, and what. An empty list where it is quiet."""
        props = self._props
        storage = props.storage
        storage.flush()
        chain = storage.chain
        found = [f"request {name} is open" for name in props.requests]
        found += [f"units {name} are held" for name in props.units]
        found += [f"entry {name} is cached" for name in self._shelf.entries]
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
        found += [f"{len(storage.ownership.handed_over())} pages are handed over"] * bool(
            len(storage.ownership.handed_over())
        )
        if not found:
            storage.verify()
        return found

    # -- inside

    def _fits(self, units: Mapping[str, int], evict: bool = False) -> bool:
        chain = self._props.storage.chain
        demand = _in_order(chain, units)
        return chain.feasible_after(demand, self._shelf.evictable()) if evict else chain.feasible(demand)

    def _demand(
        self, prompt: int = 1, output: int = 1, chunk: int = 0, window: int = 0, page_tokens: int = 0
    ) -> int | dict[str, int]:
        if window:
            return decode_peak_pages(Window(window), page_tokens or 1, 4 * (window + (page_tokens or 1)))
        plan, admission = self._props.storage.plan, self._admission()
        shape = RequestShape(prompt, output)
        units = request_demand(
            plan, shape, chunk_tokens=chunk or admission.chunk_tokens, slots_per_request=admission.slots_per_request
        )
        return dict(zip(plan.names, units, strict=True))

    def _admit(self, request: str, prompt: int, output: int = 1, entry: str = "") -> dict[str, Any]:
        admission, names = self._admission(), self._props.storage.plan.names
        before = len(self._shelf.evicted)
        answer = admission.ask(prompt, output)
        if isinstance(answer, Never):
            return {"answer": "never", "largest_prompt": answer.largest_prompt}
        charge = dict(zip(names, answer.charge, strict=True))
        if not isinstance(answer, Admit) or not admission.make_room(answer, entry or None):
            return {"answer": "wait", "charge": charge}
        admission.promise(answer.charge)
        self._requests.promised[request] = answer.charge
        return {"answer": "yes", "charge": charge, "evicted": self._shelf.evicted[before:]}

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

    def _cache(self, request: str, entry: str, tokens: int = -1) -> int:
        return self._shelf.keep(entry, self._props.request(request), tokens).tokens

    def _match(self, entry: str, lock: bool = True) -> int:
        found = self._shelf.find(entry)
        if lock:
            self._shelf.lock(entry)
        return found.tokens

    def _lock(self, entry: str) -> int:
        self._shelf.lock(entry)
        return self._shelf.find(entry).locks

    def _unlock(self, entry: str) -> int:
        self._shelf.unlock(entry)
        return self._shelf.find(entry).locks

    def _evict(self, entry: str = "") -> list[str]:
        before = len(self._shelf.evicted)
        if entry:
            self._shelf.remove(entry)
        else:
            self._shelf.evict(lambda: True)
        return self._shelf.evicted[before:]

    def _entries(self) -> list[str]:
        return list(self._shelf.entries)

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
