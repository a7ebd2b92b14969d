"""The judge alone: what it repeats of a report, and what it refuses to repeat."""

import pytest
from hands import make_request, plain

from kvarena.plugins.serving.report import DONE, Attempt, Forward, Report, Served
from kvarena.plugins.transformers.verify import Difference, Verdict, verify
from kvarena.terms.errors import InvariantError, KvarenaError


def judged(model, request, attempts, tokens, generated=None):
    """The verdict on a report of one request."""
    count = len(tokens) if generated is None else generated
    served = Served(request, DONE, generated=count, attempts=tuple(attempts))
    report = Report((served,), (), 0, 0.0, 0, 0, 0, 0, 0.0, 0.0)
    return verify(model, report, lambda number: tuple(tokens))


def prefill(stops):
    """The forwards up to each of these lengths; the last one samples."""
    starts = [0, *stops[:-1]]
    return tuple(Forward(start, stop, stop == stops[-1]) for start, stop in zip(starts, stops, strict=True))


def decode(first, last):
    """A forward of one token from each of these lengths."""
    return tuple(Forward(stop - 1, stop, True) for stop in range(first + 1, last + 1))


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss"])
def test_a_cached_prefix_is_repeated_in_the_pieces_that_computed_it(tiny, name):
    """Another request's forwards come first, then the attempt's own; a token that differs is named."""
    model, request = tiny(name), make_request(0, 40, 6)
    tokens = plain(model, request.prompt, [8, 16, 24, 32, 40], 6)
    attempt = Attempt((Forward(24, 32, False), Forward(32, 40, True), *decode(40, 45)), cached=24, origin=(8, 16, 24))

    assert judged(model, request, [attempt], tokens) == Verdict(True, 1, 6)
    wrong = [*tokens[:3], (tokens[3] + 1) % 256, *tokens[4:]]
    assert judged(model, request, [attempt], wrong).difference == Difference(0, 3, tokens[3], wrong[3])


def test_what_a_dropped_forward_sampled_is_left_out(tiny):
    """A retraction, and a second attempt behind the first one's rows: the tokens that count are compared."""
    model, request = tiny("lfm3"), make_request(0, 20, 8)
    tokens = plain(model, request.prompt, [16, 20], 8)
    first = Attempt((*prefill([16, 20]), *decode(20, 24)))
    second = Attempt(decode(24, 26), cached=24, origin=(16, 20, 21, 22, 23, 24))

    assert judged(model, request, [first, second], [*tokens[:7], 255], generated=7) == Verdict(True, 1, 7)


def test_a_prefix_that_nobody_computed_is_an_error(tiny):
    """An origin that does not end where the attempt began cannot be repeated."""
    model, request = tiny("llama"), make_request(0, 20, 2)
    attempt = Attempt((Forward(16, 20, True),), cached=16, origin=(8,))
    with pytest.raises(InvariantError, match="origin_of_cached_rows"):
        judged(model, request, [attempt], [5])


def test_a_token_without_its_forward_and_a_forward_without_its_token_are_errors(tiny):
    """Each token that counts is sampled by one kept forward, in order."""
    model, request = tiny("llama"), make_request(0, 20, 4)
    tokens = plain(model, request.prompt, [20], 3)
    whole = (*prefill([20]), *decode(20, 22))
    with pytest.raises(KvarenaError, match="has 3 tokens, and its kept forwards sampled 2"):
        judged(model, request, [Attempt(whole[:2])], tokens)
    with pytest.raises(KvarenaError, match="has 2 tokens, and a kept forward samples token 2 after 2"):
        judged(model, request, [Attempt(whole)], tokens, generated=2)
    with pytest.raises(KvarenaError, match="samples token 0 after 1"):
        judged(model, request, [Attempt(whole[:1]), Attempt(prefill([20]))], tokens)
    with pytest.raises(KvarenaError, match="keep_forwards"):
        judged(model, request, [Attempt(())], tokens)
