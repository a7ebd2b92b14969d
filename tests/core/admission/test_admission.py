"""Admission: a concrete demand beside what was promised; answers that carry their sum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes

from kvarena.admission.admission import Admission
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, State, Window

CATALOG = Catalog.installed()


def storage_of(*parts, memory, page_tokens=4, context=64, running=4):
    """A host storage with one layer per (lifetime, bytes per entry)."""
    layers = [Layer(index, (Part(Bytes(size), lifetime, "part"),)) for index, (lifetime, size) in enumerate(parts)]
    config = StorageConfig(
        arena=ArenaConfig(
            memory=memory, page_tokens=page_tokens, context_tokens=context, max_running=running, mirrors=False
        ),
        backend="host",
    )
    return build_storage(layers, config, CATALOG)


def admission_of(storage, *, chunk=8, fraction=1.0):
    return Admission(storage.chain, storage.sizing, chunk_tokens=chunk, output_fraction=fraction)


@pytest.mark.req("ADM-1")
def test_a_charge_is_the_expected_output_and_never_is_the_whole_one():
    """A fraction lowers the charge of an arriving request, not the judgement that it can finish at all."""
    storage = storage_of((Full(), 2), memory=8 * 9)
    admission = admission_of(storage, fraction=0.25)
    held = storage.requests.held
    assert admission.ask(8, 16, held) == Admit((3,))
    assert admission_of(storage).ask(8, 16, held) == Admit((6,))
    assert isinstance(admission.ask(8, 26, held), Never)


@pytest.mark.req("ADM-1")
@pytest.mark.req("CAP-1")
def test_what_was_charged_and_not_yet_taken_is_held_back():
    """Two requests that fit one by one do not fit together; what one has taken is not counted twice."""
    storage = storage_of((Full(), 2), memory=8 * 9)
    admission = admission_of(storage)
    held = storage.requests.held
    row = storage.open()
    admission.charge(row, admission.ask(8, 9, held).charge)
    assert admission.promised(held) == (4,)
    assert isinstance(admission.ask(8, 9, held), Admit)
    waiting = admission.ask(8, 13, held)
    assert isinstance(waiting, Wait)
    assert "5 full" in waiting.reason
    assert "held back for running requests: 4 full" in waiting.reason
    storage.step(np.array([row]), np.array([16]))
    assert admission.promised(held) == (0,)
    assert isinstance(admission.ask(8, 13, held), Wait)
    storage.close(row)
    admission.forget(row)
    assert isinstance(admission.ask(8, 13, held), Admit)


@pytest.mark.req("CAP-1")
def test_enough_free_bytes_do_not_admit():
    """136 bytes are free and 130 are asked, but a slot of 50, a page of 44 and one of 36 lie on grids of their own."""
    storage = storage_of((State(), 50), (Window(8), 11), (Full(), 9), memory=440)
    admission, held = admission_of(storage), storage.requests.held
    storage.step(np.array([storage.open()]), np.array([8]))
    charge = admission.demand(1, 1)
    asked = sum(units * pool.unit_bytes for units, pool in zip(charge, storage.plan.sub_pools, strict=True))
    assert (charge, asked, storage.chain.free_bytes) == ((1, 1, 1), 130, 136)
    assert isinstance(admission.ask(1, 1, held), Wait)


@pytest.mark.req("ADM-1")
def test_a_window_is_charged_what_it_will_hold():
    """F page 2u, W page 1u, P=4, W=8: 60 prompt tokens and 4 more need 35 to 37 units by their chunk."""
    unit = 8
    for chunk, units in {1: 35, 2: 35, 3: 36, 4: 35, 5: 36, 6: 36, 7: 37, 8: 36}.items():
        for arena in (34, 36, 38):
            # both token sinks lie at the top of the arena, the larger one over the other
            storage = storage_of((Window(8), unit // 4), (Full(), unit // 2), memory=unit * (arena + 2))
            answer = admission_of(storage, chunk=chunk).ask(60, 4, storage.requests.held)
            assert isinstance(answer, Admit if units <= arena else Never)


@given(st.integers(1, 64), st.integers(1, 40), st.integers(100, 600), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_never_names_the_longest_prompt_that_would_fit(prompt, output, memory, chunk):
    """One token more than the longest is refused, the longest itself is not."""
    storage = storage_of((State(), 40), (Window(8), 3), (Full(), 2), memory=memory + 100)
    admission = admission_of(storage, chunk=chunk)
    answer = admission.ask(prompt, output, storage.requests.held)
    longest = admission.largest_prompt(output)
    if isinstance(answer, Never):
        assert answer.largest_prompt == longest < prompt
    else:
        assert longest >= prompt
    assert longest == 0 or admission.fits_alone(longest, output)
    assert not admission.fits_alone(longest + 1, output)


@given(st.integers(1, 50), st.integers(1, 14), st.integers(150, 700), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_an_admitted_request_never_runs_dry(prompt, output, memory, chunk):
    """What admission promises at a fraction of 1.0, every step of the request's life delivers."""
    storage = storage_of((State(), 40), (Window(8), 3), (Full(), 2), memory=memory + 100)
    admission = admission_of(storage, chunk=chunk)
    if not isinstance(admission.ask(prompt, output, storage.requests.held), Admit):
        return
    row, length = storage.open(), 0
    while length < prompt + output - 1:
        length = min(length + chunk, prompt) if length < prompt else length + 1
        assert not isinstance(storage.step(np.array([row]), np.array([length])), Refused)
        held = storage.requests.held[row].tolist()
        assert all(now <= peak for now, peak in zip(held, admission.demand(prompt, output), strict=True))
