"""Our own storages for the rows: on the ``host`` backend, which counts bytes and moves none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, ChecksConfig, PoliciesConfig, PrefixConfig, StorageConfig
from kvarena.layouts.mha import Mha
from kvarena.layouts.state import Tensors
from kvarena.plugins.models import read_model
from kvarena.storage.storage import Storage
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window
from peers.shape import CONV_SHAPE, RECURRENT_SHAPE, WINDOW, Shape

MODELS = Path(__file__).resolve().parents[2] / "tests" / "data" / "models"
CATALOG = Catalog.installed()
CONTEXT = 16384
STATE_LAYOUT = Tensors({"conv": ("bfloat16", CONV_SHAPE), "recurrent": ("float32", RECURRENT_SHAPE)})
TOKEN_LAYOUT = Mha(1, 128)


def layers_of(windows: Sequence[int] = (WINDOW,), *, state: bool = True) -> list[Layer]:
    """One layer of each kind: a state, these windows, full attention."""
    lifetimes: list[Lifetime] = [*([State()] if state else []), *(Window(window) for window in windows), Full()]
    return [
        Layer(index, (Part(STATE_LAYOUT if lifetime.own_ids else TOKEN_LAYOUT, lifetime, "kept"),))
        for index, lifetime in enumerate(lifetimes)
    ]


def model_layers(name: str) -> list[Layer]:
    """The layers of a model whose config lies with the tests."""
    return list(read_model(json.loads((MODELS / f"{name}.json").read_text()), source=name, catalog=CATALOG).layers)


def storage_of(
    layers: Sequence[Layer],
    memory: int,
    page_tokens: int,
    running: int,
    *,
    context: int = CONTEXT,
    checks: int = 0,
    policies: PoliciesConfig | None = None,
    prefix: PrefixConfig | None = None,
    in_flight: int = 0,
    mirrors: bool = False,
    backend: str = "host",
) -> Storage:
    """A storage over an arena of ``memory`` bytes, mirrors aside. Peers check as little as level 0."""
    arena = ArenaConfig(
        memory=memory,
        page_tokens=page_tokens,
        context_tokens=context,
        max_running=running,
        mirrors=mirrors,
        forwards_in_flight=in_flight,
    )
    config = StorageConfig(
        arena=arena,
        backend=backend,
        checks=ChecksConfig(level=checks),
        policies=policies or PoliciesConfig(),
        prefix=prefix or PrefixConfig(),
    )
    return build_storage(layers, config, CATALOG)


def storage_like(shape: Shape, windows: Sequence[int] = (WINDOW,), **ways: Any) -> Storage:
    """The arena of the rows; further windows are further kinds in the same bytes. ``ways``: those of ``storage_of``."""
    return storage_of(layers_of(windows), shape.arena_bytes, shape.page_tokens, shape.running, **ways)
