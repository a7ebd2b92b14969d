"""The pages of rows: what retires as they advance, what they take for new tokens, and what they give back."""

import numpy as np

from kvarena.ledger.clearance import Actor
from kvarena.storage.advance import Retirement, never_retires
from kvarena.storage.iteration_ids import Maps
from kvarena.terms.answers import Refused
from kvarena.terms.doors import whole
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import any_of
from kvarena.terms.numbers import UNBOUND, constant, spread
from kvarena.terms.ports import IntArray

ONE = constant(1)


class Growth:
    """Pages appended to rows, and let go of.

    Three ways to grow or shrink:  advance  what no query from its present length on needs retires, then pages up to
                                            the new length are taken.
                                   fill     an empty row gets the pages that it would have at a length, in one take;
                                            ``empty`` undoes it.
                                   cut      whole pages beyond a length come back.
    Always:  page_counts == the pages that cover the length, or the reserved one where drafts are open
    """

    def __init__(self, maps: Maps, retirements: tuple[Retirement, ...]) -> None:
        self._maps = maps
        self._retirements = retirements
        self._owner = maps.chain.plan.owner
        self._retiring = tuple(pool for pool in retirements if not never_retires(pool))
        self._looks_back = any(not pool.in_order for pool in self._retiring)
        self.owner_retires = any(pool.name == self._owner for pool in self._retiring)

    def advance(self, rows: IntArray, starts: IntArray, lengths: IntArray) -> Refused | None:
        """Retire and take for rows that reach a boundary between ``starts``, their lengths, and ``lengths``."""
        table = self._maps.table
        if any_of(lengths < starts):
            fail("storage.step_backwards", rows=rows, lengths=lengths)
        if not self._retirements:
            return None
        self.check_length(int(lengths[lengths.argmax()]))
        paging = self._maps.paging
        stops = paging.covering(lengths)
        for pool in self._retiring:
            retired = pool.newly_retired(table, rows, starts)
            if retired is not None:
                self._retire(pool.name, retired.places)
                if retired.given is not None and len(retired.given):
                    self._forget(retired.given)
                pool.note(table, retired)
        if self._looks_back:
            table.looked_at[rows] = starts
        refused = self._take(rows, stops)
        if refused is not None:
            return refused
        due = paging.starts(stops)
        for pool in self._retiring:
            due = np.minimum(due, pool.due(table, rows))
        table.due[rows] = due
        return None

    def fill(self, row: int, tokens: int, actor: Actor) -> dict[str, IntArray] | Refused:
        """The pages of an empty row's first tokens, for ``actor`` to write: in each sub-pool those still needed then.

        Returns:
            The ids by sub-pool, in the order of their positions, its state slots among them; or the refusal, and
            nothing has changed.

        Raises:
            KvarenaError: a row cannot hold so many tokens; nothing has changed.
        """
        self._maps.check_current()
        table, chain = self._maps.table, self._maps.chain
        tokens = whole(tokens, "tokens to bring in")
        invariant("storage.copy_into_free_row", table.is_open(np.array([row])), row=row)
        table.away.check_none(np.array([row]), asked_by="a copy into a row")
        count = -(-tokens // self._maps.paging.tokens) if self._retirements else 0
        empty = not table.lengths[row] and not table.page_counts[row]
        invariant("storage.copy_into_used_row", empty, row=row, length=int(table.lengths[row]))
        invariant("storage.copy_of_nothing", tokens > 0, row=row, tokens=tokens)
        self.check_length(tokens)
        self._maps.check_states(np.array([row]), asked_by="a copy into a row")
        kept = {pool.name: pool.kept(tokens, count) for pool in self._retirements}
        places = np.full(count, UNBOUND, dtype=np.int64)
        if self._owner is not None:
            ids = chain.minters[self._owner].mint(len(kept[self._owner]))
            if ids is None:
                return self._no_ids(self._owner, len(kept[self._owner]))
            places[kept[self._owner]] = ids
            refused = self._bind(ids, {name: places[positions] for name, positions in kept.items()}, actor)
            if refused is not None:
                return refused
        table.put(row, places, tokens)
        for pool in self._retirements:
            table.retired[pool.column, row] = count - len(kept[pool.name])
        filled = {name: places[positions] for name, positions in kept.items() if len(positions)}
        if self._maps.slots_name is not None:
            filled[self._maps.slots_name] = table.slots[row, : table.live_slots].copy()
        return filled

    def empty(self, row: int) -> None:
        """Give back every page of a row that ``fill`` filled; its length is 0 again."""
        table = self._maps.table
        if self._owner is not None:
            ids = table.flat[table.places(np.array([row]), own=True)]
            self._maps.chain.free_all({self._owner: ids[ids != UNBOUND]})
        table.retired[:, row] = 0
        table.shorten(row, 0, 0)

    def cut(self, rows: IntArray, lengths: IntArray) -> None:
        """Give back the whole pages of these rows that lie beyond their new lengths."""
        if self._owner is None or not len(rows):
            return
        table, paging = self._maps.table, self._maps.paging
        stops, counts = paging.covering(lengths), table.page_counts[rows]
        longer = (counts > stops).nonzero()[0]
        if not len(longer):
            return
        rows, stops, counts = rows[longer], stops[longer], counts[longer]
        start, gone = table.firsts[rows], counts - stops
        first = start + stops
        places = spread(first, gone, gone.cumsum())
        self._maps.chain.free_all({self._owner: table.flat[places]})
        self._forget(places)
        table.page_counts[rows] = stops
        table.version += 1
        table.tails[rows] = table.flat[np.maximum(first - ONE, start)]
        table.due[rows] = np.minimum(table.due[rows], paging.starts(stops))

    def check_length(self, tokens: int) -> None:
        """A row can hold so many tokens.

        Raises:
            KvarenaError: it cannot; with the most that it can.
        """
        most = self._maps.table.pages_per_row * self._maps.paging.tokens
        if self._retirements and tokens > most:
            raise KvarenaError(
                f"a sequence of {tokens:,} tokens is longer than the "
                f"{most:,} that a request row can hold; raise context_tokens"
            )

    # -- inside

    def _no_ids(self, owner: str, count: int) -> Refused:
        chain = self._maps.chain
        free = chain.minters[owner].pool.free
        return Refused({owner: count}, (), chain.estimates.free_bytes, f"{owner} has {free} ids left")

    def _bind(self, ids: IntArray, demand: dict[str, IntArray], actor: Actor) -> Refused | None:
        """One take over all token sub-pools; where it fails the ids, minted just now, come back."""
        chain = self._maps.chain
        try:
            taken = chain.take(demand, actor)
        except BaseException:
            chain.minters[str(self._owner)].give_back(ids)
            raise
        if isinstance(taken, Refused):
            chain.minters[str(self._owner)].give_back(ids)
            return taken
        return None

    def _retire(self, name: str, places: IntArray) -> None:
        """Free pages that a sub-pool needs no more; with the owner's, the ids come back."""
        if not len(places):
            return
        ids = self._maps.table.flat[places]
        if name == self._owner:
            self._maps.chain.free_all({name: ids})
            self._forget(places)
        else:
            self._maps.chain.free(name, ids)

    def _take(self, rows: IntArray, stops: IntArray) -> Refused | None:
        """Append pages up to ``stops`` of them: one virtual id each, bound in every token sub-pool."""
        table = self._maps.table
        counts = table.page_counts[rows]
        growing = (counts != stops).nonzero()[0]
        if not len(growing):
            return None
        if len(growing) < len(rows):
            rows, counts, stops = rows[growing], counts[growing], stops[growing]
        wanted, places = stops - counts, table.firsts[rows] + counts
        is_one_each = wanted.tobytes() == table.ones[: len(rows)].tobytes()
        ends = None if is_one_each else wanted.cumsum()
        taken = self._maps.chain.take_new(self._retirements[-1].name, len(rows) if ends is None else int(ends[-1]))
        if isinstance(taken, Refused):
            return taken
        if ends is None:
            table.tails[rows] = taken.ids
        else:
            table.tails[rows] = taken.ids[ends - ONE]
            places = spread(places, wanted, ends)
        table.flat[places] = taken.ids
        table.page_counts[rows] = stops
        table.version += 1
        self._log(places)
        return None

    def _forget(self, places: IntArray) -> None:
        """No row has an id there any more."""
        self._maps.table.flat[places] = UNBOUND
        self._log(places)

    def _log(self, places: IntArray) -> None:
        changed = self._maps.table.changed
        if changed is not None:
            changed.append(places)
