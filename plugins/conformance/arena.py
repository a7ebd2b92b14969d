"""A small storage on the cpu backend, and whether its views write into each other."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.planning.plan import plan_storage
from kvarena.plugins.stress.swarm.world import installed
from kvarena.storage.storage import Storage
from kvarena.terms.layers import Layer

try:
    import torch
except ImportError:  # a layout can be written, and most of it tested, without
    torch = None

WITHOUT_TORCH = torch is None
REASON = "torch is not installed, and the cpu backend needs it: pip install 'kvarena[torch]'"
PAGE_TOKENS = 3
UNITS = 6
"""So many units of the largest sub-pool, about, are there to write into."""

Place = tuple[str, int, int]
"""A field in words, a page and a row."""


def open_cpu(layers: Sequence[Layer]) -> Storage:
    """A storage of a few pages of these layers. The caller releases it."""
    plan = plan_storage(layers, page_tokens=PAGE_TOKENS)
    memory = (UNITS + 2) * sum(pool.unit_bytes for pool in plan.sub_pools) + (1 << 16)
    arena = ArenaConfig(
        memory=memory, page_tokens=PAGE_TOKENS, context_tokens=PAGE_TOKENS, max_running=2, mirrors=False
    )
    return build_storage(layers, StorageConfig(arena=arena, backend="cpu"), installed())


def touched_elsewhere(storage: Storage, rng: np.random.Generator) -> str:
    """Write one row of each field on each page, as every dtype is: what is wrong with it, in words; empty if nothing.

    Each sub-pool is looked at by itself, on the grid of its own units over the whole arena.
    """
    for pool in storage.plan.sub_pools:
        if not pool.unit_bytes:
            continue
        pages = min(UNITS, storage.sizing.arena_bytes // pool.unit_bytes)
        views = {
            f"field {field!r} of layer {layer}": storage.device.view(view)
            for (layer, _, field), view in pool.views(pages).items()
        }
        for name, view in views.items():
            for page, row in ((0, 0), (pages - 1, view.shape[1] - 1)):
                before = dict(_contents(views))
                written = rng.integers(0, 256, size=before[name, page, row].shape, dtype=np.uint8)
                _write(view, page, row, written)
                wrong = _changed(before, dict(_contents(views)), (name, page, row), written)
                if wrong:
                    return f"row {row} of page {page} of {name} was written{wrong}"
    return ""


def _changed(before: dict[Place, Any], after: dict[Place, Any], at: Place, written: Any) -> str:
    """What is not as it should be after ``at`` was written."""
    for place, content in after.items():
        if place == at:
            if not np.array_equal(content, written):
                return ", and reads otherwise"
        elif not np.array_equal(content, before[place]):
            return f", and {place[0]} changed in row {place[2]} of page {place[1]}; is a field larger than it says?"
    return ""


def _contents(views: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The bytes of every row of every view."""
    for name, view in views.items():
        for page in range(view.shape[0]):
            for row in range(view.shape[1]):
                raw = view[page, row].reshape(-1).clone().view(torch.uint8)
                yield (name, page, row), raw.numpy()


def _write(view: Any, page: int, row: int, raw: Any) -> None:
    target = view[page, row]
    target.copy_(torch.from_numpy(raw).view(target.dtype).reshape(target.shape))
