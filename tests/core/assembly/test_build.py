"""A storage is built whole, or refused before anything is taken."""

import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.layouts.mha import Mha
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full


def test_bookkeeping_beyond_the_machine_is_refused() -> None:
    """Without mirrors nothing else stops rows for a context of 2**40 tokens; they would take all host memory."""
    arena = ArenaConfig(memory="1GiB", context_tokens=1 << 40, mirrors=False)  # type: ignore[arg-type]
    layers = [Layer(0, (Part(Mha(kv_heads=1, head_dim=64), Full()),))]
    with pytest.raises(ConfigError, match=r"of bookkeeping, and this machine has .*; lower context_tokens"):
        build_storage(layers, StorageConfig(arena=arena, backend="host"))
