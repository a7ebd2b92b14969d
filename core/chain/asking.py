"""What the policies of a chain answer, looked at before it is believed."""

from kvarena.terms.doors import whole_answer
from kvarena.terms.errors import InvariantError
from kvarena.terms.owners import MISHAPS, misbehaves, raising
from kvarena.terms.ports import Compaction, Placement


def moves_of(policy: Compaction, live: int, holes: int) -> int:
    """How many pages of a band the policy would move.

    Raises:
        PluginError: the policy fails, or its answer is no whole number of 0 or more.
    """
    try:
        answer = policy.moves(live, holes)
    except InvariantError:  # what it may not read, it was told by us
        raise
    except MISHAPS as error:
        finding = raising(f"moves({live}, {holes})", error)
        raise misbehaves("compaction.raised", "compaction", policy, finding) from error
    limit = whole_answer(answer, "compaction", policy)
    if limit < 0:
        finding = f"moves({live}, {holes}) answered {limit}; 0 is for none"
        raise misbehaves("compaction.fewer_than_none", "compaction", policy, finding)
    return limit


def start_of(policy: Placement, lowest: int, highest: int) -> int:
    """Where the policy puts an empty float.

    Raises:
        PluginError: the policy fails, or its answer is no page between these two.
    """
    try:
        answer = policy.start(lowest, highest)
    except InvariantError:  # what it may not read, it was told by us
        raise
    except MISHAPS as error:
        finding = raising(f"start({lowest}, {highest})", error)
        raise misbehaves("placement.raised", "placement", policy, finding) from error
    start = whole_answer(answer, "placement", policy)
    if not lowest <= start <= highest:
        finding = f"start({lowest}, {highest}) answered {start}, which lies outside"
        raise misbehaves("placement.outside", "placement", policy, finding)
    return start
