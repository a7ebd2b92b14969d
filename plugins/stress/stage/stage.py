"""A stage: one rank's storage on one device, on which operations are played by the names of what they are about.

``apply`` plays one operation and answers with what came: a value, a refusal, or a named error. Requests, forwards,
copies, transfers and entries are named by the operations. On a device with bytes every row and slot that is written
gets a tag of its own, and whatever reads it checks that it holds the last one: at the moment when the work lands.
``findings`` has what did not.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.plugins.stress.stage.copies import Copies
from kvarena.plugins.stress.stage.entries import Entries, Port
from kvarena.plugins.stress.stage.forwards import Forwards
from kvarena.plugins.stress.stage.operations import VERBS, AwaitsError, Op
from kvarena.plugins.stress.stage.props import Finding, Props
from kvarena.plugins.stress.stage.questions import Questions
from kvarena.plugins.stress.stage.requests import Requests
from kvarena.plugins.stress.stage.sharing import Sharing
from kvarena.plugins.stress.stage.transfers import Transfers
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Eviction, IntArray

TIMED = frozenset({"land", "turn", "capture", "fill", "read"})
"""What these answer depends on when work lands, so ranks may differ in it."""
HOST_PLACES = 64
CHUNK_TOKENS = 8


class Outcome(NamedTuple):
    """What came of an operation. ``kind``: value, refused, error or awaits; ``name``: of an error, ``band.…`` say."""

    kind: str
    value: Any = None
    name: str = ""
    words: str = ""

    def __str__(self) -> str:
        if self.kind == "value":
            return f"{self.value!r}"
        return f"{self.kind}: {self.words}"


class Stage:
    """One rank: a storage, and what is around it."""

    def __init__(
        self, storage: Storage, *, chunk_tokens: int = CHUNK_TOKENS, host_places: int = HOST_PLACES,
        output_fraction: float = 1.0, eviction: Eviction | None = None,
    ) -> None:  # fmt: skip
        """``host_places``: pages of each sub-pool that host memory has room for. ``eviction``: of the prefix cache.

        The caller releases the storage.
        """
        self.storage = storage
        self.device: Any = storage.device
        self.chunk_tokens = chunk_tokens
        self.output_fraction = output_fraction
        self.props = Props(storage)
        self.entries = Entries(self.props, eviction)
        self._admission: Admission | None = None
        self.requests = Requests(self.props, self.entries, self.admission)
        self.forwards = Forwards(self.props, self.entries, self.requests)
        self.copies = Copies(self.props, self.entries, self.requests, self.forwards, host_places)
        self.transfers = Transfers(self.props, self.requests)
        self.sharing = Sharing(self.props, self.entries, self.requests, self.forwards, self.admission)
        self.questions = Questions(self.props, self.entries, self.requests, self.admission, self._reopen)
        self._verbs: dict[str, Callable[..., Any]] = {
            **self.requests.verbs(), **self.forwards.verbs(), **self.copies.verbs(), **self.transfers.verbs(),
            **self.sharing.verbs(), **self.questions.verbs(), "land": self.land, "capture": self._land_copy,
            "fill": self._land_copy, "turn": self.turn,
        }  # fmt: skip
        self._every_id = _every_id(storage)
        self.applied = 0
        self._outcomes = 0

    @property
    def findings(self) -> list[Finding]:
        """What the bytes have shown to be wrong, so far."""
        return self.props.findings

    def admission(self) -> Admission:
        """The admission of the arena as it is."""
        if self._admission is None:
            storage = self.storage
            self._admission = Admission(
                storage.chain, storage.sizing, storage.ownership,
                chunk_tokens=self.chunk_tokens, output_fraction=self.output_fraction, cache=Port(self.entries),
            )  # fmt: skip
        return self._admission

    def apply(self, op: Op) -> Outcome:
        """Play one operation. What is wrong with it, or with kvarena, is an outcome; nothing is raised."""
        self.props.begin()
        self.applied += 1
        verb = self._verbs.get(op.verb)
        try:
            if verb is None:
                raise AwaitsError(VERBS[op.verb].awaits or f"a stage that can {op.verb}")
            value = verb(**op.arguments)
        except InvariantError as error:
            words = str(error)
            outcome = Outcome("error", None, words.partition(":")[0].partition(" ")[0], words)
        except AwaitsError as error:
            outcome = Outcome("awaits", None, error.capability, str(error))
        except KvarenaError as error:
            outcome = Outcome("error", None, type(error).__name__, str(error))
        else:
            is_refused = isinstance(value, Refused)
            outcome = Outcome("refused", value, "", str(value)) if is_refused else Outcome("value", value)
        if op.verb not in TIMED:
            self._outcomes = zlib.crc32(_spelled(outcome).encode(), self._outcomes)
        return outcome

    def digest(self) -> int:
        """One number of all that the host has decided so far: outcomes, maps, lengths, counts and frontiers."""
        chain, table = self.storage.chain, self.storage.requests
        sum_ = zlib.crc32(table.flat.tobytes(), self._outcomes)
        sum_ = zlib.crc32(table.lengths.tobytes(), sum_)
        for band in chain.bands.values():
            sum_ = zlib.crc32(band.ids.pages_of(self._every_id[: band.grid.id_count]).tobytes(), sum_)
        return zlib.crc32(repr([shot[3:] for shot in chain.snapshot().bands]).encode(), sum_)

    def land(self, name: str) -> int:
        """Device time: what the forward, copy or transfer of this name does happens now."""
        event = self.props.named(self.props.events, name, "work under way")
        if event is None:
            return 0
        if hasattr(self.device, "land"):
            self.device.land(event)  # whether it had come before is not asked: a host that knows is ordered behind it
        else:
            self.device.synchronize(event)
        return 1

    def turn(self, limit: int = 0) -> int:
        """Device time: the adversary lands what it likes. On a device without one, time goes by itself."""
        if not hasattr(self.device, "turn"):
            return 0
        landed: int = self.device.turn(limit or None)
        return landed

    def _land_copy(self, copy: str) -> int:
        return self.land(copy)

    def _reopen(self) -> None:
        self._admission = None
        self.entries.reopen()
        self._every_id = _every_id(self.storage)


def _every_id(storage: Storage) -> IntArray:
    """As many ids as any sub-pool has."""
    return np.arange(max(band.grid.id_count for band in storage.chain.bands.values()))


def _spelled(outcome: Outcome) -> str:
    """What of an outcome all ranks share."""
    return f"{outcome.kind} {outcome.name} {outcome.value}" if outcome.kind != "refused" else "refused"
