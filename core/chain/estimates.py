"""Scalars that say roughly how much is free: for logs, metrics and messages, and never for a decision.

They are made of free bytes, the index space and the ids alone. Alignment, fixed and pending pages and the order of the
bands are left out, so a demand within an estimate may be refused, and one beyond it may be served. What a sub-pool
holds (``live`` of a snapshot) is exact, and free to read anywhere. The question is ``Chain.feasible``.
"""

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

from kvarena.chain.minters import Bands
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.errors import InvariantError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import STRICT, broken
from kvarena.terms.units import ceil_div

F = TypeVar("F", bound=Callable[..., Any])

_log = event_log()
_decisions: set[CodeType] = set()


def capacity_decision(method: F) -> F:
    """Mark a method that decides on capacity: until it returns, no code that it runs may read an estimate.

    The mark costs a call nothing: whoever reads an estimate looks for marked methods among its callers.
    """
    assert isinstance(method, FunctionType)
    _decisions.add(method.__code__)
    return method


def deciding() -> str | None:
    """The innermost capacity decision that runs the caller; None where there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _decisions:
            return frame.f_code.co_qualname
        frame = frame.f_back
    return None


def free_bytes(snapshot: ChainSnapshot) -> int:
    """Bytes that no live or reserved unit holds, in holes and in gaps. For messages."""
    held = sum((shot.live + shot.reserved) * shot.unit_bytes for shot in snapshot.bands)
    return snapshot.top - snapshot.base - held


def free_units(snapshot: ChainSnapshot, shot: BandShot) -> int:
    """Units that a band of this snapshot could take if free bytes, index space and ids were all that counts."""
    if not shot.unit_bytes:
        return shot.ids_free
    pages = snapshot.top // shot.unit_bytes - ceil_div(snapshot.base, shot.unit_bytes)
    return max(0, min(free_bytes(snapshot) // shot.unit_bytes, pages - shot.live - shot.reserved, shot.ids_free))


class Estimates:
    """The estimates of one chain, as of now.

    Reading one inside a capacity decision is a mistake of the code that the decision runs: a policy, a cache, a
    device. At check level 2 it raises, at 1 it is logged, once for each estimate, at 0 nobody looks.
    """

    def __init__(self, snapshot: Callable[[], ChainSnapshot], bands: Bands, checks: int) -> None:
        self._snapshot = snapshot
        self._bands = bands
        self._checks = checks
        self._told: set[str] = set()

    @property
    def free_bytes(self) -> int:
        """Bytes that no unit holds. No sub-pool can count on all of them."""
        self._observe("free_bytes")
        return free_bytes(self._snapshot())

    def available(self, name: str) -> int:
        """Units of a sub-pool that the free bytes, the index space and the ids would allow."""
        self._observe("available")
        return free_units(self._snapshot(), self._shot(name))

    def usage(self, name: str | None = None) -> float:
        """The share in use, 0 to 1: of a sub-pool's live and available units, or of the arena's bytes."""
        self._observe("usage")
        snapshot = self._snapshot()
        if name is None:
            return 1 - free_bytes(snapshot) / (snapshot.top - snapshot.base)
        shot = self._shot(name)
        units = shot.live + free_units(snapshot, shot)
        return shot.live / units if units else 0.0

    def _shot(self, name: str) -> BandShot:
        return self._bands[name].shot()

    def _observe(self, estimate: str) -> None:
        """Somebody reads this estimate."""
        decision = deciding() if self._checks else None
        if decision is None:
            return
        if self._checks >= STRICT:
            raise InvariantError(broken("chain.estimate_read_in_decision", estimate=estimate, decision=decision))
        if estimate not in self._told:
            self._told.add(estimate)
            _log.warning("chain.estimate_read_in_decision", estimate=estimate, decision=decision)
