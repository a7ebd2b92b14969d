"""What keeps pages of a band where they are: fixed by their owner, pinned by uses, reserved when nobody owns them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.bands.still import Still
from kvarena.terms.errors import InvariantError

PAGES = st.sets(st.integers(0, 11), max_size=5)


def array(*pages: int) -> np.ndarray:
    return np.array(sorted(pages), dtype=np.int64)


def some() -> tuple[Still, list[None]]:
    """One of a band, and what it told the band."""
    changes: list[None] = []
    return Still("full", lambda: changes.append(None)), changes


def test_a_page_is_fixed_once_and_loosened_once() -> None:
    """Twice either way is named, with nothing changed; the band is told of each change."""
    still, changes = some()
    still.fix(array(5, 2))
    with pytest.raises(InvariantError, match=r"^band\.fix_of_fixed_page: sub_pool='full'"):
        still.fix(array(2, 3))
    with pytest.raises(InvariantError, match=r"^band\.unfix_of_loose_page: sub_pool='full'"):
        still.unfix(array(3, 5))
    assert (still.fixed.tolist(), still.immovable.tolist(), len(changes)) == ([2, 5], [2, 5], 1)
    still.unfix(array(5))
    assert (still.fixed.tolist(), still.immovable.tolist(), len(changes)) == ([2], [2], 2)


@pytest.mark.req("LED-1")
@given(pinned=st.lists(PAGES, max_size=4), freed=PAGES, fixed=PAGES, data=st.data())
def test_a_freed_page_is_reserved_until_no_use_pins_it(
    pinned: list[set[int]], freed: set[int], fixed: set[int], data: st.DataObject
) -> None:
    """In whichever order the uses end, against plain sets; what nobody pins is let go of at once."""
    still, _ = some()
    still.fix(array(*fixed))
    open_uses = dict(enumerate(pinned))
    for number, pages in open_uses.items():
        still.pin(number, array(*pages))
    held = set().union(*pinned)
    assert set(still.reserve(array(*freed)).tolist()) == freed - held
    reserved = freed & held
    for number in data.draw(st.permutations(range(len(pinned)))):
        assert set(still.reserved.tolist()) == reserved
        assert still.immovable.tolist() == sorted(fixed.union(*open_uses.values()))
        gone = open_uses.pop(number)
        left = set().union(*open_uses.values())
        assert set(still.unpin(number).tolist()) == (reserved & gone) - left
        reserved &= left
    assert not len(still.reserved)
    assert still.immovable.tolist() == sorted(fixed)
