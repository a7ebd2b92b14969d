"""Hooks: asked when a storage is built, opens and closes, and never on the way of a step."""

from collections import Counter
from typing import Any, ClassVar

import attrs
import numpy as np
import pluggy
import pytest
from loops import THREE, CountingRunner
from toys import Bytes

from kvarena.assembly import hookspecs
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.assembly.config import ArenaConfig, PluginsConfig, PrefixConfig, StorageConfig
from kvarena.assembly.hooks import clearance_of, follow_life, hook_plugins
from kvarena.assembly.loader import make_eviction
from kvarena.backends.host import HostDevice
from kvarena.ledger.clearance import CLEARANCE, Answer, Cell, Extension, Hazard
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.storage.checks import check_idle
from kvarena.storage.storage import Storage
from kvarena.terms.errors import PluginError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full
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


class Told:
    """Writes down what it is told, under its name."""

    told: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.name = type(self).__name__

    @hookimpl
    def kvarena_storage_opened(self, storage: Storage) -> None:
        """Written down."""
        self.told.append(f"{self.name} opened")

    @hookimpl
    def kvarena_storage_closed(self, storage: Storage) -> None:
        """Written down; the memory is still there."""
        self.told.append(f"{self.name} closed {storage.device.arena_bytes > 0}")


class A(Told):
    """One of several."""


@attrs.define
class B:
    """One without a hash, that raises when a storage closes."""

    @hookimpl
    def kvarena_storage_closed(self) -> None:
        """No."""
        Told.told.append("B fails")
        raise RuntimeError("not yet")


class C(Told):
    """One of several."""


class D(B):
    """Raises when a storage closes, too."""


class E(Told):
    """Raises when a storage opens."""

    @hookimpl
    def kvarena_storage_opened(self, storage: Storage) -> None:
        """No."""
        raise ValueError("not now")


class F(Told):
    """One of several."""


def entry(what: str) -> Entry:
    """A hook plugin of this file, named like its class."""
    return Entry("plugins", what.lower(), "stranger", "3", f"{__name__}:{what}")


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


def storage_that(*names: str, in_flight: int = 0) -> Storage:
    """A storage with those hook plugins, on real memory."""
    catalog = Catalog([*installed_entries(), *map(entry, names)])
    layers = [Layer(index, (Part(Bytes(8), lifetime),)) for index, lifetime in enumerate(THREE)]
    arena = ArenaConfig(memory="24KiB", page_tokens=4, context_tokens=128, max_running=4, forwards_in_flight=in_flight)  # type: ignore[arg-type]
    config = StorageConfig(arena=arena, prefix=PREFIX, plugins=PluginsConfig(enable=tuple(map(str.lower, names))))
    return build_storage(layers, config, catalog)


@pytest.mark.req("PLG-4")
@pytest.mark.parametrize("in_flight", [0, 2])
def test_no_hook_is_called_on_the_way_of_a_step(calls: Counter[str], in_flight: int) -> None:
    """Not by opening, stepping, forwards, flushes, matches, inserts, evictions or the serving loop."""
    storage = storage_that("Hears", in_flight=in_flight)
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


@pytest.fixture
def told() -> list[str]:
    """What the plugins write down, empty at first."""
    Told.told.clear()
    return Told.told


def test_each_is_called_in_the_order_of_names_however_many_fail(told: list[str]) -> None:
    """When a storage closes all hear it, then each that failed is named with its distribution in one error."""
    storage = storage_that("C", "D", "B", "A")
    assert told == ["A opened", "C opened"]
    with pytest.raises(PluginError) as failure:
        storage.release()

    assert told[2:] == ["A closed True", "B fails", "C closed True", "B fails"]
    assert str(failure.value) == (
        "hook plugin 'b' (stranger 3): kvarena_storage_closed: RuntimeError: not yet; "
        "hook plugin 'd' (stranger 3): kvarena_storage_closed: RuntimeError: not yet"
    )
    assert storage.device.arena_bytes == 0
    storage.release()
    assert len(told) == 6


def test_one_that_fails_when_a_storage_opens_releases_it(told: list[str]) -> None:
    """Those before it hear that it closes, those after it hear nothing; a failure on the way is told beside it."""
    with pytest.raises(
        PluginError, match=r"^hook plugin 'e' \(stranger 3\): kvarena_storage_opened: ValueError: not now$"
    ):
        storage_that("F", "E", "A")
    assert told == ["A opened", "A closed True"]
    with pytest.raises(PluginError, match=r"^hook plugin 'e' .*: not now; hook plugin 'b' .*: not yet$"):
        storage_that("E", "B")


def test_it_is_told_as_closed_when_its_memory_is_back(
    told: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First the hook plugins, then the memory, then the event; an error of a plugin keeps none of it."""
    storage = storage_that("A", "B")
    close = type(storage.device).close

    def closing(device: Any) -> None:
        told.append(f"memory, events {len(caplog.messages)}")
        close(device)

    monkeypatch.setattr(type(storage.device), "close", closing)
    with caplog.at_level("INFO", logger="kvarena"), pytest.raises(PluginError):
        storage.release()
    storage.release()
    assert told[1:] == ["A closed True", "B fails", "memory, events 0"]
    assert caplog.messages == ["event='storage.closed' backend='cpu'"]


def widens(name: str) -> type:
    """A hook plugin that adds a column of this name."""

    class Widens:
        @hookimpl
        def kvarena_clearance(self) -> Extension:
            waits = Cell(Answer.STREAM_WAIT, "it has an event")
            return Extension(
                hazards=(Hazard(name),), cells={(actor.name, name): waits for actor in CLEARANCE.actors}
            )  # fmt: skip

    return Widens


COLUMNS = [widens(f"COLUMN_{number}") for number in range(8)]


def test_columns_stand_in_the_order_of_the_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of who waits for what is the same in every process."""
    entries = [Entry("plugins", f"w{number}", "stranger", "1", "x:y") for number in range(8)]
    catalog = Catalog(reversed(entries))
    monkeypatch.setattr(catalog, "load", lambda kind, name: COLUMNS[int(name[1:])])
    table = clearance_of(hook_plugins(catalog, PluginsConfig(enable=("stranger",))))

    assert [hazard.name for hazard in table.hazards][-8:] == [f"COLUMN_{number}" for number in range(8)]


def test_hooks_run_only_for_plugins_that_are_enabled(told: list[str]) -> None:
    """``kvarena_storage_opened`` reaches those named, and no others."""
    catalog = Catalog([entry("A"), entry("C"), entry("F")])
    assert hook_plugins(catalog, PluginsConfig()) == ()
    follow_life(hook_plugins(catalog, PluginsConfig(enable=("c", "plugins:f"))), storage_that())

    assert told == ["C opened", "F opened"]


class Mistaken:
    """Implements a hook that does not exist."""

    @hookimpl
    def kvarena_storage_opend(self, storage: str) -> None:
        """A misspelt name."""


def test_a_hook_that_does_not_exist_is_refused() -> None:
    """The plugin is named, and so is the hook."""
    with pytest.raises(PluginError, match=r"hook plugin 'mistaken' \(stranger 3\): .*kvarena_storage_opend"):
        storage_that("Mistaken")


def test_every_hook_has_a_docstring() -> None:
    """What a plugin may implement is documented where it is declared."""
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("kvarena_")]
    assert hooks
    assert all(hook.__doc__ for hook in hooks)


SCRUB = Hazard("SCRUB")


class Scrubs:
    """A hook plugin that uses pages in a way of its own, and says what everybody does about it."""

    few = 0

    @hookimpl
    def kvarena_clearance(self) -> Extension:
        """One column."""
        actors = CLEARANCE.actors[self.few :]
        return Extension(
            hazards=(SCRUB,), cells={(a.name, "SCRUB"): Cell(Answer.STREAM_WAIT, "it has an event") for a in actors}
        )


class ScrubsCarelessly(Scrubs):
    """Forgets the first actor."""

    few = 1


class ReturnsNonsense:
    """A hook plugin that returns something else."""

    @hookimpl
    def kvarena_clearance(self) -> str:
        """Not an extension."""
        return "scrub"


def scrubbing(what: str) -> Storage:
    """A storage with one of these plugins."""
    arena = ArenaConfig(memory="1MiB", max_running=4, context_tokens=64, forwards_in_flight=1)  # type: ignore[arg-type]
    config = StorageConfig(arena=arena, backend="host", plugins=PluginsConfig(enable=(what.lower(),)))  # type: ignore[arg-type]
    return build_storage([Layer(0, (Part(Bytes(64), Full()),))], config, Catalog([*installed_entries(), entry(what)]))


@pytest.mark.req("LED-5")
def test_a_plugin_records_uses_that_everybody_heeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """``kvarena_clearance`` adds a column; a use of it is waited for by the next writer."""
    storage = scrubbing("Scrubs")
    waits: list[Any] = []
    chain = storage.chain
    monkeypatch.setattr(HostDevice, "wait", lambda self, stream, event: waits.append((stream.name, event)))
    row = storage.open()
    storage.step(np.array([row]), np.array([16]))
    event = storage.device.record(storage.device.current())
    use = chain.usage.record(SCRUB, {"full": storage.requests.pages[row, :1]}, event)
    storage.close(row)
    row = storage.open()
    storage.step(np.array([row]), np.array([16]))
    assert waits == [("memory", event)]
    chain.usage.end(use)
    storage.close(row)
    assert check_idle(storage) == ()
    storage.release()


@pytest.mark.req("LED-5")
def test_a_pair_without_an_answer_refuses_to_start() -> None:
    """By the names of both; as what is no extension does."""
    with pytest.raises(PluginError, match="no answer for FORWARD before SCRUB"):
        scrubbing("ScrubsCarelessly")
    with pytest.raises(
        PluginError,
        match=r"^hook plugin '.*' \(stranger 3\): kvarena_clearance returned 'scrub'; it must return an Extension",
    ):
        scrubbing("ReturnsNonsense")
