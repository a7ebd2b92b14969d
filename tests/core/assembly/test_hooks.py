"""Hooks: asked when a storage is built, opens and closes, and never on the way of a step."""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pluggy
import pytest
from loops import THREE, CountingRunner
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.assembly.config import ArenaConfig, PluginsConfig, PrefixConfig, StorageConfig
from kvarena.assembly.loader import make_eviction
from kvarena.ledger.clearance import Extension
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.storage.storage import Storage
from kvarena.terms.errors import PluginError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.marks import hookimpl

PREFIX = PrefixConfig(share=True, checkpoint_tokens=8)


class Hears:
    """Implements every hook, and counts them."""

    heard: ClassVar[Counter[str]] = Counter()

    @hookimpl
    def kvarena_clearance(self) -> Extension | None:
        """Adds nothing."""
        self.heard["kvarena_clearance"] += 1
        return None

    @hookimpl
    def kvarena_storage_opened(self, storage: Storage) -> None:
        """Counted."""
        self.heard["kvarena_storage_opened"] += 1

    @hookimpl
    def kvarena_storage_closed(self, storage: Storage) -> None:
        """Counted; the statistics are still there."""
        assert storage.stats()
        self.heard["kvarena_storage_closed"] += 1


class Falls(Hears):
    """Raises when a storage closes."""

    @hookimpl
    def kvarena_storage_closed(self, storage: Storage) -> None:
        """No."""
        raise RuntimeError("not yet")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every call of any hook of any pluggy manager in this process, by name."""
    found: Counter[str] = Counter()
    execute = pluggy.PluginManager._hookexec  # type: ignore[attr-defined]

    def counting(self: Any, hook: str, *rest: Any) -> Any:
        found[hook] += 1
        return execute(self, hook, *rest)

    monkeypatch.setattr(pluggy.PluginManager, "_hookexec", counting)
    Hears.heard.clear()
    return found


def storage_that(what: str, in_flight: int = 0) -> Storage:
    """A storage with that hook plugin, on real memory."""
    catalog = Catalog([*installed_entries(), Entry("plugins", "hears", "stranger", "3", f"{__name__}:{what}")])
    layers = [Layer(index, (Part(Bytes(8), lifetime),)) for index, lifetime in enumerate(THREE)]
    arena = ArenaConfig(memory="24KiB", page_tokens=4, context_tokens=128, max_running=4, forwards_in_flight=in_flight)  # type: ignore[arg-type]
    config = StorageConfig(arena=arena, prefix=PREFIX, plugins=PluginsConfig(enable=("hears",)))
    return build_storage(layers, config, catalog)


@pytest.mark.req("PLG-4")
@pytest.mark.parametrize("in_flight", [0, 2])
def test_no_hook_is_called_on_the_way_of_a_step(calls: Counter[str], in_flight: int) -> None:
    """Not by opening, stepping, forwards, flushes, matches, inserts, evictions or the serving loop."""
    storage = storage_that("Hears", in_flight)
    opened = Counter({"kvarena_clearance": 1, "kvarena_storage_opened": 1})
    assert Hears.heard == opened == calls
    calls.clear()

    tree = PrefixTree(storage, make_eviction(Catalog.installed(), PREFIX))
    runner = CountingRunner(storage=storage)
    loop = Scheduler(storage, runner, ServingConfig(chunk_tokens=8, step_tokens=16), cache=tree)
    shared = tuple(range(16))
    requests = [
        Request(number, 0.0, 20, 12, prompt=(*shared, *range(40 * number, 40 * number + 4))) for number in range(9)
    ]
    report = loop.run(requests)
    storage.flush()
    assert tree.stats().entries
    tree.evict(lambda _: False)
    row = storage.open()
    for length in (3, 30, 60):
        ids = storage.step(np.array([row]), np.array([length]))
        assert ids
        forward = storage.forwards.launch(ids)
        storage.forwards.record(forward)
        if forward.event is not None:
            storage.device.synchronize(forward.event)
        storage.forwards.process(forward)
    storage.close(row)
    storage.resize("22KiB")

    assert len(runner.batches) > 20
    assert report is not None
    assert tree.stats().evictions > 0
    assert calls == Counter()
    assert Hears.heard == opened

    storage.release()
    assert calls == Counter({"kvarena_storage_closed": 1})
    assert Hears.heard == opened + Counter({"kvarena_storage_closed": 1})


def test_a_plugin_that_fails_at_the_end_keeps_no_memory() -> None:
    """It is named with its distribution, and the device is closed all the same; a second release does nothing."""
    storage = storage_that("Falls")
    with pytest.raises(PluginError, match=r"^hook plugin 'hears' \(stranger 3\): kvarena_storage_closed: RuntimeError"):
        storage.release()
    storage.release()
