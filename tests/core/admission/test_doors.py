"""What is no request, no share, no units and no victim: one clear error with the value, and nothing has changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from storages import FULL, STATE, nothing_changes, storage_of

from kvarena.admission.admission import Admission, Asked
from kvarena.admission.preemption import Victim
from kvarena.assembly.config import SettingError
from kvarena.plugins.serving.config import ServingConfig
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never
from kvarena.terms.errors import KvarenaError

NAN = float("nan")


def made() -> tuple[Storage, Admission]:
    """Admission over a state and full attention; one request is promised."""
    storage = storage_of((STATE, FULL), running=4)
    admission = Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8)
    admission.promise((1, 2))
    return storage, admission


@pytest.mark.parametrize("wrong", ["x", None, NAN, 0, 1.5, -1, np.nan, [1]], ids=repr)
def test_an_output_fraction_is_a_share(wrong: Any) -> None:
    """Of admission as of the loop's settings."""
    storage, _ = made()
    with pytest.raises(KvarenaError, match=r"output_fraction is .*; it must be above 0 and at most 1"):
        Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, output_fraction=wrong)
    with pytest.raises(SettingError, match=r"output_fraction: is .*; it must be above 0 and at most 1"):
        ServingConfig(output_fraction=wrong)


@pytest.mark.parametrize("chunk", [0, -3, 10**30, 2.5, "8", None], ids=repr)
def test_a_chunk_is_a_count_of_tokens(chunk: Any) -> None:
    """At least one, and no more than there can be of."""
    storage, _ = made()
    with pytest.raises(KvarenaError, match="chunk_tokens is"):
        Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=chunk)


WRONG_LENGTHS = [(0, 4), (-1, 4), (10**30, 4), (4, 10**30), (4, -1), (NAN, 4), (4, NAN), ("a", 4), (None, 4), (True, 4)]


@pytest.mark.req("ADM-1")
@pytest.mark.parametrize("lengths", WRONG_LENGTHS, ids=repr)
def test_lengths_are_counts_of_tokens(lengths: tuple[Any, Any]) -> None:
    """By whichever way a request comes."""
    storage, admission = made()
    doors: list[Callable[[], object]] = [
        lambda: admission.ask(*lengths),
        lambda: admission.never(*lengths),
        lambda: admission.clip(*lengths),
        lambda: admission.demand(*lengths),
        lambda: admission.admit([(4, 1), lengths]),
        lambda: admission.preempt(lengths, []),
    ]
    for door in doors:
        with nothing_changes(storage), pytest.raises(KvarenaError, match=r"a request's (prompt|output)_tokens"):
            door()
        assert admission.promised() == (1, 2)


@pytest.mark.req("ADM-4")
def test_an_absurd_length_is_never_served() -> None:
    """It is a length still: the answer is the sum, and what would fit."""
    _, admission = made()
    never = admission.ask(1 << 40, 5)
    assert isinstance(never, Never)
    assert never == admission.never(1 << 40, 5)
    assert isinstance(admission.ask(never.largest_prompt, 5), Admit)
    assert admission.clip(1 << 40, 5) == 0
    assert admission.clip(4, 1 << 40) == admission.clip(4, admission.clip(4, 1 << 40))


@pytest.mark.parametrize("wrong", [None, 5, [5], [None], [()], [(1,)], [(1, 2, 3, 4, 5, 6)], "ab"], ids=repr)
def test_what_is_no_queue_admits_nobody(wrong: Any) -> None:
    """Nor one with something in it that is no request."""
    storage, admission = made()
    with nothing_changes(storage), pytest.raises(KvarenaError, match="request"):
        admission.admit(wrong)
    assert admission.promised() == (1, 2)


@pytest.mark.parametrize("wrong", [5, None, [5], [None], [(0,)], [Victim("a")], [Victim(NAN)], [Victim(99)]], ids=repr)  # type: ignore[arg-type]
def test_victims_are_rows(wrong: Any) -> None:
    """As a sequence of them."""
    storage, admission = made()
    with nothing_changes(storage), pytest.raises(KvarenaError, match="victim"):
        admission.preempt(Asked(4, 1), wrong)


@pytest.mark.parametrize("wrong", ["abc", None, 5, (1,), (1, 2, 3), (1, NAN), (1, 1.0), (1, -1), ("a", "b")], ids=repr)
def test_units_are_a_count_for_each_sub_pool(wrong: Any) -> None:
    """For what was promised, and for what was not."""
    storage, admission = made()
    for door in (admission.room_for, admission.free_for):
        with nothing_changes(storage), pytest.raises(KvarenaError, match="units"):
            door(wrong)
    assert admission.room_for(np.array([1, 2]))  # type: ignore[arg-type]
    assert admission.free_for((1, 2))


@pytest.mark.req("ADM-3")
def test_lengths_and_units_of_few_bits_are_counts() -> None:
    """An engine's numpy numbers, whose own sums would overflow."""
    _, admission = made()
    assert admission.ask(np.int8(100), np.int8(100)) == admission.ask(100, 100)  # type: ignore[arg-type]
    assert admission.admit([(np.int8(4), np.int8(1))])[0] == [Admit((1, 1))]  # type: ignore[list-item]
