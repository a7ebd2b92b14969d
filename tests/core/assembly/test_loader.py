"""A name in a config becomes an object with the settings beside it, or one clear error."""

import attrs
import pytest

from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.assembly.config import ArenaConfig, Choice, PoliciesConfig, PrefixConfig, StorageConfig
from kvarena.assembly.loader import declared_layers, make, make_eviction, make_policies
from kvarena.terms.errors import ConfigError, PluginError
from kvarena.terms.lifetimes import Full, State, Window

OURS = tuple(entry for entry in installed_entries() if entry.distribution == "kvarena")


@attrs.frozen
class Sample:
    """A plugin with settings."""

    size: int
    mode: str = "plain"


def make_sample(size: int, mode: str = "plain") -> Sample:
    """A plugin that is a function."""
    if size < 0:
        raise ValueError(f"a size of {size} makes no sense")
    return Sample(size, mode)


def entry(kind: str, name: str, what: str) -> Entry:
    return Entry(kind, name, "test", "1", f"{__name__}:{what}")


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(
        [
            *OURS,
            entry("backends", "sample", "Sample"),
            entry("backends", "function", "make_sample"),
        ]
    )


def test_a_class_and_a_function_get_their_settings(catalog: Catalog) -> None:
    """Settings are the fields of the one, the parameters of the other."""
    for name in ("sample", "function"):
        assert make(catalog, "backends", Choice(name, {"size": 3})) == Sample(3)


@pytest.mark.req("BLD-3")
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("sample", {"size": 3, "mod": "x"}), "q.toml: backend: mod: unknown key; did you mean 'mode'?"),
        (Choice("function", {"size": 3, "mod": "x"}), "q.toml: backend: mod: unknown key; did you mean 'mode'?"),
        (Choice("sample", {"size": "3"}), "q.toml: backend: size: must be a whole number, not '3'"),
        (Choice("sample"), "q.toml: backend: size: is missing, and has no default"),
        (Choice("function", {"size": -1}), "q.toml: backend: a size of -1 makes no sense"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(catalog: Catalog, choice: Choice, message: str) -> None:
    """The place is the one in the file; the cure is the plugin's own field."""
    with pytest.raises(ConfigError) as caught:
        make(catalog, "backends", choice, "q.toml: backend")
    assert str(caught.value) == message


def test_an_unknown_plugin_is_named_with_its_place(catalog: Catalog) -> None:
    """And the nearest that there is."""
    with pytest.raises(PluginError, match=r"q.toml: backend: no backend is named 'hots'; did you mean 'host'\?"):
        make(catalog, "backends", "hots", "q.toml: backend")


@pytest.mark.req("PLG-1")
def test_policies_are_made_by_name(catalog: Catalog) -> None:
    """Defaults are ours; a table gives a policy its settings."""
    policies = make_policies(catalog, PoliciesConfig(compaction={"name": "lazy", "max_moves": 3}))

    assert (policies.hole_order.name, policies.placement.name) == ("nearest", "middle")
    assert policies.compaction.moves(live=100, holes=50) == 3


def test_a_policy_of_another_sort_is_refused(catalog: Catalog) -> None:
    """A compaction policy cannot order holes; those that can are listed."""
    with pytest.raises(ConfigError) as caught:
        make_policies(catalog, PoliciesConfig(holes="lazy"), "q.toml")
    why = "'lazy' is no hole order, it has no 'open'; choose one of: nearest, recent"
    assert str(caught.value) == f"q.toml: policies.holes: {why}"


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("name", ["lru", "lfu", "priority", "worth"])
def test_an_eviction_policy_is_made_by_name(catalog: Catalog, name: str) -> None:
    """With its settings; ``lru`` where none is named."""
    assert make_eviction(catalog, PrefixConfig(eviction=name)).name == name
    split = make_eviction(catalog, PrefixConfig(eviction={"name": name, "splits": False}))
    assert (split.name, split.splits) == (name, False)
    assert make_eviction(catalog, PrefixConfig()).name == "lru"


@pytest.mark.parametrize(
    ("role", "name", "why"),
    [
        ("prefix.eviction", "nearest", "'nearest' is no eviction policy, it has no 'splits'; choose one of: "),
        ("prefix.eviction", "lrv", "no policy is named 'lrv'; did you mean 'lru'?"),
        ("prefix.eviction", "nope", "no policy is named 'nope'; choose one of: lfu, lru, priority, worth"),
        ("prefix.eviction", "none", "'none' is no eviction policy, it has no 'splits'; choose one of: lfu, lru, "),
        ("policies.holes", "nope", "no policy is named 'nope'; choose one of: nearest, recent"),
        ("policies.holes", "lru", "'lru' is no hole order, it is of another sort; choose one of: nearest, recent"),
    ],
)
def test_what_chooses_entries_does_not_order_holes(catalog: Catalog, role: str, name: str, why: str) -> None:
    """Nor the other way round, though both are opened; those that fit are listed."""
    acts = {
        "prefix.eviction": lambda: make_eviction(catalog, PrefixConfig(eviction=name), "q.toml"),
        "policies.holes": lambda: make_policies(catalog, PoliciesConfig(holes=name), "q.toml"),
    }
    with pytest.raises((ConfigError, PluginError)) as caught:
        acts[role]()
    assert str(caught.value).startswith(f"q.toml: {role}: {why}")


def declared(*tables: dict[str, object]) -> StorageConfig:
    return StorageConfig(arena=ArenaConfig(memory="1GiB"), layers=tables)


MHA = {"layout": "mha", "kv_heads": 2, "head_dim": 16}


@pytest.mark.req("DEC-1")
@pytest.mark.req("DEC-2")
def test_declared_layers_share_out_their_settings(catalog: Catalog) -> None:
    """Free keys go to the layout or the lifetime that has them; tables of one index add up."""
    state = {"layout": "short-conv", "lifetime": "state"}
    conv = catalog.load("layouts", "short-conv")
    required = {
        field.name: 4 for field in attrs.fields(conv) if field.default is attrs.NOTHING and field.type in (int, "int")
    }
    layers = declared_layers(
        declared(
            {"index": [0, 1], "lifetime": "window", "window": 64, **MHA},
            {"index": 2, "tokens_per_entry": 4, **MHA},
            {"index": 1, **state, **required},
            {"index": 3, "shares": 2},
            {"index": 4},
        ),
        catalog,
    )

    assert [layer.index for layer in layers] == [0, 1, 2, 3, 4]
    assert [part.lifetime for part in layers[1].parts] == [Window(64), State()]
    assert [part.role for part in layers[1].parts] == ["kv", "state"]
    assert (layers[2].parts[0].lifetime, layers[2].parts[0].tokens_per_entry) == (Full(), 4)
    assert layers[3].shares == 2
    assert layers[4].parts == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "q.toml: layers[0].index: is missing, and has no default"),
        ({"index": 0, **MHA, "kv_head": 1}, "q.toml: layers[0].kv_head: unknown key; did you mean 'kv_heads'?"),
        ({"index": 0, **MHA, "windw": 1}, "q.toml: layers[0].windw: unknown key"),
        ({"index": 0, **MHA, "kv_heads": "2"}, "q.toml: layers[0].kv_heads: must be a whole number, not '2'"),
        ({"index": 0, **MHA, "head_dim": 0}, "q.toml: layers[0].head_dim: must be >= 1: 0"),
        ({"index": 0, **MHA, "dtype": "int7"}, "q.toml: layers[0].dtype: unknown dtype 'int7'"),
        ({"index": 0, **MHA, "lifetime": "window"}, "q.toml: layers[0].window: is missing, and has no default"),
        ({"index": 0, **MHA, "tokens_per_entry": 0}, "q.toml: layers[0].tokens_per_entry: must be >= 1: 0"),
        ({"index": -1, **MHA}, "q.toml: layers[0].index: must be >= 0: -1"),
        ({"index": [], **MHA}, "q.toml: layers[0].index: names no layer"),
        ({"index": 0, "kv_heads": 1}, "q.toml: layers[0].kv_heads: a setting without a layout"),
    ],
)
def test_a_wrong_layer_is_named_with_its_place(catalog: Catalog, table: dict[str, object], message: str) -> None:
    """The number of the table, the key, and the nearest one that its layout or lifetime has."""
    with pytest.raises(ConfigError) as caught:
        declared_layers(declared(table), catalog, "q.toml")
    assert message in str(caught.value)


def test_an_unknown_layout_is_named_with_its_place(catalog: Catalog) -> None:
    """A misspelt layout is told the nearest."""
    with pytest.raises(PluginError, match=r"q.toml: layers\[0\].layout: no layout is named 'mhaa'; did you mean 'mha'"):
        declared_layers(declared({"index": 0, "layout": "mhaa"}), catalog, "q.toml")


class Failing:
    """A layout that fails when asked."""

    name = "failing"

    def fields(self) -> tuple[()]:
        """Fail."""
        raise RuntimeError("boom")


def test_a_layout_that_raises_is_one_error_that_names_it() -> None:
    """No traceback of somebody else's code."""
    catalog = Catalog([*OURS, Entry("layouts", "failing", "stranger", "1", f"{__name__}:Failing")])
    config = StorageConfig(arena=ArenaConfig(memory="1MiB"), layers=[{"index": 0, "layout": "failing"}])
    with pytest.raises(PluginError, match=r"layers\[0\]: layout 'failing' \(.*\): fields\(\) raised RuntimeError"):
        declared_layers(config, catalog)


@pytest.mark.parametrize("index", [1 << 20, 10**30])
def test_an_absurd_layer_is_refused(catalog: Catalog, index: int) -> None:
    """A slip of the finger makes no model of a million layers."""
    config = StorageConfig(arena=ArenaConfig(memory="1MiB"), layers=[{"index": index}])
    with pytest.raises(ConfigError, match=r"layers\[0\]\.index: .* is absurd"):
        declared_layers(config, catalog)
