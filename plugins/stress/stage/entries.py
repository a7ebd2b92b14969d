"""On the stage: what the prefix cache has, by name. The cache is kvarena's own; here are the names and the tags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.plugins.prefix_tree import Entry as Landing
from kvarena.plugins.prefix_tree import Match, PrefixTree
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.plugins.stress.stage.props import NO_PAGES, Finding, Props, Request
from kvarena.plugins.stress.stage.told import Told
from kvarena.plugins.stress.stage.wishes import Wish, Wishes
from kvarena.terms.errors import ConfigError
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import Eviction, IntArray

EVICTABLE_LIES = "evictable_is_not_what_comes_back"
CHECKPOINT_LOST = "checkpoint_lost"


@attrs.define(eq=False)
class Entry:
    """What was inserted under a name: the first ``tokens`` of ``keys``, in the pages ``ids``.

    ``lands``: a request could start from it when it was inserted; it is gone when none can. One that nobody ever could
    start from is gone with its pages. ``held``: the locks that the operation ``lock`` has put there.
    """

    name: str
    keys: Keys
    tokens: int
    landing: Landing
    ids: IntArray
    lands: bool
    held: list[Landing] = attrs.field(factory=list)

    @property
    def locks(self) -> int:
        """How often it is locked by name."""
        return len(self.held)


class Entries:
    """Names for what is in the cache, and what each request reads of it."""

    def __init__(self, props: Props, eviction: Eviction | None = None) -> None:
        """``eviction``: what goes first; without one there is no cache."""
        self._props = props
        self._eviction = eviction
        self._tree: PrefixTree | None = None
        self._serial = 0
        self.nothing = (0,) * len(props.storage.plan.sub_pools)
        """The units of an empty cache."""
        self.known: dict[str, Entry] = {}
        """The oldest first."""
        self.wishes = Wishes(lambda: self.tree)
        self.told = Told(props)

    @property
    def tree(self) -> PrefixTree:
        """The cache, opened when it is first asked for."""
        if self._tree is None:
            if self._eviction is None:
                raise ConfigError("this stage was opened without an eviction policy, so it has no prefix cache")
            self._tree = PrefixTree(self._props.storage, self._eviction)
        return self._tree

    @property
    def is_open(self) -> bool:
        """Whether anybody has asked for the cache."""
        return self._tree is not None

    def reopen(self) -> None:
        """The arena was resized, when nothing was held: the cache is of another storage."""
        self._tree = None
        self.known.clear()
        self.wishes.known.clear()
        self.told.clear()

    def seen(self) -> dict[str, tuple[int, int]]:
        """Of each entry its rows, and how often it is locked by name."""
        return {name: (entry.tokens, entry.locks) for name, entry in self.known.items()}

    def find(self, name: str) -> Entry:
        """The entry of this name."""
        return self._props.named(self.known, name, "entry")

    def check_new(self, name: str) -> None:
        """No entry has this name.

        Raises:
            ConfigError: one has.
        """
        if name in self.known:
            raise ConfigError(f"there is an entry {name!r} already; give each a name of its own")

    def keys_for(self, shares: Mapping[str, int] | None, namespace: str | None = None) -> Keys:
        """The values of a new sequence, which begins like that of a request or an entry, if one is named.

        Raises:
            ConfigError: more than one is named, or one that is not there.
        """
        self._serial += 1
        if not shares:
            return Keys(self._serial, (), namespace or "")
        if len(shares) > 1:
            raise ConfigError(f"a sequence begins like one other, not like {', '.join(shares)}; name one")
        ((name, tokens),) = shares.items()
        return self._keys_of(name).forked(tokens, self._serial, namespace)

    def hold(self, entry: Entry) -> None:
        """Lock an entry by name."""
        landing = self._match(entry.keys, entry.tokens).entry
        if landing is None or landing.tokens != entry.tokens:
            raise ConfigError(f"nobody can start from {entry.name!r}, so there is nothing to keep for one")
        self.tree.lock(landing)
        entry.held.append(landing)

    def changed_from(self, request: Request, length: int) -> None:
        """A request's values from this length on will be others: its rows there were given back."""
        self._serial += 1
        request.keys = request.keys.forked(length, self._serial)

    # -- what goes in

    def keep(self, name: str, request: Request, tokens: int, state: int | None = None) -> Entry:
        """A request's first tokens are in the cache, under a name, and read from there by the request."""
        props, row, tree = self._props, request.row, self.tree
        reading = request.reading
        goes_on = reading is None or tokens > reading.tokens
        table, count = props.storage.requests, tokens // props.maps.paging.tokens
        own, handed = table.pages[row, :count].copy(), int(table.handed[row])
        bound = {tags.name: self._every_bound(tags.name) for tags in props.tags.token_pools}
        has_state = state is not None or props.maps.slots_name is None
        passes = goes_on and has_state and props.storage.sharing.can_start(own, tokens)  # then somebody can start there
        inserted = tree.insert(
            row, request.keys.first(tokens), tokens,
            namespace=request.keys.namespace, state=state, after=reading if goes_on else None, lock=passes,
        )  # fmt: skip
        theirs = table.pages[row, :count]
        for tags in props.tags.token_pools:  # pages that changed their id: what they hold went with them
            moved = (theirs != own) & (theirs != UNBOUND) & (own != UNBOUND)
            moved[moved] = ~bound[tags.name][theirs[moved]] & self._bound(tags.name, theirs[moved])
            tags.by_id[theirs[moved]] = tags.by_id[own[moved]]
        self.told.pages(request.keys, theirs, [at < handed or id_ != own[at] for at, id_ in enumerate(theirs.tolist())])
        found = self._match(request.keys, tokens)
        lands = found.tokens == tokens
        if state is not None and not lands:
            words = f"{name}: nobody can start from the checkpoint of {request.name} at {tokens}: {found.stopped}"
            props.findings.append(Finding(CHECKPOINT_LOST, words))
        if state is not None and inserted.state_kept:
            self.told.state(request.keys, count, state)
        entry = Entry(name, request.keys, tokens, inserted.entry, theirs.copy(), lands)
        self.known[name] = entry
        if passes:
            self._read(request, entry.landing)
        elif lands and goes_on:
            tree.lock(entry.landing)
            self.leave(request)
            self._read(request, entry.landing)
        return entry

    def ids_of(self, entry: Entry) -> dict[str, IntArray]:
        """The pages that an entry still has, by sub-pool; its state among them."""
        props, match = self._props, self._match(entry.keys, entry.tokens)
        mine = entry.ids[entry.ids != UNBOUND]
        held = {name: mine[self._bound(name, mine)] for name in props.maps.names}
        if props.maps.slots_name is not None:
            is_there = match.tokens == entry.tokens and match.state is not None
            held[props.maps.slots_name] = np.array([match.state]) if is_there else NO_PAGES
        return held

    # -- who reads

    def leave(self, request: Request) -> None:
        """The request reads the cache no more, or what it has just put there."""
        if request.reading is not None:
            self.tree.unlock(request.reading, relaxed=request.is_relaxed)
        self._read(request, None)

    def _read(self, request: Request, landing: Landing | None) -> None:
        """The request reads this from here on, locked as for a start, or nothing."""
        request.reading, request.is_relaxed, request.narrowed = landing, False, 0

    # -- what goes

    def gone(self) -> list[str]:
        """The names of what was evicted since the last time; they are free again."""
        found = [name for name, entry in self.known.items() if not entry.locks and not self._is_there(entry)]
        for name in found:
            del self.known[name]
        return found

    def give_back(self, entry: str, pieces: int) -> list[str]:
        """Give back the entry of this name; or so many pieces, all where 0. The names of what is gone."""
        before, live = self.tree.evictable(), self._live()
        if entry:
            self.tree.drop(self.find(entry).landing)
            del self.known[entry]
        else:
            asked = iter(range(1, pieces)) if pieces else None
            self.tree.evict(lambda _: asked is not None and next(asked, None) is None)
        if not entry:  # a policy may not know that this one could go by itself
            self._compare(before, live, everything=not pieces)
        return [entry] * bool(entry) + self.gone()

    # -- inside

    def _keys_of(self, name: str) -> Keys:
        holders: dict[str, Request | Entry | Wish] = {**self.wishes.known, **self.known, **self._props.requests}
        return self._props.named(holders, name, "request or entry").keys

    def _match(self, keys: Keys, tokens: int) -> Match:
        """What the cache has of so many tokens, and one to be computed."""
        return self.tree.match(keys.first(tokens + 1), namespace=keys.namespace)

    def _is_there(self, entry: Entry) -> bool:
        match = self._match(entry.keys, entry.tokens)
        return match.tokens == entry.tokens if entry.lands else match.agreed >= entry.tokens

    def _bound(self, name: str, ids: IntArray) -> IntArray:
        return np.asarray(self._props.storage.sharing.bound(name, ids))

    def _every_bound(self, name: str) -> IntArray:
        count: int = self._props.storage.chain.bands[name].grid.id_count
        return self._bound(name, np.arange(count))

    def _live(self) -> list[int]:
        return [band.live for band in self._props.storage.chain.bands.values()]

    def _compare(self, before: tuple[int, ...], live: list[int], *, everything: bool) -> None:
        """What was evictable is what came back and what is evictable still."""
        left = self.tree.evictable()
        came = [had - has for had, has in zip(live, self._live(), strict=True)]
        said = [had - has for had, has in zip(before, left, strict=True)]
        if came != said or (everything and any(left)):
            words = f"{list(before)} units were evictable, {came} came back and {list(left)} are evictable still"
            self._props.findings.append(Finding(EVICTABLE_LIES, words))


class Port:
    """The cache as admission knows it; nothing is in it until it is asked for by a request."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def evictable(self) -> Sequence[int]:
        """The units that come back if everything that is not locked is evicted."""
        return self._entries.tree.evictable() if self._entries.is_open else self._entries.nothing

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Give back what goes first, until it is enough."""
        if self._entries.is_open:
            self._entries.tree.evict(enough)

    def lock(self, entry: Any) -> None:
        """It may not be evicted; locks count."""
        self._entries.tree.lock(entry)

    def unlock(self, entry: Any) -> None:
        """One lock less."""
        self._entries.tree.unlock(entry)
