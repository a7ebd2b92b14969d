"""An answer with its reasons: the layout, what moves at most, what is waited for; or what is short, and of what."""

import random

import pytest

from kvarena.planning.explain import Moved, explain
from kvarena.planning.pricing import Waits, feasible
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.ports import HIGH, LOW

MIB = 1 << 20


def three(*, pending: int = 0, reserved: int = 0) -> ChainSnapshot:
    """A state, a window and full attention on 100 MiB: 10 MiB, 20 MiB and 30 MiB live, 5 MiB of holes in the state.

    The window's reserved pages lie before its live ones, its pending pages after them.
    """
    window = BandShot("window", MIB // 2, None, 40, 0, 60 - reserved, 100 + pending, 500, pending, reserved=reserved)
    if reserved:
        window = window._replace(fixed_start=60 - reserved, fixed_stop=60)
    return ChainSnapshot(
        0,
        100 * MIB,
        (
            BandShot("state", MIB, LOW, 10, 5, 0, 15, 50),
            window,
            BandShot("full", MIB // 4, HIGH, 120, 0, 280, 400, 1000),
        ),
    )


def test_a_yes_in_place() -> None:
    """Nothing moves and nothing is waited for."""
    answer = explain(three(), (3, 0, 8))
    assert answer.fits
    assert answer.moved == ()
    assert str(answer) == (
        "3 of 'state', 8 of 'full': fits\n"
        "  layout: NO_MOVE: state [0, 15) stay, window [60, 100) stay, full [272, 400) stay\n"
        "  moves: nothing\n"
        "  waits: nothing"
    )


def test_a_yes_says_what_moves_at_most_and_what_is_settled() -> None:
    """The float goes right by 4 MiB after its pending pages are settled; only what leaves its old place is counted."""
    answer = explain(three(pending=2), (24, 0, 0))
    assert answer.arrangement is not None
    assert answer.arrangement.waits is Waits.SETTLE
    assert answer.moved == (Moved("window", 8, 4 * MIB),)
    assert answer.settling == (("window", 2),)
    assert str(answer) == (
        "24 of 'state': fits\n"
        "  layout: RELAYOUT once settled: state [0, 34) stay, window [68, 108) move, full [280, 400) stay\n"
        "  moves: at most 8 pages, 4.00 MiB: window 8 (4.00 MiB)\n"
        "  waits: pending and vacated pages (window 2)"
    )


def test_a_no_names_the_band_the_bytes_and_the_most_that_fits() -> None:
    """40 MiB are free: 45 of them are 5 too many, once everything is packed."""
    answer = explain(three(pending=2), (45, 0, 0))
    assert not answer.fits
    assert answer.short is not None
    assert (answer.short.shot.name, answer.short.bytes, answer.short.most) == ("state", 5 * MIB, 40)
    assert str(answer) == (
        "45 of 'state': does not fit\n"
        "  needs 45 units of 'state'; 40 can be had beside the rest\n"
        "  state: live 10 · holes 5 · pending 0 · vacated 0 · reserved 0 · ids left 50\n"
        "  short of 5.00 MiB, everything settled, released and packed\n"
        "  nearest: ask for at most 40 of 'state', or free some of any band"
    )


def test_a_no_for_want_of_ids() -> None:
    """Ids are named where they run out before the bytes."""
    answer = explain(three(), (51, 0, 0))
    assert answer.short is not None
    assert (answer.short.ids, answer.short.bytes, answer.short.most) == (1, 0, 40)
    assert "  1 more than there are ids left" in str(answer)


def test_a_no_whose_rest_alone_is_too_much() -> None:
    """The band that fails is the first in chain order; without any of it the others still do not fit."""
    answer = explain(three(), (45, 100, 500))
    assert answer.short is not None
    assert answer.short.shot.name == "state"
    assert answer.short.most is None
    assert "the rest alone is too much" in str(answer)
    assert "ask for less of the other sub-pools" in str(answer)


def test_a_wait_for_transfers_is_told() -> None:
    """The reserved pages that a send reads are in the way until the host has waited for it."""
    snapshot = three(reserved=2)
    state, window, full = snapshot.bands
    free = window._replace(holes=2, reserved=0, fixed_start=0, fixed_stop=0)
    answer = explain(snapshot._replace(released=(state, free, full)), (20, 0, 0))
    assert answer.arrangement is not None
    assert answer.arrangement.waits is Waits.TRANSFERS
    assert str(answer).endswith("waits: every transfer, on the host")
    assert explain(snapshot, (20, 0, 0)).short is not None


@pytest.mark.req("CAP-5")
def test_what_is_explained_is_what_is_answered() -> None:
    """Yes and no are ``feasible``'s; the most that can be had fits, one more does not; short bytes are whole units."""
    refused = 0
    for seed in range(1500):
        rng = random.Random(seed)
        demand = (rng.randint(0, 30), rng.randint(0, 50), rng.randint(0, 120))
        snapshot = three(pending=rng.randint(0, 9), reserved=2 if rng.random() < 0.3 else 0)
        if rng.random() < 0.3:
            state, window, full = snapshot.bands
            fixed = window._replace(fixed_start=window.fixed_start or 70, fixed_stop=72)
            snapshot = snapshot._replace(bands=(state, fixed, full))
        answer = explain(snapshot, demand)
        assert answer.fits == feasible(snapshot, demand)
        assert 3 <= str(answer).count("\n") + 1 <= 6
        short = answer.short
        if short is None:
            continue
        refused += 1
        names = [shot.name for shot in snapshot.bands]
        index = names.index(short.shot.name)
        assert short.asked == demand[index] > 0
        assert bool(short.ids) != bool(short.bytes)
        if short.most is not None:
            ask = list(demand)
            ask[index] = short.most
            assert feasible(snapshot, ask)
            ask[index] += 1
            assert not feasible(snapshot, ask)
    assert 100 < refused < 1400
