"""What a model reader promises: layers that can be planned, the same every time, and errors that name the field."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.planning.plan import plan_storage
from kvarena.plugins.conformance.base import Conformance, needs
from kvarena.plugins.models.read import read_model
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.stress.swarm.lent import LentCatalog
from kvarena.plugins.stress.swarm.world import installed
from kvarena.terms.errors import ConfigError, KvarenaError, PlanError, PluginError
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import Lifetime

SOURCE = "config.json"
RANKS = (2, 3, 4, 8)
ABSURD: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**12, "absurd", [], ["absurd"], {"absurd": 3})

Reader = str | Callable[..., Any]


class ReaderPromises(Conformance):
    """What is read of a config as it was published."""

    word: ClassVar[str] = "model reader"
    powers: ClassVar = {"installed": "an entry point of the group kvarena.models offers it for its model_type"}

    @pytest.fixture
    def reader(self) -> Reader:
        """The reader to test: its function, or the model_type under which it is installed."""
        return self._missing("reader", "read_my_model")

    @pytest.fixture
    def config(self) -> dict[str, Any]:
        """The object of a config.json that it reads; of a language model, not nested in another."""
        return self._missing("config", '{"model_type": "mine", "num_hidden_layers": 4, ...}')

    @pytest.fixture
    def catalog(self, reader: Reader, config: dict[str, Any]) -> Catalog:
        """What is installed, with the reader for the config's model_type."""
        if isinstance(reader, str):
            return installed()
        return LentCatalog({("models", str(config.get("model_type", ""))): reader})

    def test_gives_layers_that_keep_something(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """Its outline has a layer for each of the model's, and one at least keeps something."""
        spec = self._read(reader, config, catalog)
        if not any(layer.parts for layer in spec.layers):
            self._fail(reader, f"of its {len(spec.layers)} layers none keeps anything")
        count = config.get("num_hidden_layers")
        if isinstance(count, int) and len(spec.layers) != count:
            self._fail(reader, f"it gives {len(spec.layers)} layers, and num_hidden_layers is {count}")

    def test_reads_alike_every_time(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """The same config gives equal layers every time, and is left as it is."""
        kept = copy.deepcopy(config)
        one = self._read(reader, config, catalog)
        if config != kept:
            changed = sorted(name for name in {*kept, *config} if kept.get(name) != config.get(name))
            self._fail(reader, f"it changed {', '.join(changed)} of the config that it read")
        if self._read(reader, kept, catalog).outlines != one.outlines:
            self._fail(reader, "the same config gives other layers a second time")

    def test_says_whose_memory_is_shared(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """A layer that shares names a layer that owns something, and owns nothing itself."""
        layers = self._read(reader, config, catalog).layers
        for layer in layers:
            if layer.shares is None:
                continue
            if not 0 <= layer.shares < len(layers) or not layers[layer.shares].parts:
                self._fail(reader, f"layer {layer.index} shares the memory of layer {layer.shares}, which owns none")
            if layer.parts:
                self._fail(reader, f"layer {layer.index} shares the memory of layer {layer.shares}, and owns some too")

    def test_names_the_parts_of_a_layer_apart(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """No two parts of a layer have one role."""
        for layer in self._read(reader, config, catalog).layers:
            roles = [part.role for part in layer.parts]
            if len(set(roles)) < len(roles):
                self._fail(reader, f"layer {layer.index} has parts of the roles {roles}; give each its own")

    def test_gives_lifetimes(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """Each part has a lifetime, and keeps an entry for a whole number of tokens."""
        for layer in self._read(reader, config, catalog).layers:
            for part in layer.parts:
                if not isinstance(part.lifetime, Lifetime):
                    self._fail(reader, f"layer {layer.index}: part {part.role!r} has the lifetime {part.lifetime!r}")
                if type(part.tokens_per_entry) is not int:
                    rate = part.tokens_per_entry
                    self._fail(reader, f"layer {layer.index}: part {part.role!r} keeps an entry per {rate!r} tokens")

    def test_gives_layers_that_can_be_planned(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """The layers make a plan, in pages of the default size and of twice as many tokens, and it has bytes."""
        layers = self._read(reader, config, catalog).layers
        tokens = None
        for _ in range(2):
            try:
                plan = plan_storage(layers, page_tokens=tokens)
            except PlanError as error:
                self._fail(reader, f"its layers cannot be planned: {error}")
            if not any(pool.unit_bytes for pool in plan.sub_pools):
                self._fail(reader, f"the units of its plan have no bytes: {', '.join(plan.names)}")
            tokens = 2 * plan.page_tokens

    def _described(self, value: Any) -> str:
        names = installed().names("models")
        return str(installed().find("models", value)) if value in names else super()._described(value)

    def _read(self, reader: Reader, config: dict[str, Any], catalog: Catalog, **options: Any) -> ModelSpec:
        """The model, or the promise is broken: this config can be read."""
        try:
            return read_model(config, catalog=catalog, source=SOURCE, **options)
        except KvarenaError as error:
            self._fail(reader, f"it does not read the config of the fixture: {error}")


class ReaderConformance(ReaderPromises):
    """A model reader: give the fixtures ``reader`` and ``config``."""

    def test_shares_of_ranks_add_up(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """Over any number of ranks a part's shares add up to all of it, none is larger than it, or it is refused."""
        whole = self._read(reader, config, catalog).layers
        for tp in RANKS:
            try:
                shares = read_model(config, tp=tp, catalog=catalog, source=SOURCE).layers
            except ConfigError:
                continue
            for all_of_it, share in zip(sized(whole), sized(shares), strict=True):
                (where, size), (_, part) = all_of_it, share
                if not size <= part * tp or part > size:
                    self._fail(reader, f"over {tp} ranks each has {part} of the {size} bytes of {where}")

    def test_stores_keys_and_values_as_asked(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """Where a layout has a dtype for keys and values, it is the one that ``--dtype`` asks for."""
        for dtype in ("float32", "float16"):
            for layer in self._read(reader, config, catalog, dtype=dtype).layers:
                for part in layer.parts:
                    stored = getattr(part.layout, "dtype", dtype)
                    if not part.lifetime.own_ids and stored != dtype:
                        self._fail(reader, f"layer {layer.index}: {dtype} was asked for, and it stores {stored}")

    def test_a_missing_field_is_done_without_or_named(
        self, reader: Reader, config: dict[str, Any], catalog: Catalog
    ) -> None:
        """Without any one field the config is read, or refused by an error that begins with the file's name."""
        for name in asked_of(config, catalog):
            self._check_damaged(reader, {key: config[key] for key in config if key != name}, catalog, f"without {name}")

    def test_an_absurd_field_is_read_or_refused(self, reader: Reader, config: dict[str, Any], catalog: Catalog) -> None:
        """Whatever stands in one field, the config is read, or refused by an error that begins with the file's name."""
        for name in asked_of(config, catalog):
            for value in ABSURD:
                self._check_damaged(reader, {**config, name: value}, catalog, f"with {name} = {value!r}")

    @needs("installed")
    def test_is_found_by_its_model_type(self, reader: Reader, config: dict[str, Any]) -> None:
        """Who installs it reads such a config: its model_type is the name of its entry point."""
        name, catalog = config.get("model_type"), installed()
        if not isinstance(name, str) or name not in catalog.names("models"):
            self._fail(reader, f"no model reader is installed for the model_type {name!r} of the config")
        if isinstance(reader, str) and reader != name:
            self._fail(reader, f"the config of the fixture is one of {name!r}, not of {reader!r}")
        if callable(reader) and catalog.load("models", name) is not reader:
            self._fail(reader, f"another reader is installed for its model_type: {catalog.find('models', name)}")

    def _check_damaged(self, reader: Reader, config: dict[str, Any], catalog: Catalog, how: str) -> None:
        """The config is read, and its layers planned, or refused by name."""
        try:
            plan_storage(read_model(config, catalog=catalog, source=SOURCE).layers)
        except (PlanError, PluginError):  # of the layers or their lifetimes: other promises are about them
            return
        except ConfigError as error:
            if not str(error).startswith(SOURCE):
                self._fail(reader, f"{how} it refuses the config, and does not say which: {error}")
        except Exception as error:  # what it is matters less than that nobody is told which field it was
            self._fail(reader, f"{how} it raises {type(error).__name__}: {error}; raise config.error(name, finding)")


class Watched(Mapping[str, Any]):
    """A config that remembers which of its fields were looked at."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.asked: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.asked[name] = None
        return self._config[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)


def asked_of(config: dict[str, Any], catalog: Catalog) -> list[str]:
    """The fields of a config that are looked at while it is read."""
    watched = Watched(config)
    try:
        read_model(watched, catalog=catalog, source=SOURCE)
    except KvarenaError:
        return list(config)
    return [name for name in watched.asked if name in config]


def sized(layers: tuple[Layer, ...]) -> Iterator[tuple[str, int]]:
    """Each part in words, and the bytes of one entry of it."""
    for layer in layers:
        for part in layer.parts:
            yield f"layer {layer.index}, {part.role}", sum(field.bytes for field in part.layout.fields())
