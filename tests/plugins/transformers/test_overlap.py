"""The runner under overlapped steps, driven by hand: tokens that the host has not seen, drops, failures."""

import threading
import time

import pytest
import torch
from hands import Hand, Watched, make_request, make_storage, plain

from kvarena.plugins.serving.port import Request
from kvarena.terms.errors import InvariantError, KvarenaError

FAMILIES = ["lfm3", "qwen3_next", "gemma3_text", "gpt_oss", "jamba", "kimi_linear", "falcon_h1"]


def two_in_flight(hand: Hand, rows: list[int], requests: list[Request], steps: int) -> None:
    """Decode steps of all rows, each launched before the result of the one before it is asked for."""
    lengths = [request.prompt_tokens for request in requests]
    for step in range(1, steps + 1):
        hand.launch(
            *[(row, request, at + step, True) for row, request, at in zip(rows, requests, lengths, strict=True)]
        )
        if len(hand.flying) == 2:
            hand.land()
    while hand.flying:
        hand.land()


@pytest.mark.parametrize("name", FAMILIES)
def test_overlapped_steps_give_the_tokens_and_logits_of_lock_step(tiny, name):
    """Two forwards in flight, on a thread of their own: the same bits as one after another, and plain's tokens."""
    model = tiny(name)
    requests = [make_request(0, 21, 8), make_request(1, 30, 8)]
    watched = {}
    for in_flight in (2, 0):
        storage = make_storage(model, in_flight=in_flight)
        hand = Hand(model, storage)
        hand.runner.model = watched[in_flight] = Watched(model)
        rows = [hand.open(), hand.open()]
        hand.prefill(rows[0], requests[0], [16, 21])
        hand.prefill(rows[1], requests[1], [8, 24, 30])
        two_in_flight(hand, rows, requests, 7)

        assert list(hand.runner.tokens(0)) == plain(model, requests[0].prompt, [16, 21], 8)
        assert list(hand.runner.tokens(1)) == plain(model, requests[1].prompt, [8, 24, 30], 8)
        storage.release()
    assert len(watched[2].logits) == len(watched[0].logits) == 2 + 3 + 2 * 7
    assert all(map(torch.equal, watched[2].logits, watched[0].logits))


def test_a_decode_step_forwards_what_is_still_to_be_sampled(tiny):
    """Two steps are launched while the stream is held up: the second one's input exists on the stream alone."""
    model = tiny("lfm3")
    storage = make_storage(model)
    hand = Hand(model, storage)
    request, row, gate = make_request(0, 20, 8), hand.open(), threading.Event()

    hand.launch((row, request, 20, True), before=lambda forward: storage.forwards.run(forward, gate.wait))
    hand.launch((row, request, 21, True))
    assert hand.runner.tokens(0) == ()
    gate.set()
    ended = [hand.land().ended.tolist() for _ in range(2)]

    assert list(hand.runner.tokens(0)) == plain(model, request.prompt, [20], 2)
    assert ended == [[False], [False]]
    storage.release()


def test_ids_are_read_at_launch_and_bytes_in_their_turn(tiny):
    """Pages move between the launch and the forward's turn: it reads the rows where its step had them."""
    model = tiny("lfm3")
    storage = make_storage(model)
    hand = Hand(model, storage)
    other, request = make_request(1, 24, 2), make_request(0, 40, 8)
    hole, row = hand.open(), hand.open()
    hand.launch((hole, other, 24, True))
    hand.land()
    hand.prefill(row, request, [16, 32, 40])
    gate = threading.Event()
    storage.close(hole)

    hand.launch((row, request, 41, True), before=lambda forward: storage.forwards.run(forward, gate.wait))
    threading.Timer(0.05, gate.set).start()
    moved = storage.flush()
    hand.launch((row, request, 42, True))
    hand.land(), hand.land()
    storage.verify()

    assert moved > 0
    assert list(hand.runner.tokens(0)) == plain(model, request.prompt, [16, 32, 40], 3)
    storage.release()


def test_a_dropped_sample_is_replaced_when_its_position_is_sampled_again(tiny):
    """A retraction under two forwards in flight: nobody counts their samples; the next attempt's take their place."""
    model = tiny("qwen3_next")
    storage = make_storage(model)
    hand = Hand(model, storage)
    request, row = make_request(0, 20, 8), hand.open()
    hand.prefill(row, request, [16, 20])
    for stop in (21, 22):
        hand.launch((row, request, stop, True))
    storage.close(row)
    hand.land(), hand.land()
    kept = hand.runner.tokens(0)[:1]

    row = hand.open()
    known = [*request.prompt, *kept]
    assert hand.runner.keys(request, 21).tolist() == known
    hand.prefill(row, request, [8, 21])
    assert len(hand.runner.tokens(0)) == 2
    hand.launch((row, request, 22, True))
    hand.land()

    assert list(hand.runner.tokens(0)) == [*kept, *plain(model, known, [8, 21], 2)]
    storage.release()


def test_a_step_wasted_after_an_end_token_does_not_show(tiny):
    """The end is known on the host one step late; what the step in flight sampled behind it counts for nothing."""
    model = tiny("lfm3")
    request = make_request(0, 20, 8)
    expected = plain(model, request.prompt, [20], 8)
    end = next(at for at in range(1, 6) if expected[at] not in expected[:at])
    storage = make_storage(model, in_flight=3)
    model.generation_config.eos_token_id = expected[end]
    try:
        hand = Hand(model, storage)
    finally:
        model.generation_config.eos_token_id = None
    row = hand.open()
    for stop in range(20, 23 + end):
        hand.launch((row, request, stop, True))
        if len(hand.flying) == 3:
            assert hand.land().ended.tolist() == [stop - 22 == end]
    hand.land(), hand.land()

    assert list(hand.runner.tokens(0)) == expected[: end + 1]
    storage.release()


@pytest.mark.parametrize("in_flight", [2, 0])
def test_what_the_model_raises_comes_from_its_result(tiny, in_flight):
    """As itself and once; the batch behind it is not run, and the storage is released without another word."""
    model = tiny("llama")
    storage = make_storage(model, in_flight=in_flight)
    hand = Hand(model, storage)
    hand.runner.model = watched = Watched(model, fails_at=1)
    request, row = make_request(0, 10, 4), hand.open()
    hand.launch((row, request, 10, True))
    hand.launch((row, request, 11, True))
    hand.land() if in_flight else hand.runner.result(hand.flying.popleft()[0])
    if in_flight:
        hand.launch((row, request, 12, True))
    with pytest.raises(ArithmeticError, match="planted"):
        hand.land()
    if in_flight:
        with pytest.raises(
            KvarenaError, match=r"not run: the model failed in an earlier batch \(ArithmeticError: planted"
        ):
            hand.land()

    assert len(watched.logits) == 1
    assert len(hand.runner.tokens(0)) == 1
    storage.release()


def test_a_storage_is_released_under_a_forward_that_fails(tiny):
    """Nobody asked for the result: the release waits for the stream, and raises nothing."""
    model = tiny("llama")
    storage = make_storage(model)
    hand = Hand(model, storage)
    hand.runner.model = Watched(model, fails_at=0)
    hand.launch((hand.open(), make_request(0, 10, 4), 10, True))
    storage.release()


def test_a_launch_returns_at_once(tiny):
    """The host is not held up by the model: the forward runs on its stream's thread."""
    model = tiny("llama")
    storage = make_storage(model)
    hand = Hand(model, storage)
    request, row = make_request(0, 10, 4), hand.open()
    where = []
    hand.runner.model = lambda **arguments: (
        time.sleep(0.2),
        where.append(threading.current_thread()),
        model(**arguments),
    )[2]
    hand.runner.model.device = model.device
    began = time.perf_counter()
    hand.launch((row, request, 10, True))
    launched = time.perf_counter() - began
    hand.land()

    assert launched < 0.1 < time.perf_counter() - began
    assert where[0] is not threading.current_thread()
    storage.release()


def test_the_model_runs_with_the_threads_of_whoever_launches(tiny):
    """Another number of threads adds in another order: the stream's thread takes the caller's."""
    model = tiny("llama")
    storage = make_storage(model)
    hand = Hand(model, storage)
    request, row, seen = make_request(0, 10, 4), hand.open(), []

    def counted(**arguments):
        seen.append(torch.get_num_threads())
        return model(**arguments)

    counted.device = model.device
    hand.runner.model = counted
    for stop, threads in ((10, 1), (11, 2), (12, 1)):
        torch.set_num_threads(threads)
        hand.launch((row, request, stop, True))
        hand.land()

    assert seen == [1, 2, 1]
    storage.release()


def test_keys_are_the_prompt_and_then_what_was_sampled(tiny):
    """Int64 and read-only; there are none for a request of lengths alone, nor beyond what is known."""
    model = tiny("llama")
    storage = make_storage(model)
    hand = Hand(model, storage)
    request = make_request(0, 10, 4)
    assert hand.runner.keys(request, 10).tolist() == list(request.prompt)
    hand.prefill(hand.open(), request, [10])
    keys = hand.runner.keys(request, 11)

    assert keys.tolist() == [*request.prompt, *hand.runner.tokens(0)]
    assert keys.dtype == "int64"
    with pytest.raises(ValueError, match="read-only"):
        keys[0] = 1
    assert hand.runner.keys(Request(5, 0.0, 8, 2), 8) is None
    with pytest.raises(InvariantError, match="keys_before_sampled"):
        hand.runner.keys(request, 12)
    storage.release()


def test_a_result_is_asked_for_once(tiny):
    """A batch that was not launched, or whose result was given, has none."""
    model = tiny("llama")
    storage = make_storage(model)
    hand = Hand(model, storage)
    hand.launch((hand.open(), make_request(0, 10, 4), 10, True))
    batch = hand.flying[0][0]
    hand.land()
    with pytest.raises(InvariantError, match="result_of_unlaunched_batch"):
        hand.runner.result(batch)
    storage.release()
