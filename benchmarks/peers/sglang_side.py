"""SGLang's unified allocator (released as 0.5.23) on a CPU: its own classes, built by its own factory.

Not altered: any class or method of its allocators. Replaced, because there is no GPU: its eight kernels by C loops
(``kernels.py``), its profiler scopes by nothing (the most favourable reading: what is left is its host work), streams
and events by objects that are always ready, and packages that it imports and never calls by stand-ins.
"""

import logging
import types
import warnings
from typing import Any

import torch
import transformers.image_utils
import transformers.modeling_utils  # noqa: F401  (before the stand-ins: it asks which optional packages are there)

from peers.kernels import Kernels
from peers.shape import CONV_SHAPE, RECURRENT_SHAPE, WINDOW, Shape
from peers.stand_ins import stand_in

ABSENT = (
    "IPython", "cuda", "flash_attn", "flashinfer", "gguf", "pynvml", "sentencepiece", "sgl_kernel", "soundfile",
    "torch_memory_saver", "torchvision", "tvm_ffi", "vllm",
)  # fmt: skip

stand_in(ABSENT)
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape  # noqa: E402
from sglang.srt.mem_cache import unified_memory_pool  # noqa: E402
from sglang.srt.mem_cache.allocator import unified_hybrid_swa, unified_mamba, unified_sub_pool  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402

KERNELS = Kernels()


class _NoScope:
    """A profiler scope that costs nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        return None


class _Launch:
    """``kernel[grid](...)`` as a plain call."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: object) -> Any:
        return self.function


class _Done:
    """An event of a forward that is over."""

    def query(self) -> bool:
        return True


class _Cache:
    """What admission reads of a prefix cache that holds nothing."""

    sliding_window_size = WINDOW

    def supports_mamba(self) -> bool:
        return True

    def supports_prefix_sharing(self) -> bool:
        return True

    def full_evictable_size(self) -> int:
        return 0

    swa_evictable_size = mamba_evictable_size = evictable_size = full_evictable_size

    def evict_for_alloc(self, *arguments: Any, **named: Any) -> Any:
        return types.SimpleNamespace(num_tokens_evicted=0, swa_num_tokens_evicted=0, mamba_num_evicted=0)


def install() -> None:
    """Put the C loops, the empty scopes and the ready streams in their places, once."""
    get_parallel().override_permanently(attn_dcp_size=1, attn_dcp_rank=0)
    scope = _NoScope()
    for module in (unified_sub_pool, unified_hybrid_swa, unified_mamba, unified_memory_pool):
        module.record_function = lambda name: scope
    unified_sub_pool.alloc_extend_kernel = _Launch(KERNELS.alloc_extend)
    unified_sub_pool.alloc_decode_kernel = _Launch(KERNELS.alloc_decode)
    unified_sub_pool.alloc_bind_inplace = KERNELS.bind_range
    unified_sub_pool.bind_inplace = KERNELS.bind
    unified_sub_pool.free_unbind_inplace = KERNELS.unbind
    unified_sub_pool.translate_token_ids = KERNELS.translate
    unified_memory_pool.zero_pages = KERNELS.zero_pages
    unified_memory_pool.copy_pages = KERNELS.copy_pages
    memory = types.SimpleNamespace(enable_hierarchical_cache=False, hicache_storage_backend=None)
    unified_hybrid_swa.get_memory = lambda: memory
    unified_hybrid_swa.get_disagg = lambda: types.SimpleNamespace(disaggregation_mode="null")
    ready = types.SimpleNamespace(wait_event=_nothing, wait_stream=_nothing, synchronize=lambda: None)
    torch.cuda.current_stream = lambda *arguments: ready


def _nothing(waited_for: object) -> None:
    """A wait that is over."""


def build(shape: Shape) -> Any:
    """Its stack of state, window and full pools over one arena, by its own factory."""
    states = Mamba2CacheParams(
        dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32),
        layers=[2],
        shape=Mamba2StateShape(
            conv=[CONV_SHAPE],
            temporal=RECURRENT_SHAPE,
            intermediate_size=CONV_SHAPE[0],
            conv_dim=CONV_SHAPE[0],
            ssm_state_size=RECURRENT_SHAPE[2],
            num_heads=RECURRENT_SHAPE[0],
            head_dim=RECURRENT_SHAPE[1],
            state_size=RECURRENT_SHAPE[2],
            conv_kernel=CONV_SHAPE[1] + 1,
        ),
    )
    heads = dict.fromkeys(("head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim"), 128)
    layers = {"full_attention_layer_ids": [0], "swa_attention_layer_ids": [1], "mamba_layer_ids": [2]}
    off = dict.fromkeys(
        ("enable_memory_saver", "need_sort", "enable_mamba_extra_buffer", "enable_mamba_extra_buffer_lazy"), False
    )
    return unified_memory_pool.init_unified_mamba_swa_pools(
        device="cpu",
        kv_cache_dtype=torch.bfloat16,
        head_num=1,
        swa_head_num=1,
        page_size=shape.page_tokens,
        start_layer=0,
        end_layer=2,
        full_max_total_num_tokens=shape.full_tokens,
        swa_max_total_num_tokens=shape.window_tokens,
        max_mamba_cache_size=shape.slots,
        max_num_reqs=shape.running,
        model_context_len=WINDOW + shape.page_tokens,
        extra_max_context_len=4,
        sliding_window_size=WINDOW,
        mamba2_cache_params=states,
        disable_overlap_schedule=False,
        lazy_compaction=True,
        **heads,
        **layers,
        **off,
    )


class Sglang:
    """The calls that a scheduler makes of it; ids are virtual token ids, as tensors."""

    name = "SGLang 0.5.23"

    def __init__(self, shape: Shape) -> None:
        install()
        bundle = build(shape)
        self.shape = shape
        self.allocator = bundle.token_to_kv_pool_allocator
        self.slots = bundle.req_to_token_pool.mamba_allocator
        self.arena_bytes = bundle.unified_memory_pool.total_bytes
        self.spent = KERNELS.spent
        self._cache = _Cache()
        self._slot_tokens = self.allocator.mamba_slot_full_token_cost()

    def reset(self) -> None:
        """An empty arena again."""
        self.allocator.clear()
        self.slots.clear()

    # -- tokens and slots

    def extend(self, counts: Any) -> Any:
        """Ids of new requests of so many tokens each, in one call; None if refused."""
        total = int(counts.sum())
        if self.shape.page_tokens == 1:
            return self.allocator.alloc(total)
        none = torch.zeros_like(counts)
        return self.allocator.alloc_extend(none, none, counts, counts, none - 1, total)

    def decode(self, lengths: Any, last: Any) -> Any:
        """One more token each; ``lengths`` with it."""
        if self.shape.page_tokens == 1:
            return self.allocator.alloc(len(lengths))
        return self.allocator.alloc_decode(lengths, lengths, last)

    def free(self, rows: list[tuple[Any, int]]) -> None:
        """Whole requests: their ids, and the position below which the window was retired."""
        self.allocator.free_group_begin()
        for ids, retired in rows:
            if retired:
                self.allocator.free_full_segments([(ids[:retired], 0)])
            self.allocator.free_segments([(ids[retired:], retired)])
        self.allocator.free_group_end()

    def retire(self, spans: list[tuple[Any, int]]) -> None:
        """Ids that fell out of the window, and the position of the first of each."""
        self.allocator.free_group_begin()
        for ids, position in spans:
            self.allocator.free_swa_segment(ids, start_pos=position)
        self.allocator.free_group_end()

    def take_slots(self, count: int) -> Any:
        """State slots, or None; a shortfall is answered as its cache would."""
        slots = self.slots.alloc(count)
        if slots is None:
            self.allocator.prepare_mamba_allocation(count)
            slots = self.slots.alloc(count)
        return slots

    # -- ids for a forward

    def translate(self, ids: Any, out: Any) -> None:
        """Physical ids of the full layer."""
        self.allocator.translate_kv_loc(ids, out=out)

    def write_ids(self, ids: Any) -> None:
        """Physical ids of new tokens in every pool."""
        self.allocator.translate_write_loc(ids)
        self.allocator.translate_loc_from_full_to_swa(ids)

    def forward(self, ids: Any) -> None:
        """A forward that writes these ids is launched, and done."""
        event = _Done()
        self.allocator.set_latest_forward_done_event(event)
        self.allocator.set_inflight_forward(event, ids)

    # -- questions

    def budget(self) -> "Budget":
        """What one admission pass asks of."""
        return Budget(self)

    def gate(self, tokens: int) -> bool:
        """Whether the next decode step fits."""
        return bool(self.allocator.check_decode_capacity(num_tokens=tokens, tree_cache=self._cache))

    def free_bytes(self) -> int:
        """Bytes that no live page and no sink holds."""
        pools = self.pools()
        used = max(pool.min_page_index * pool.entry_bytes_per_page for pool in pools)
        used += sum(pool.allocated_count() * pool.entry_bytes for pool in pools)
        return int(self.arena_bytes - used)

    def pools(self) -> list[Any]:
        """Full, window, state."""
        return [self.allocator.full_attn_allocator, self.allocator.swa_attn_allocator, self.allocator.mamba_allocator]

    def flush(self) -> int:
        """Close holes, a little at a time."""
        return int(self.allocator.flush_opportunistic())

    def check(self) -> None:
        """Its own accounting holds."""
        wrong = self.allocator.verify_byte_accounting()
        assert not wrong, wrong

    def cache(self) -> Any:
        """The empty prefix cache that questions are asked with."""
        return self._cache

    def slot_tokens(self) -> int:
        """What one state slot costs, in tokens."""
        return int(self._slot_tokens)


class Budget:
    """One admission pass."""

    def __init__(self, peer: Sglang) -> None:
        self.page_tokens = peer.shape.page_tokens
        self.slot_tokens = peer.slot_tokens()
        self.budget = peer.allocator.create_prefill_budget(peer.cache())
        self.slots = peer.allocator.mamba_allocator.schedulable_available_size()

    def admits(self, prompt: int, output: int) -> bool:
        """May such a request start? If so it is reserved."""
        if self.slots < 1 or not self.asks(prompt, output):
            return False
        self.budget.reserve(prompt, output, extra_tokens=self.slot_tokens)
        self.slots -= 1
        return True

    def asks(self, prompt: int, output: int) -> bool:
        """The question alone."""
        fits, _ = self.budget.check_prefill(
            extend_input_len=prompt,
            total_tokens=prompt + output + self.page_tokens + self.slot_tokens,
            max_new_tokens=output,
            input_tokens=prompt,
            swa_host_hit_length=0,
            chunk_limit=None,
        )
        return bool(fits)
