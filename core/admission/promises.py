"""What running requests were charged and have not taken yet: it is held back from every later answer."""

from collections.abc import Sequence
from operator import add, sub
from typing import Any, Protocol

import numpy as np

from kvarena.bands.unit_ids import within
from kvarena.chain.chain import Chain
from kvarena.planning.demand import Demand
from kvarena.terms.answers import Admit
from kvarena.terms.doors import line
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import IntArray


class Holdings(Protocol):
    """What running requests have taken of their charges: ``storage.ownership``.

    ``version`` changes with what rows have, where the chain's ``epoch`` does not: when pages are handed over.
    ``open_count``: how many rows are open.
    """

    version: int

    @property
    def open_count(self) -> int: ...

    def held(self) -> IntArray:
        """The units that each row owns now, int64 (sub-pools in chain order, rows): what comes back when it ends."""
        ...

    def charged(self) -> IntArray:
        """What each row has taken of its charge, of the same shape; a new array, for the caller to keep.

        Where pages never retire, all that it took, handed over since or not; elsewhere what it owns.
        """
        ...


class Promises:
    """The charges of the requests that were let in.

    A charge's life:  1. promise   its request will start.
                      2. start     its row is open: what it has not taken of it is held back.
                      3. recharge  it goes on with another charge.
                      4. forget    the row is closed.
    Always: ``promised`` == the charges not started + per row what its charge is above what it has taken
    """

    def __init__(self, chain: Chain, holdings: Holdings, rows: int) -> None:
        self.chain = chain
        self.holdings = holdings
        self._nothing: Demand = (0,) * len(chain.plan.sub_pools)
        self._charges = np.zeros((len(self._nothing), rows), dtype=np.int64)
        self._zeros = np.zeros_like(self._charges)
        self._starting, self._starting_count = self._nothing, 0
        self._promised: Demand | None = None
        self._promised_at = (-1, -1, -1)

    def promise(self, charge: Demand, requests: int = 1) -> None:
        """A request, or several together, will start with this charge: held back, until ``start`` gives it to rows."""
        self._check(charge)
        self._starting = tuple(map(add, self._starting, charge))
        self._starting_count += requests
        self._promised = None if self._promised is None else tuple(map(add, self._promised, charge))

    def start(self, rows: IntArray, answers: Sequence[Admit | Demand]) -> None:
        """The rows of promised requests are open; of each, the answer that let it in, or its charge."""
        if not len(line(rows, "admission.start: rows")):
            return
        charges = [answer.charge if isinstance(answer, Admit) else answer for answer in answers]
        each = len(set(rows.tolist())) == len(charges) == len(rows)
        invariant("admission.a_charge_for_each_row", each, rows=rows, charges=charges)
        totals = [sum(column) for column in zip(*charges, strict=True)]
        left = tuple(map(sub, self._starting, totals))
        invariant("admission.started_unpromised", min(left, default=0) >= 0, rows=rows, left=left)
        self._check_rows(rows)
        self._starting, self._starting_count = left, max(0, self._starting_count - len(rows))
        self._charges[:, rows] = np.array(charges, dtype=np.int64).T
        self._promised = None

    def withdraw(self, charge: Demand, requests: int = 1) -> None:
        """Requests that were promised this charge together will not start."""
        self._check(charge)
        left = tuple(map(sub, self._starting, charge))
        invariant("admission.started_unpromised", min(left, default=0) >= 0, withdrawn=charge, left=left)
        self._starting, self._starting_count = left, max(0, self._starting_count - requests)
        self._promised = None

    def recharge(self, rows: int | IntArray, charges: Demand | Sequence[Demand]) -> None:
        """A running request goes on with another charge; or several do, each with its own."""
        if isinstance(rows, np.ndarray):
            each = len(rows) == len(charges)
            invariant("admission.a_charge_for_each_row", each, rows=rows, charges=charges)
            new = np.array(charges, dtype=np.int64).reshape(len(rows), len(self._nothing))
            invariant("admission.negative_charge", new.min(initial=0) >= 0, rows=rows, charges=charges)
            self._check_rows(rows)
            self._charges[:, rows] = new.T
        else:
            self._check(charges)
            self._check_rows(rows)
            self._charges[:, rows] = charges
        self._promised = None

    def forget(self, rows: int | IntArray) -> None:
        """These rows' requests are gone: nothing is held back for them."""
        self._check_rows(rows)
        self._charges[:, rows] = 0
        self._promised = None

    def promised(self) -> Demand:
        """What requests were charged and have not taken yet."""
        now = (self.chain.epoch, self.holdings.version, self.holdings.open_count)
        if self._promised is None or self._promised_at != now:
            owed = self.owed()
            self._promised = tuple(map(add, np.add.reduce(owed, axis=1).tolist(), self._starting))
            self._promised_at = now
        return self._promised

    def owed(self) -> IntArray:
        """What is held back for each row, int64 (sub-pools in chain order, rows)."""
        owed = self.holdings.charged()
        np.subtract(self._charges, owed, out=owed)
        return np.maximum(owed, self._zeros, out=owed)

    def _check(self, charge: Any) -> None:
        """A charge has one count for every sub-pool, and none is negative."""
        counts = isinstance(charge, tuple) and len(charge) == len(self._nothing)
        if not counts or not all(isinstance(count, int) and count >= 0 for count in charge):
            fail("admission.negative_charge", charge=charge)

    def _check_rows(self, rows: Any) -> None:
        """These are rows of the table."""
        count = self._charges.shape[1]
        known = isinstance(rows, int | np.integer) and 0 <= rows < count
        if not known and not (isinstance(rows, np.ndarray) and within(rows, count)):
            fail("admission.unknown_row", rows=rows, rows_in_all=count)
