"""Drafts: rows with two lengths, one that nothing can take back and one that a forward may reach."""

from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import IterationIds, Maps
from kvarena.terms.answers import Refused
from kvarena.terms.doors import line
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class Drafts:
    """Reservations of rows for tokens that may be rejected.

    A reservation's life:  1. reserve  pages up to the longest length are taken; what the known length needs no more
                                       retires.
                           2. commit   the length that was kept is known; whole pages beyond it come back.
                           Or close    the row gives everything back.
    Another may be reserved before the one before it is committed, a step ahead; pages beyond come back with the last.
    Always, while one is open:  lengths <= reserved <= page_counts * page_tokens
    """

    def __init__(self, maps: Maps, growth: Growth) -> None:
        self._maps = maps
        self._growth = growth

    def reserve(self, rows: IntArray, lengths: IntArray) -> IterationIds | Refused:
        """Pages for these rows up to the longest lengths that they may reach, all of them or none.

        Returns:
            The ids of every token from the known length on: what the forward may write; or the refusal.

        Raises:
            KvarenaError: a length is beyond what a row can hold; nothing has changed.
            InvariantError: a length is below the row's, or below one reserved before; nothing has changed.
        """
        self._maps.check_current()
        table = self._maps.table
        rows, lengths = self._checked(rows, lengths, "drafts.reserve")
        if table.away.count:
            table.away.check_none(rows, asked_by="drafts.reserve", drafting=True)
        starts = table.lengths[rows]
        ahead = (lengths >= starts) & (lengths >= table.away.reserved[rows])
        invariant("drafts.reserve_below_the_row", ahead.all(), rows=rows, lengths=lengths, known=starts)
        crossing = ((lengths > table.due[rows]) | (lengths <= starts)).nonzero()[0]
        if len(crossing):
            refused = self._growth.advance(rows[crossing], starts[crossing], lengths[crossing])
            if refused is not None:
                return refused
        table.away.reserve(rows, lengths)
        return IterationIds(self._maps, rows, starts, lengths)

    def commit(self, rows: IntArray, lengths: IntArray) -> None:
        """The oldest reservation of each row is over, and these lengths are known; whole pages beyond come back.

        Raises:
            InvariantError: a row has no reservation, or a length is below the known one or beyond the reserved;
                nothing has changed.
        """
        table = self._maps.table
        rows, lengths = self._checked(rows, lengths, "drafts.commit")
        drafts = table.away.drafts[rows]
        invariant("drafts.commit_without_reservation", (drafts > 0).all(), rows=rows[drafts == 0])
        inside = (lengths >= table.lengths[rows]) & (lengths <= table.away.reserved[rows])
        invariant(
            "drafts.commit_outside_its_reservation", inside.all(),
            rows=rows, lengths=lengths, known=table.lengths[rows], reserved=table.away.reserved[rows],
        )  # fmt: skip
        last = drafts == 1
        self._growth.cut(rows[last], lengths[last])
        table.lengths[rows] = lengths
        table.away.settle(rows)

    def _checked(self, rows: IntArray, lengths: IntArray, what: str) -> tuple[IntArray, IntArray]:
        rows, lengths = line(rows, f"{what}: rows").copy(), line(lengths, f"{what}: lengths").copy()
        table = self._maps.table
        invariant("drafts.a_length_for_each_row", len(rows) == len(lengths), rows=len(rows), lengths=len(lengths))
        invariant("drafts.of_free_row", table.is_open(rows), rows=rows)
        invariant("drafts.repeats_a_row", table.are_distinct(rows), rows=rows)
        return rows, lengths
