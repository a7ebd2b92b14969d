"""What running requests were charged and have not taken yet: it is held back from every later answer."""

from collections.abc import Sequence
from operator import add, index, sub
from typing import Any, Protocol, cast

import numpy as np

from kvarena.planning.demand import Demand
from kvarena.terms.answers import Admit
from kvarena.terms.doors import line
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.numbers import constant
from kvarena.terms.ports import IntArray

ZERO = constant(0)


class Holdings(Protocol):
    """What running requests have taken of their charges: ``storage.ownership``. ``open_count``: how many rows are open.

    ``version`` grows with every change of what ``held`` and ``charged`` tell.
    """

    @property
    def version(self) -> int: ...

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
    It is counted anew where rows have changed since.
    """

    def __init__(self, holdings: Holdings, *, sub_pools: int, rows: int) -> None:
        self.holdings = holdings
        self.row_count = rows
        self.starting_count = 0
        """So many requests are promised and have not started."""
        self._starting: Demand = (0,) * sub_pools
        self._charges = np.zeros((sub_pools, rows), dtype=np.int64)
        self._by_pool = list(self._charges)  # one sub-pool after another is quicker than all at once
        self._promised: Demand | None = None
        self._counted_at = 0

    def promise(self, charge: Demand, requests: int = 1) -> None:
        """A request, or several together, will start with this charge: held back, until ``start`` gives it to rows."""
        self._check(charge)
        self._starting = tuple(map(add, self._starting, charge))
        self.starting_count += requests
        self._promised = None if self._promised is None else tuple(map(add, self._promised, charge))

    def start(self, rows: IntArray, answers: Sequence[Admit | Demand]) -> None:
        """The rows of promised requests are open; of each, the answer that let it in, or its charge."""
        listed = self._listed(line(rows, "admission.start: rows"))
        if not listed:
            return
        charges = [answer.charge if isinstance(answer, Admit) else answer for answer in answers]
        by_pool = self._columns(listed, charges)
        if len(set(listed)) != len(listed):
            fail("admission.a_charge_for_each_row", rows=rows, charges=charges)
        left = tuple(map(sub, self._starting, map(sum, by_pool)))
        if min(left, default=0) < 0:
            fail("admission.started_unpromised", rows=rows, left=left)
        self._starting, self.starting_count = left, max(0, self.starting_count - len(listed))
        self._charge(rows, by_pool)

    def withdraw(self, charge: Demand, requests: int = 1) -> None:
        """Requests that were promised this charge together will not start."""
        self._check(charge)
        left = tuple(map(sub, self._starting, charge))
        invariant("admission.started_unpromised", min(left, default=0) >= 0, withdrawn=charge, left=left)
        self._starting, self.starting_count = left, max(0, self.starting_count - requests)
        self._promised = None if self._promised is None else tuple(map(sub, self._promised, charge))

    def recharge(self, rows: int | IntArray, charges: Demand | Sequence[Demand]) -> None:
        """A running request goes on with another charge; or several do, each with its own."""
        listed = self._listed(rows)
        if isinstance(rows, np.ndarray):
            by_pool = self._columns(listed, cast(Sequence[Demand], charges))
            lowest = min(map(min, by_pool), default=0) if listed else 0
            invariant("admission.negative_charge", lowest >= 0, rows=rows, charges=charges)
            self._charge(rows, by_pool)
        else:
            self._check(charges)
            self._charge(rows, charges)

    def forget(self, rows: int | IntArray) -> None:
        """These rows' requests are gone: nothing is held back for them."""
        self._listed(rows)
        self._charge(rows, [ZERO] * len(self._by_pool))

    def promised(self) -> Demand:
        """What requests were charged and have not taken yet."""
        promised, version = self._promised, self.holdings.version
        if promised is None or version != self._counted_at:
            owed = np.add.reduce(self.owed(), axis=1).tolist()
            promised = self._promised = tuple(map(add, owed, self._starting))
            self._counted_at = version
        return promised

    def owed(self) -> IntArray:
        """What is held back for each row, int64 (sub-pools in chain order, rows)."""
        owed = self.holdings.charged()
        np.subtract(self._charges, owed, out=owed)
        return np.maximum(owed, ZERO, out=owed)

    def mark(self) -> tuple[Demand, int]:
        """What is promised and has not started, for ``back_to``."""
        return self._starting, self.starting_count

    def back_to(self, mark: tuple[Demand, int]) -> None:
        """Nobody was promised anything since."""
        self._starting, self.starting_count = mark
        self._promised = None

    # -- inside

    def _charge(self, rows: int | IntArray, by_pool: Sequence[Any] | IntArray) -> None:
        """These rows are charged so much, sub-pool by sub-pool."""
        for charges, new in zip(self._by_pool, by_pool, strict=True):
            charges[rows] = new
        self._promised = None

    def _columns(self, rows: list[int], charges: Sequence[Demand]) -> list[tuple[int, ...]]:
        """The charges of these rows, one each, sub-pool by sub-pool."""
        counts = {len(self._by_pool), *map(len, charges)}
        if len(charges) != len(rows) or len(counts) != 1:
            fail("admission.a_charge_for_each_row", rows=rows, charges=charges)
        return list(zip(*charges, strict=True)) if rows else [()] * len(self._by_pool)

    def _check(self, charge: Any) -> None:
        """A charge has one count for every sub-pool, and none is negative."""
        if not isinstance(charge, tuple) or len(charge) != len(self._by_pool):
            fail("admission.negative_charge", charge=charge)
        for count in charge:
            if not isinstance(count, int) or count < 0:
                fail("admission.negative_charge", charge=charge)

    def _listed(self, rows: Any) -> list[int]:
        """These rows, which are of the table, as Python ints."""
        if isinstance(rows, np.ndarray):
            listed: list[int] = line(rows, "admission: rows").tolist()
        else:
            listed = [index(rows)] if isinstance(rows, int | np.integer) else [-1]
        if listed and (min(listed) < 0 or max(listed) >= self.row_count):
            fail("admission.unknown_row", rows=rows, rows_in_all=self.row_count)
        return listed
