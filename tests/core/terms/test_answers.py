"""Answers: what they say, what they are equal to, and what is only worked out when somebody asks."""

import pytest

from kvarena.terms.answers import Admit, Never, Wait, named

NAMES = ("state", "full")


@pytest.mark.req("ADM-4")
@pytest.mark.req("ADM-7")
def test_a_wait_says_its_sum_what_it_waits_for_and_what_would_fit() -> None:
    """For people; the longest prompt is looked for when it is asked for, and not before."""
    looked = []

    def longest() -> int:
        looked.append(1)
        return 1200

    wait = Wait(NAMES, (1, 7), (2, 30), ("3 running requests", "1 forward in flight"), longest)
    assert wait.reason == (
        "asked 1 state, 7 full (units per sub-pool); held back for running requests: 2 state, 30 full; "
        "waits for 3 running requests, 1 forward in flight"
    )
    assert (bool(wait), looked) == (False, [])
    assert wait.largest_prompt == 1200
    assert str(wait) == wait.reason + "; a prompt of at most 1,200 tokens would fit now"
    assert "longest" not in repr(wait)


def test_waits_of_the_same_sum_are_equal() -> None:
    """Whatever they wait for, and however they would look for what fits."""
    assert Wait(NAMES, (1, 7), (2, 30), ("1 running request",), lambda: 5) == Wait(NAMES, (1, 7), (2, 30))
    assert Wait(NAMES, (1, 7), (2, 30)) != Wait(NAMES, (1, 7), (2, 31))
    assert str(Wait(NAMES, (1, 7), (2, 30))).endswith("2 state, 30 full; no prompt would fit now")


@pytest.mark.req("ADM-7")
def test_a_never_says_its_sum_and_what_would_fit() -> None:
    """Or that nothing would."""
    assert str(Never("asked 9 full", 40)) == "asked 9 full; a prompt of at most 40 tokens would fit with this output"
    assert str(Never("asked 9 full", 0)).endswith("no prompt would fit with this output: ask for fewer tokens")
    assert not Never("asked 9 full", 40)


def test_an_admit_is_plain() -> None:
    """Its charge, and what has to be done first, which by default is nothing."""
    assert Admit((1, 7)) == ((1, 7), False, None)
    assert Admit((1, 7), evicts=True, chunk_tokens=64).chunk_tokens == 64


def test_units_are_named_in_order() -> None:
    """One name beside each count."""
    assert named(NAMES, (1, 7)) == "1 state, 7 full"
    with pytest.raises(ValueError, match="zip"):
        named(NAMES, (1,))
