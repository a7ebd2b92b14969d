"""What a trace says of its tokens, as keys of a prefix cache: equal where the tokens are equal."""

from collections import OrderedDict

import numpy as np

from kvarena.plugins.serving.port import Request
from kvarena.terms.ports import IntArray

SPAN = 1 << 31
"""So many keys belong to one block, or to one request alone: blocks, prompts and outputs are shorter."""


class TraceKeys:
    """Keys of requests' tokens, int64, made when they are asked for; those of the last ``kept`` requests are kept.

    Token i of a prompt lies in block ``prefix_ids[i // block_tokens]`` and is named by the block and its place there.
    Tokens of no block, and those generated, have keys below zero that no other request has.
    """

    def __init__(self, kept: int = 256) -> None:
        self._kept = kept
        self._blocks: dict[int, int] = {}
        self._keys: OrderedDict[int, IntArray] = OrderedDict()

    def of(self, request: Request, count: int) -> IntArray:
        """The keys of a request's first ``count`` tokens; nobody writes them."""
        known = self._keys.get(request.id)
        if known is None or len(known) < count:
            known = self._keys[request.id] = self._make(request, max(count, request.prompt_tokens))
            known.flags.writeable = False
            if len(self._keys) > self._kept:
                self._keys.popitem(last=False)
        self._keys.move_to_end(request.id)
        return known[:count]

    def _make(self, request: Request, count: int) -> IntArray:
        keys: IntArray = -1 - request.id * SPAN - np.arange(count, dtype=np.int64)
        ids, size = request.prefix_ids, request.block_tokens
        if ids and size is not None:
            blocks, places = np.divmod(np.arange(min(count, len(ids) * size, request.prompt_tokens)), size)
            numbers = [self._blocks.setdefault(block, len(self._blocks)) for block in ids]
            keys[: len(blocks)] = np.array(numbers, dtype=np.int64)[blocks] * SPAN + places
        return keys
