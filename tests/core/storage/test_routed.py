"""The views by layer, on real memory."""

import numpy as np
import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.layouts.index_key import IndexKey
from kvarena.layouts.mha import Mha
from kvarena.layouts.mla import Mla
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Window


@pytest.fixture
def storage():
    """A window layer, a latent layer with an index, and a layer that reads the first one's memory."""
    layers = [
        Layer(0, (Part(Mha(2, 4, dtype="float32"), Window(8)),)),
        Layer(1, (Part(Mla(8, 4, dtype="float16"), Full()), Part(IndexKey(128), Full(), "index"))),
        Layer(2, shares=0),
    ]
    config = StorageConfig(arena=ArenaConfig(memory="64KiB", page_tokens=4, context_tokens=32), backend="cpu")
    made = build_storage(layers, config, Catalog.installed())
    yield made
    made.release()


@pytest.mark.req("BLD-1")
def test_a_layer_leads_to_its_sub_pool_and_its_typed_fields(storage):
    """Kernels ask by layer; the ids come from the sub-pool that the part names."""
    routed = storage.routed()
    pages = {pool.name: storage.sizing.arena_bytes // pool.unit_bytes for pool in storage.plan.sub_pools}
    assert sorted(routed) == [0, 1, 2]
    assert {role: part.pool for role, part in routed[1].items()} == {"kv": "full", "index": "full"}
    assert routed[0]["kv"].pool == "window-8"
    assert tuple(routed[0]["kv"].fields["k"].shape) == (pages["window-8"], 4, 2, 4)
    assert str(routed[0]["kv"].fields["v"].dtype) == "torch.float32"
    assert [tuple(view.shape) for view in routed[1]["kv"].fields.values()] == [(pages["full"], 4, 12)]


@pytest.mark.req("BLD-1")
@pytest.mark.req("DEC-4")
def test_a_shared_layer_reads_what_its_owner_wrote_without_a_copy(storage):
    """Bytes written through one layer's view are read through the other's, at the same physical page."""
    row = np.array([storage.open()])
    ids = storage.step(row, np.array([3]))
    page, offset = ids.write_pages("window-8")[2], ids.write_offsets()[2]
    routed = storage.routed()
    routed[0]["kv"].fields["k"][page, offset] = 7.0
    assert routed[2]["kv"].fields["k"][page, offset].tolist() == [[7.0] * 4] * 2
    assert storage.routed()[2]["kv"].fields["v"][page, offset].abs().sum() == 0
