"""Rows that begin behind a prefix that another row computed, under overlapped steps, driven by hand."""

import attrs
import numpy as np
import pytest
from hands import Hand, make_request, make_storage, plain, sharing

FAMILIES = ["lfm3", "qwen3_next", "gemma3_text", "gpt_oss", "jamba", "kimi_linear", "falcon_h1"]


def with_prefix(request, prefix):
    """The request with another's first tokens before its own."""
    prompt = (*prefix, *request.prompt)
    return attrs.evolve(request, prompt=prompt, prompt_tokens=len(prompt))


@pytest.mark.parametrize("name", FAMILIES)
def test_readers_of_a_prefix_get_plain_tokens(tiny, name):
    """Two readers start behind 32 tokens while their forward is still running; all three decode overlapped."""
    model = tiny(name)
    storage = make_storage(model, prefix=sharing(16))
    hand = Hand(model, storage)
    donor = make_request(0, 43, 6)
    readers = [with_prefix(make_request(number, 3 + 9 * number, 6), donor.prompt[:32]) for number in (1, 2)]
    rows = [hand.open()]
    hand.launch((rows[0], donor, 16, False))
    hand.launch((rows[0], donor, 32, False), after=hand.checkpoint(rows[0]))
    pages, state = hand.hand_over(rows[0], 32)
    rows += [hand.start_on(pages, state) for _ in readers]

    requests = [donor, *readers]
    hand.land()
    hand.launch(*[(row, request, request.prompt_tokens, True) for row, request in zip(rows, requests, strict=True)])
    for step in range(1, 6):
        hand.land()
        hand.launch(
            *[(row, request, request.prompt_tokens + step, True) for row, request in zip(rows, requests, strict=True)]
        )
    hand.land(), hand.land()
    storage.verify()

    for request in requests:
        assert list(hand.runner.tokens(request.id)) == plain(
            model, request.prompt, [16, 32, request.prompt_tokens], 6
        ), request.id
    storage.close(np.array(rows))
    storage.ownership.free_pages(pages)
    if state is not None:
        storage.sharing.free_slots(np.array([state]))
    assert all(band.live == 0 for band in storage.chain.snapshot().bands)
    storage.release()


@pytest.mark.parametrize("name", ["lfm3", "falcon_h1", "gpt_oss"])
def test_a_request_resumes_behind_what_it_generated_itself(tiny, name):
    """Retracted while decoding, it comes back behind a checkpoint that its own decode steps have passed."""
    model = tiny(name)
    storage = make_storage(model, prefix=sharing(16))
    hand = Hand(model, storage)
    request, row = make_request(0, 27, 24), hand.open()
    hand.launch((row, request, 16, False))
    hand.launch((row, request, 27, True))
    for stop in range(28, 33):
        hand.land()
        hand.launch((row, request, stop, True), after=hand.checkpoint(row) if stop == 32 else None)
    pages, state = hand.hand_over(row, 32)
    hand.land(), hand.land()
    kept = hand.runner.tokens(0)[:6]
    storage.close(row)

    row = hand.start_on(pages, state)
    for stop in range(33, 40):
        hand.launch((row, request, stop, True))
        if len(hand.flying) == 2:
            hand.land()
    hand.land()

    assert list(hand.runner.tokens(0)) == plain(model, request.prompt, [16, 27], 13)
    assert hand.runner.tokens(0)[:6] == kept
    storage.release()


def test_a_prefix_ends_anywhere_where_no_state_is_kept(tiny):
    """Full attention alone: a reader starts inside another's chunk, at any page."""
    model = tiny("llama")
    storage = make_storage(model, prefix=sharing(16))
    hand = Hand(model, storage)
    donor, row = make_request(0, 43, 4), hand.open()
    hand.prefill(row, donor, [43])
    pages, state = hand.hand_over(row, 40)
    reader = with_prefix(make_request(1, 5, 6), donor.prompt[:24])
    row = hand.start_on(pages[:3], state)
    hand.prefill(row, reader, [29])

    for stop in range(30, 34):
        hand.launch((row, reader, stop, True))
        hand.land()

    assert list(hand.runner.tokens(1)) == plain(model, reader.prompt, [24, 29], 5)
    storage.release()
