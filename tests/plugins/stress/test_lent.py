"""Worlds that must have something in particular, and plugins' values that no entry point offers."""

import pytest

from kvarena.layouts.latent import Latent
from kvarena.plugins.stress.swarm.harness import open_storages, run_seed
from kvarena.plugins.stress.swarm.lent import LentCatalog, always
from kvarena.plugins.stress.swarm.world import Wanted, draw_world
from kvarena.terms.errors import PluginError

STATE = {"index": 0, "lifetime": "state", "layout": "latent", "row_bytes": 8}


def test_a_world_has_what_is_wanted() -> None:
    """Its layers, policies, prefixes and context are those; all else is drawn as ever."""
    wanted = Wanted(
        layers=(STATE,), policies={"compaction": "none"}, prefix={"eviction": "lfu"}, context_tokens=100
    )  # fmt: skip
    for seed in range(5):
        storage = draw_world(seed, wanted=wanted).storage
        assert [dict(layer) for layer in storage["layers"]] == [STATE]
        assert storage["policies"]["compaction"] == "none"
        assert (storage["prefix"]["share"], storage["prefix"]["eviction"]) == (True, "lfu")
        assert storage["arena"]["context_tokens"] >= 100
    assert draw_world(3, wanted=Wanted()) == draw_world(3)


def test_a_model_of_states_alone_keeps_every_promise() -> None:
    """Its requests have rows and no pages; with prefixes shared and without."""
    for seed, prefix in ((0, None), (1, {}), (2, {})):
        world = draw_world(seed, wanted=Wanted(layers=(STATE,), context_tokens=24, prefix=prefix))
        assert run_seed(world, 150).case is None


def test_what_is_lent_can_be_named() -> None:
    """Beside all that is installed, and before it where the name is the same; each storage has the very value."""
    mine = Latent(24)
    catalog = LentCatalog({("layouts", "mine"): always(mine), ("lifetimes", "full"): always("mine too")})
    assert "mine" in catalog.names("layouts")
    assert "mha" in catalog.names("layouts")
    assert catalog.offers("layouts", "mine")
    assert catalog.load("lifetimes", "full")() == "mine too"
    with pytest.raises(PluginError, match="no layout is named 'his'"):
        catalog.load("layouts", "his")
    lent = LentCatalog({("layouts", "mine"): always(mine)})
    world = draw_world(4, catalog=lent, wanted=Wanted(layers=({"index": 0, "layout": "mine", "lifetime": "full"},)))
    for storage in open_storages(world, "simulated", catalog=lent):
        assert storage.plan["full"].entry_bytes == 24
        storage.release()
