"""Requests that share prefixes: what the second one starts from, at which checkpoints, and what is given back."""

import pytest
from loops import CountingRunner, assert_empty, loop_of, tokens_of

from kvarena.assembly.config import PrefixConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, Served
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.terms.lifetimes import Full, State, Window

SHARED = PrefixConfig(share=True, checkpoint_tokens=8)
PLAIN = PrefixConfig(share=True)


def one_after_another(loop: Scheduler, *prompts: tuple[int, ...], output: int = 2, apart: float = 50.0) -> list[Served]:
    """Each arrives when the one before it is over."""
    requests = [
        Request(number, number * apart, len(prompt), output, prompt=prompt) for number, prompt in enumerate(prompts)
    ]
    served = list(loop.run(requests).served)
    assert all(one.fate == DONE for one in served)
    return served


@pytest.mark.req("CKP-1")
@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_the_second_request_starts_from_the_last_checkpoint_that_it_shares(in_flight: int) -> None:
    """20 tokens are shared; checkpoints lie at 8 and 16, so that 16 are there, and what computed them is known."""
    head = tokens_of(20)
    loop = loop_of(4000, prefix=SHARED, in_flight=in_flight)
    first, second = one_after_another(loop, head + tokens_of(9, first=1), head + tokens_of(9, first=2))

    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    (attempt,) = second.attempts
    assert (attempt.cached, attempt.origin) == (16, (8, 16))
    assert [(step.start, step.stop) for step in attempt.forwards] == [(16, 24), (24, 29), (29, 30)]
    assert_empty(loop)


@pytest.mark.req("CKP-2")
def test_a_prompts_chunks_end_on_the_grid() -> None:
    """Chunks of 12 on a grid of 8 end at 8, 16, 24; the last one has the rest."""
    loop = loop_of(4000, prefix=SHARED, chunk_tokens=12)
    (served,) = one_after_another(loop, tokens_of(27))
    assert [step.stop for step in served.attempts[0].forwards] == [8, 16, 24, 27, 28]


def test_without_states_any_page_is_a_landing() -> None:
    """A window and full attention, pages of 4: 18 shared tokens are 16 to start from; one token is always left."""
    head = tokens_of(18)
    loop = loop_of(4000, lifetimes=(Window(8), Full()), prefix=PLAIN, in_flight=2)
    served = one_after_another(loop, head + tokens_of(6, first=1), head + tokens_of(6, first=2), head[:16])

    assert [one.cached_tokens for one in served] == [0, 16, 12]
    assert_empty(loop)


@pytest.mark.req("CKP-1")
def test_no_buffer_keeps_the_state_of_a_requests_end_alone() -> None:
    """A request that ends on a page's end, 20 rows, leaves its state; who goes on from there starts with them."""
    prompt = tokens_of(17)
    runner = CountingRunner()
    loop = loop_of(4000, prefix=PrefixConfig(share=True, strategy="no_buffer"), runner=runner, in_flight=2)
    report = loop.run([Request(0, 0.0, 17, 4, prompt=prompt)])
    longer = (*prompt, *runner.tokens(0))
    second = loop.run([Request(1, loop.now, len(longer), 1, prompt=longer)]).served[0]

    assert report.cache is not None
    assert report.cache.checkpoints_taken == 0
    assert second.cached_tokens == 20
    assert_empty(loop)


@pytest.mark.parametrize(("cache_outputs", "cached"), [(True, 24), (False, 16)])
def test_outputs_are_cached_where_the_config_says_so(cache_outputs: bool, cached: int) -> None:
    """A second turn that holds the first one's answer starts behind it, or behind the first prompt."""
    runner = CountingRunner()
    config = PrefixConfig(share=True, checkpoint_tokens=8, cache_outputs=cache_outputs)
    loop = loop_of(4000, prefix=config, runner=runner)
    loop.run([Request(0, 0.0, 18, 10, prompt=tokens_of(18))])
    turn = (*tokens_of(18), *runner.tokens(0), 5, 6, 7)
    served = loop.run([Request(1, loop.now, len(turn), 2, prompt=turn)]).served[0]

    assert served.cached_tokens == cached


def test_namespaces_keep_prefixes_apart() -> None:
    """Equal tokens under another salt are other tokens."""
    loop = loop_of(4000, prefix=SHARED)
    prompt = tokens_of(20)
    requests = [
        Request(number, 50.0 * number, 20, 2, prompt=prompt, namespace=name)
        for number, name in enumerate([None, "salt", "salt", None])
    ]
    assert [one.cached_tokens for one in loop.run(requests).served] == [0, 0, 16, 16]
    assert_empty(loop)


def test_requests_without_tokens_are_served_and_not_cached() -> None:
    """Where the runner knows no keys, nothing is matched, checkpointed or kept."""
    loop = loop_of(4000, prefix=SHARED)
    report = loop.run([Request(number, 50.0 * number, 20, 9) for number in range(2)])
    assert report.cache is not None
    assert (report.cache.cached_tokens, report.cache.checkpoints_taken, report.cache.entries) == (0, 0, 0)


@pytest.mark.req("CKP-1")
def test_lazily_a_checkpoint_without_a_slot_is_skipped_and_the_request_goes_on() -> None:
    """The arena holds the request and no second slot: every checkpoint is skipped, and everybody is served."""
    config = PrefixConfig(share=True, strategy="extra_buffer_lazy", checkpoint_tokens=8)
    loop = loop_of(120, prefix=config, running=1, context=40, lifetimes=(State(), Full()))
    report = loop.run([Request(0, 0.0, 30, 10, prompt=tokens_of(30)), Request(1, 0.0, 30, 10, prompt=tokens_of(30))])

    assert report.count(DONE) == 2
    assert report.cache is not None
    assert (report.cache.checkpoints_taken, report.cache.checkpoints_skipped) == (0, 8)
    assert_empty(loop)


def test_a_checkpoint_whose_window_rows_are_gone_by_its_result_is_skipped() -> None:
    """Three in flight, a grid point in each: when the first is looked at, its row has let go of the rows behind it."""
    loop = loop_of(4000, prefix=SHARED, in_flight=3)
    report = loop.run([Request(0, 0.0, 29, 2, prompt=tokens_of(29))])
    assert report.cache is not None
    assert (report.cache.checkpoints_taken, report.cache.checkpoints_skipped) == (1, 2)
    assert_empty(loop)


def test_a_branch_that_nobody_can_land_at_is_made_a_landing() -> None:
    """Three share 40 tokens inside a chunk of 64: the second cuts its chunk there, and the third starts from it."""
    head = tokens_of(40)
    loop = loop_of(8000, prefix=PLAIN, lifetimes=(Window(8), Full()), chunk_tokens=64, step_tokens=64, context=128)
    served = one_after_another(loop, *(head + tokens_of(30, first=number) for number in (1, 2, 3)))

    assert [one.cached_tokens for one in served] == [0, 0, 40]
    assert [step.stop for step in served[1].attempts[0].forwards] == [40, 64, 70, 71]
    assert_empty(loop)


@pytest.mark.req("ADM-1")
def test_a_retracted_request_starts_again_from_what_it_had() -> None:
    """Charged a tenth, some are retracted; what they had computed is in the cache, where nobody needed its room."""
    loop = loop_of(320, prefix=PLAIN, lifetimes=(Window(8), Full()), output_fraction=0.1, in_flight=2)
    report = loop.run([Request(number, 0.0, 24, 20, prompt=tokens_of(24, first=number)) for number in range(6)])

    assert report.count(DONE) == 6
    again = [served for served in report.served if served.retractions]
    assert {attempt.cached for served in again for attempt in served.attempts[1:]} == {36, 32}
    for served in again:
        sampled = [step.stop for attempt in served.attempts for step in attempt.forwards if step.samples]
        assert sampled == [*range(24, 44)]
    assert_empty(loop)


def test_without_a_cache_the_config_that_shares_changes_nothing_else() -> None:
    """The cache off: no keys are asked for, and the report has no cache."""
    loop = loop_of(4000, in_flight=2)
    report = loop.run([Request(0, 0.0, 20, 4, prompt=tokens_of(20))])
    assert report.cache is None
    assert report.served[0].cached_tokens == 0
