"""What a prefix tree asks of a storage."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvarena.planning.plan import Plan
from kvarena.terms.ports import IntArray


class Table(Protocol):
    """The request rows: their page ids (rows, pages), lengths in tokens, and how many pages they handed over.

    ``retired``: how many of their first pages each sub-pool has let go of, (sub-pools, rows), where that goes in order.
    """

    pages: IntArray
    lengths: IntArray
    handed: IntArray
    retired: IntArray


class Slots(Protocol):
    """The state slots that were handed over."""

    def check_freed(self, ids: IntArray) -> None: ...


class Owners(Protocol):
    """Whose a page is: ``storage.ownership``."""

    @property
    def slots(self) -> Slots: ...

    def hand_over(self, row: int, tokens: int) -> IntArray: ...

    def free_pages(self, ids: IntArray) -> None: ...


class Shares(Protocol):
    """Pages and slots that outlive their request: ``storage.sharing``."""

    @property
    def may_refuse(self) -> bool: ...

    def adopt(self, row: int, ids: IntArray) -> None: ...

    def free_in(self, sub_pool: str, ids: IntArray) -> None: ...

    def free_slots(self, ids: IntArray) -> None: ...

    def bound(self, sub_pool: str, ids: IntArray) -> npt.NDArray[np.bool_]: ...


class Store(Protocol):
    """A storage, as far as the tree knows it."""

    @property
    def plan(self) -> Plan: ...

    @property
    def requests(self) -> Table: ...

    @property
    def ownership(self) -> Owners: ...

    @property
    def sharing(self) -> Shares: ...
