"""What must hold after every operation, on both ranks, and what must hold when nobody holds anything."""

from collections.abc import Sequence
from typing import Any

import attrs

from kvarena.chain.chain import Chain
from kvarena.plugins.stress.stage.entries import CHECKPOINT_LOST, EVICTABLE_LIES
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import TIMED, Outcome, Stage
from kvarena.plugins.stress.stage.told import OTHER_TOKENS
from kvarena.terms.errors import InvariantError

LOST_WRITE = "lost_write"
RANK_DIVERGENCE = "rank_divergence"
LEDGER_LEAK = "ledger_leak"
FEASIBLE_LIES = "feasible_is_not_take"
CRASH = "crash"

PROMISES = {
    LOST_WRITE: "Every row holds what its last writer wrote, and every copy and transfer reads what it was handed.",
    "unordered_overlap": "No two actors touch the same bytes in no order when at least one of them writes.",
    "host_read_after_wait": "The host reads nothing that a device or an engine is still at, after a stream wait.",
    RANK_DIVERGENCE: "Both ranks decide alike, whenever work lands.",
    "cross_dtype_bytes": "Nobody reads bytes that were last written as another sub-pool's data.",
    LEDGER_LEAK: "When nobody holds anything, nothing is recorded, kept or lost.",
    "staging_overwritten": "A mirror's staging is not filled again while an update still reads it.",
    "stale_mirror": "A forward finds the page tables of its launch in the device's maps.",
    "undeclared_write": "A forward writes the pages that it says it writes, and no others.",
    "missing_rows": "Whoever shares pages finds every row there that its lifetime says it needs.",
    OTHER_TOKENS: "What a request starts from was computed from its own first tokens.",
    CHECKPOINT_LOST: "A checkpoint that is in the cache can be started from.",
    EVICTABLE_LIES: "What the cache says it can give back is what comes back.",
    FEASIBLE_LIES: "A demand that is said to fit can be taken, and none that is said not to.",
    CRASH: "No operation stops with anything but a named error.",
}
"""By check; a check of another name is an invariant of kvarena's own, which says itself what it promises."""

IN_USE = "ledger.page_is_not_to_be_had"
UNBOUND = "band.free_of_bound_page"
"""What a copy says of an id that was let go between its making and its submission."""

MISUSE = ("forwards.", "storage.", "copies.", "transfers.", "drafts.")
MISUSE_NAMES = frozenset(
    {
        "band.free_outside_reservation", "ledger.end_of_unknown_use", "ledger.publish_of_unknown_use",
        "chain.negative_demand", "prefix_tree.drop_of_locked_entry",
    }
)  # fmt: skip
"""Named errors by which an operation that is not possible now is refused. All others are promises of the inside."""


@attrs.frozen
class Broken:
    """A promise that did not hold."""

    check: str
    words: str


class Checks:
    """The checks of one run over the stages of its ranks."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._chains = [stage.storage.chain for stage in stages]
        self._judges: list[list[Any]] = [getattr(stage.device, "violations", []) for stage in stages]

    def after(self, op: Op, outcomes: Sequence[Outcome], *, in_use: bool = False) -> Broken | None:
        """The first promise that this operation has broken on any rank. ``in_use``: it asked for pages being sent."""
        for rank, stage in enumerate(self._stages):
            if stage.findings:
                return Broken(stage.findings[0].check, f"{stage.findings[0].words} (rank {rank}, {op})")
            if self._judges[rank]:
                found = self._judges[rank][0]
                return Broken(found.check, f"{found.words} (rank {rank}, {op})")
        return _unexpected(op, outcomes, in_use) or self._diverged(op, outcomes)

    def feasible(self, op: Op) -> bool | None:
        """Before a relief: whether it should be served; None where the question cannot be asked."""
        chain, units = self._chains[0], op.arguments["units"]
        if chain.ledger.steps.is_open or not set(units) <= set(chain.bands):
            return None
        for minter in chain.minters.values():
            if max((units.get(name, 0) for name in minter.names), default=0) > minter.pool.free:
                return False
        return chain.feasible(tuple(units.get(name, 0) for name in chain.bands))

    def served(self, op: Op, expected: bool | None, outcome: Outcome) -> Broken | None:
        """After it: whether it was."""
        if expected is None or outcome.kind == "error" or (outcome.kind == "value") == expected:
            return None
        said = "fits" if expected else "does not fit"
        return Broken(FEASIBLE_LIES, f"{op} {said}, said feasible; and then came {outcome}")

    def verify(self) -> Broken | None:
        """Every sum and map of both ranks, and that they are the same: slow."""
        for rank, stage in enumerate(self._stages):
            try:
                stage.storage.verify()
                if stage.entries.is_open:
                    stage.entries.tree.verify()
            except InvariantError as error:
                words = str(error)
                return Broken(_name_of(words), f"{words} (rank {rank})")
        digests = [stage.digest() for stage in self._stages]
        if len(set(digests)) > 1:
            return Broken(RANK_DIVERGENCE, f"the ranks' maps, lengths or answers differ: digests {digests}")
        return None

    def at_rest(self, outcomes: Sequence[Outcome]) -> Broken | None:
        """Nobody holds anything: ``outcomes`` of ``quiet`` have nothing to tell."""
        for rank, outcome in enumerate(outcomes):
            if outcome.kind == "error":
                return Broken(outcome.name, f"{outcome.words} (rank {rank}, at rest)")
            if outcome.value:
                return Broken(LEDGER_LEAK, f"at rest {'; '.join(outcome.value)} (rank {rank})")
        return None

    def _diverged(self, op: Op, outcomes: Sequence[Outcome]) -> Broken | None:
        first, other = outcomes
        if op.verb not in TIMED and (first.kind, first.name, first.value) != (other.kind, other.name, other.value):
            return Broken(RANK_DIVERGENCE, f"{op}: one rank answers {first}, the other {other}")
        one, two = self._chains
        if one.epoch != two.epoch or one.snapshot() != two.snapshot():
            return Broken(RANK_DIVERGENCE, f"{op}: the ranks lay out {_difference(one, two)}")
        mine, its = one.ledger.steps, two.ledger.steps
        if mine.retired != its.retired or mine.processed != its.processed:
            return Broken(RANK_DIVERGENCE, f"{op}: the ranks have {mine!r} and {its!r}")
        return None


def _unexpected(op: Op, outcomes: Sequence[Outcome], in_use: bool) -> Broken | None:
    """An error that no wrong operation can be the cause of."""
    for rank, outcome in enumerate(outcomes):
        if outcome.kind == "error" and "." in outcome.name:
            if outcome.name.startswith(MISUSE) or outcome.name in MISUSE_NAMES:
                continue
            if (in_use and outcome.name == IN_USE) or (op.verb == "submit" and outcome.name == UNBOUND):
                continue
            return Broken(outcome.name, f"{outcome.words} (rank {rank}, {op})")
    return None


def _difference(one: Chain, two: Chain) -> str:
    """What differs between two layouts, band by band."""
    found = []
    for mine, its in zip(one.snapshot().bands, two.snapshot().bands, strict=True):
        fields = [name for name in type(mine).__annotations__ if getattr(mine, name) != getattr(its, name)]
        found += [f"{mine.name} {name} {getattr(mine, name)} and {getattr(its, name)}" for name in fields]
    return "; ".join(found) or f"alike, at epochs {one.epoch} and {two.epoch}"


def _name_of(words: str) -> str:
    """The name that an invariant's message begins with."""
    return words.partition(":")[0].partition(" ")[0]
