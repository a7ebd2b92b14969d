"""Write sets: what may be written, by whom, and until when."""

import numpy as np
import pytest

from kvarena.ledger.writes import Writes, WriteSet


def pages(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.req("CMP-1")
@pytest.mark.req("LED-4")
def test_a_write_set_counts_until_its_forward_retires() -> None:
    """The newest writer of any of the pages is found, by pages or as unknown; nothing is kept of those retired."""
    writes = Writes()
    writes.add(WriteSet(1, {"full": pages(3, 5)}, frozenset()))
    writes.add(WriteSet(2, {"full": pages(5)}, frozenset({"state"})))
    writes.add(WriteSet(3, {}, frozenset()))
    assert [writes.newest("full", pages(page)) for page in (3, 5, 4)] == [1, 2, 0]
    assert (writes.newest("full", pages(4, 3)), writes.newest("state", pages(9))) == (1, 2)
    assert (writes.are_unknown("state"), writes.are_unknown("full")) == (True, False)
    assert (writes.pages("full").tolist(), writes.pages("state").tolist()) == ([3, 5, 5], [])
    writes.retire(1)
    assert (writes.newest("full", pages(3)), writes.pages("full").tolist(), len(writes)) == (0, [5], 2)
    writes.retire(3)
    assert (writes.are_unknown("state"), len(writes)) == (False, 0)
