"""vLLM's scheduler-side manager (released as 0.33.0): its own ``KVCacheManager``, planned by its own grouping.

Nothing of it is replaced: it is Python on the host. Packages that it imports and never calls get stand-ins. One page
size serves all layers of a model, so a model with state has pages of hundreds of tokens.
"""

import logging
import math
import types
from typing import Any
from unittest import mock

import attrs
import numpy as np
import torch

from peers.stand_ins import stand_in

ABSENT = ("cv2", "llguidance", "mistral_common", "soundfile", "soxr", "uvloop", "xgrammar")

stand_in(ABSENT)
logging.disable(logging.CRITICAL)

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core import kv_cache_planning  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402

CONTEXT = 131072
CHUNK = 8192
BLOCK = 16
BF16 = torch.bfloat16
VOCABULARY = 100_000

init_none_hash(sha256)
register_all_kvcache_specs(mock.MagicMock())


@attrs.frozen
class Model:
    """The layers that keep memory, as vLLM's specs, and how many blocks there are."""

    specs: tuple[Any, ...]
    blocks: int
    mode: str = "none"


def full_and_window(layers: int, heads: int, head_size: int, window: int) -> Model:
    """As many full layers as window layers, of one shape (gpt-oss)."""
    shape = {"block_size": BLOCK, "num_kv_heads": heads, "head_size": head_size, "dtype": BF16}
    full, short = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=window)
    return Model((full,) * layers + (short,) * layers, blocks=160_000)


def full_and_state(full: tuple[int, int, int], states: int, shapes: tuple[tuple[int, ...], ...], cached: bool) -> Model:
    """Full layers (how many, heads, head size) and state layers; a page of tokens as large as a state (Qwen3-Next)."""
    layers, heads, head_size = full
    state_bytes = sum(math.prod(shape) for shape in shapes) * BF16.itemsize
    token_bytes = 2 * heads * head_size * BF16.itemsize
    block = BLOCK * -(-state_bytes // (BLOCK * token_bytes))
    mode = "align" if cached else "none"
    token_spec = FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=head_size, dtype=BF16)
    state_spec = MambaSpec(
        block_size=block if cached else CONTEXT,
        shapes=shapes,
        dtypes=(BF16,) * len(shapes),
        page_size_padded=block * token_bytes,
        mamba_cache_mode=mode,
        num_prefill_checkpoint_blocks=0,
        prefill_checkpoint_alignment=None,
    )
    return Model((token_spec,) * layers + (state_spec,) * states, blocks=20_000, mode=mode)


def gpt_oss(cached: bool) -> Model:
    """gpt-oss-120b on one device."""
    return full_and_window(layers=18, heads=8, head_size=64, window=128)


def qwen3_next(cached: bool) -> Model:
    """Qwen3-Next-80B-A3B on one device."""
    return full_and_state((12, 2, 256), 36, ((3, 8192), (32, 128, 128)), cached)


class Vllm:
    """The calls that its scheduler makes of its manager."""

    name = "vLLM 0.33.0"

    def __init__(self, model: Model, *, cached: bool, seed: int = 0) -> None:
        groups = kv_cache_planning.get_kv_cache_groups(
            _config(model.mode, cached), {f"layer.{index}": spec for index, spec in enumerate(model.specs)}
        )
        config = KVCacheConfig(
            num_blocks=model.blocks, kv_cache_tensors=[], kv_cache_groups=groups, prefix_cache_retention_interval=0
        )
        sizes = [group.kv_cache_spec.block_size for group in groups]
        self.cached = cached
        self.groups = len(groups)
        self.hash_block = math.gcd(*sizes) if cached else math.lcm(*sizes)
        self.manager = KVCacheManager(
            config,
            max_model_len=CONTEXT,
            scheduler_block_size=math.lcm(*sizes),
            hash_block_size=self.hash_block,
            max_in_flight_tokens=CHUNK,
            enable_caching=cached,
        )
        self._random = np.random.default_rng(seed)
        self._sampling = SamplingParams(max_tokens=VOCABULARY)
        self._hasher = get_request_block_hasher(self.hash_block, sha256) if cached else None
        self._count = 0

    def request(self, tokens: int) -> Any:
        """A request with a prompt of so many tokens, like no other."""
        self._count += 1
        return Request(
            request_id=str(self._count),
            prompt_token_ids=self._random.integers(0, VOCABULARY, tokens).tolist(),
            sampling_params=self._sampling,
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def start(self, request: Any) -> None:
        """Look its prompt up and take memory for all of it, chunk by chunk; it must fit."""
        found, known = None, 0
        if self.cached:
            found, known, _ = self.manager.get_computed_blocks(request)
        while request.num_computed_tokens < request.num_tokens:
            count = min(CHUNK, request.num_tokens - request.num_computed_tokens - known)
            assert self.manager.allocate_slots(request, count, known, found) is not None, "vLLM ran out of blocks"
            request.num_computed_tokens += count + known
            found, known = None, 0
        request.status = RequestStatus.RUNNING

    def grow(self, requests: list[Any]) -> None:
        """One more token each."""
        allocate = self.manager.allocate_slots
        for request in requests:
            if allocate(request, 1) is None:
                raise MemoryError("vLLM ran out of blocks")

    def sampled(self, requests: list[Any]) -> None:
        """Each got its token: the engine's work, never timed."""
        for request in requests:
            request.num_computed_tokens += 1
            request.append_output_token_ids(7)

    def free(self, requests: list[Any]) -> None:
        """These are done."""
        for request in requests:
            self.manager.free(request)


def _config(mode: str, cached: bool) -> Any:
    """What its grouping reads of an engine's configuration."""
    cache = types.SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        mamba_cache_mode=mode,
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=0,
        enable_prefix_caching=cached,
        block_size=BLOCK,
        prefix_match_unit=None,
    )
    parallel = types.SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1
    )
    return types.SimpleNamespace(
        cache_config=cache,
        parallel_config=parallel,
        scheduler_config=types.SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=types.SimpleNamespace(hisparse_config=None),
        model_config=types.SimpleNamespace(max_model_len=CONTEXT),
        speculative_config=None,
        kv_transfer_config=None,
        max_in_flight_tokens=CHUNK,
    )
