"""Batches of pages by forward: nothing is lost, nothing comes twice, the oldest come first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.ledger.batches import Batches
from kvarena.terms.errors import InvariantError


def pages(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.req("LIF-3")
def test_a_second_batch_of_one_forward_joins_the_first() -> None:
    """Both come back together, and by settling whole."""
    batches = Batches()
    batches.add(1, pages(4))
    batches.add(1, pages(7, 2))
    batches.add(3, pages(5))
    assert (len(batches), batches.forwards(), batches.pages().tolist()) == (4, [1, 3], [4, 7, 2, 5])
    settled = batches.oldest(1)
    assert (settled.pages.tolist(), settled.forward) == ([4, 7, 2], 1)
    assert batches.through(2).tolist() == []
    assert batches.through(3).tolist() == [5]
    assert not len(batches)


def test_keys_rise() -> None:
    """A page that waits for an older forward than the newest batch would come back too late: it is a mistake."""
    batches = Batches()
    batches.add(3, pages(1))
    with pytest.raises(InvariantError, match=r"ledger\.batch_keys_rise: newest=3 forward=2"):
        batches.add(2, pages(2))
    assert batches.pages().tolist() == [1]


@pytest.mark.req("LIF-3")
@given(st.lists(st.tuples(st.sampled_from(["add", "through", "oldest", "some"]), st.integers(0, 4)), max_size=40))
def test_batches_are_a_list_of_pages_by_forward(acts: list[tuple[str, int]]) -> None:
    """Against a plain list: whole batches by settling, single pages by ``some``, all up to a key by processing."""
    batches, model, forward, page = Batches(), [], 1, 0
    for act, amount in acts:
        if act == "add":
            forward += amount % 2
            new = list(range(page, page + amount))
            page += amount
            batches.add(forward, pages(*new))
            model += [(forward, one) for one in new]
        elif act == "through":
            key = forward - amount
            assert batches.through(key).tolist() == [one for at, one in model if at <= key]
            model = [(at, one) for at, one in model if at > key]
        elif act == "oldest":
            keys = sorted({at for at, _ in model})
            last = next((key for key in keys if sum(at <= key for at, _ in model) >= amount), forward)
            last = last if amount else 0
            assert batches.oldest(amount).pages.tolist() == [one for at, one in model if at <= last]
            model = [(at, one) for at, one in model if at > last]
        else:
            count = min(amount, len(model))
            assert batches.some(count).tolist() == [one for _, one in model[:count]]
            model = model[count:]
        assert batches.count == len(model)
        assert batches.pages().tolist() == [one for _, one in model]
