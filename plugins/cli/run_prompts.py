"""The prompts of ``kvarena run``: a trace has lengths only, so the tokens are drawn, alike where the trace says so."""

import attrs
import numpy as np

from kvarena.plugins.cli.run_config import RunConfig
from kvarena.plugins.serving.port import Request
from kvarena.terms.ports import IntArray

SPECIAL = 3
"""The first few ids of a vocabulary begin, end and pad texts: prompts are drawn from the others."""

OWN, SHARED, BLOCK = 0, 1, 2
"""What a draw is for: each has numbers of its own."""


def with_prompts(requests: tuple[Request, ...], vocabulary: int, config: RunConfig) -> tuple[Request, ...]:
    """The requests with tokens for their prompts.

    The first ``shared_tokens`` are the same in all of them; those of a block of a shared prefix are the block's.
    """
    own = np.random.default_rng(config.seed)
    shared = _draw((config.seed, SHARED, 0), config.shared_tokens, vocabulary)
    return tuple(
        attrs.evolve(request, prompt=_prompt(request, own, shared, vocabulary=vocabulary, seed=config.seed))
        for request in requests
    )


def _prompt(
    request: Request, own: np.random.Generator, shared: IntArray, *, vocabulary: int, seed: int
) -> tuple[int, ...]:
    tokens = own.integers(SPECIAL, vocabulary, request.prompt_tokens)
    size = request.block_tokens
    for number, block in enumerate(request.prefix_ids or ()):
        if size is None:
            break
        place = tokens[number * size : (number + 1) * size]
        place[:] = _draw((seed, BLOCK, block), size, vocabulary)[: len(place)]
    head = shared[: request.prompt_tokens]
    tokens[: len(head)] = head
    return tuple(tokens.tolist())


def _draw(seed: tuple[int, ...], count: int, vocabulary: int) -> IntArray:
    tokens: IntArray = np.random.default_rng(seed).integers(SPECIAL, vocabulary, count)
    return tokens
