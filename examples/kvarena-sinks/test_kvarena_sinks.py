"""The promises of the kit; and attention over the arena is attention over all rows behind a mask."""

from typing import Any

import numpy as np
import pytest
import torch
from kvarena_sinks import SinkRows, Sinks

from kvarena import ArenaConfig, PoliciesConfig, StorageConfig, build_storage
from kvarena.plugins.conformance import LayoutConformance, LifetimeConformance, ReaderConformance
from kvarena.plugins.models import read_model

CONFIG = {"model_type": "streaming_llama", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2,
          "dtype": "float32", "attention_sinks": 3, "sliding_window": 6, "layer_types": ["local", "full"]}  # fmt: skip


class TestSinks(LifetimeConformance):
    declines = ("floor",)
    lifetime = pytest.fixture(lambda self: Sinks(sinks=3, window=6))


class TestSinkRows(LayoutConformance):
    declines = ("codec",)
    layout = pytest.fixture(lambda self: SinkRows(kv_heads=2, head_dim=8))


class TestReader(ReaderConformance):
    reader = pytest.fixture(lambda self: "streaming_llama")
    config = pytest.fixture(lambda self: dict(CONFIG))


def attend(query: Any, at: int, seen: Any, k: Any, v: Any, positions: Any) -> Any:
    """A query at a position, and rows at theirs: keys are turned by rotary embedding, rows not seen are masked."""
    angles = (positions - at)[:, None, None] * 100.0 ** -torch.arange(0, 1, 0.25)
    turned = torch.view_as_complex(k.unflatten(-1, (-1, 2))) * torch.polar(torch.ones(()), angles)
    scores = (torch.view_as_complex(query.unflatten(-1, (-1, 2))).conj() * turned).real.sum(-1)
    return torch.einsum("rh,rhd->hd", scores.where(seen[:, None], torch.tensor(-torch.inf)).softmax(0), v)


def test_attention_over_the_arena_is_attention_behind_the_mask() -> None:
    """In chunks, token by token and after moves; the pages between sinks and window are free."""
    arena = ArenaConfig(memory="96KiB", page_tokens=4, context_tokens=64, max_running=2)
    config = StorageConfig(arena=arena, policies=PoliciesConfig(compaction="eager"))
    storage = build_storage(read_model(CONFIG).layers, config)
    part, rows = storage.routed()[0]["kv"], storage.open_batch(2)
    text = (*torch.randn(2, 2, 64, 2, 8), torch.arange(64).int().expand(2, 64))  # k, v and position of two requests
    for start, stop in zip((0, 7, 13, *range(14, 30)), (7, 13, *range(14, 30), 41), strict=True):
        if start == 24:  # one leaves, and pages of the other move into its holes
            storage.close(rows[:1])
            rows = rows[1:]
            storage.flush()
        ids = storage.step(rows, rows * 0 + stop)
        index, new = ids.write_positions()
        for field, value in zip(part.fields.values(), text, strict=True):
            field[ids.write_pages(part.pool), ids.write_offsets()] = value[rows[index], new]
        for row, read in zip(rows.tolist(), ids.read_ids(part.pool), strict=True):
            for at in range(start, stop):
                past, query = torch.arange(at + 1), text[0][row, at]
                seen = (past < 3) | (at - past < 6)
                places = np.divmod(read[: at + 1], 4)
                found = attend(query, at, seen, *(field[places] for field in part.fields.values()))
                assert torch.allclose(found, attend(query, at, seen, *(value[row, past] for value in text)))
    assert storage.stats()[part.pool]["moves"]
    assert storage.sharing.bound(part.pool, storage.requests.pages[1, :11]).tolist() == [1, *[0] * 5, *[1] * 5]
    storage.release()
