"""``kvarena config``: every value of a file with where it comes from, and a schema that says what a file may say."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest

from kvarena import hookimpl
from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.assembly.config import CONFIG_VERSION, Choice, StorageConfig, structure
from kvarena.assembly.loader import check_eviction, declared_layers, make_policies
from kvarena.plugins.cli import config_schema
from kvarena.plugins.cli.config_kinds import CHOICES, CLASSES, GPUS, RUN, STORAGE, kind_of
from kvarena.plugins.cli.config_schema import schema_of
from kvarena.plugins.cli.main import run
from kvarena.terms.errors import KvarenaError

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]
EXAMPLES = sorted(
    path.relative_to(ROOT)
    for path in (*(ROOT / "examples").rglob("*.toml"), ROOT / "plugins" / "replay" / "gpus.toml")
    if path.name != "pyproject.toml"
)
SERVE = """
backend = "host"

[arena]
memory = "1GiB"
page_tokens = 32

[prefix]
eviction = { name = "lfu", splits = false }

[[layers]]
index = [0, 1]
layout = "mha"
kv_heads = 8
head_dim = 128
lifetime = "window"
window = 64
"""


@pytest.fixture(scope="module")
def validator() -> Any:
    """Of the schema as it is installed here."""
    document, refusals = schema_of(Catalog.installed())
    assert refusals == ()
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and no variables that stand for parts of it."""
    for name in ("KVARENA_LOG", "KVARENA_LOG_FORMAT", "KVARENA_DISABLE_PLUGIN_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "serve.toml"
    path.write_text(SERVE, encoding="utf-8")
    return path


def shown(capsys: Capture, *arguments: object) -> dict[str, tuple[Any, str]]:
    """What ``config show --json`` prints, by key."""
    assert run([*map(str, arguments), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["values"]
    found = {row["key"]: (row["value"], row["from"]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_every_value_has_its_source(serve: Path, capsys: Capture) -> None:
    """A line of the file, the default of the setting, or that of the plugin that has it."""
    found = shown(capsys, "config", "show", serve)

    assert found["arena.memory"] == (1 << 30, f"{serve}:5")
    assert found["arena.page_tokens"] == (32, f"{serve}:6")
    assert found["arena.unit_align"] == (1, "default")
    assert found["backend"] == ("host", f"{serve}:2")
    assert found["prefix.eviction"] == ("lfu", f"{serve}:9")
    assert found["prefix.eviction.splits"] == (False, f"{serve}:9")
    assert found["policies.compaction.max_moves"][1].startswith("default of policy 'lazy' (kvarena ")
    assert found["layers[0].index"] == ([0, 1], f"{serve}:12")
    assert found["layers[0].window"] == (64, f"{serve}:17")
    assert found["layers[0].dtype"][1].startswith("default of layout 'mha' (kvarena ")


def test_what_is_set_beside_the_file_says_so(serve: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """--set, an option of kvarena and a variable of the environment each stand before the file."""
    monkeypatch.setenv("KVARENA_LOG", "debug")
    monkeypatch.setenv("KVARENA_DISABLE_PLUGIN_AUTOLOAD", "1")
    changes = ["arena.page_tokens=64", "layers[0].head_dim=64", "policies.holes=recent", "arena.caps.window-64=9"]
    options = [word for change in changes for word in ("--set", change)]
    found = shown(capsys, "--log-format", "json", "config", "show", serve, *options)

    assert found["arena.page_tokens"] == (64, "--set arena.page_tokens")
    assert found["layers[0].head_dim"] == (64, "--set layers[0].head_dim")
    assert found["policies.holes"] == ("recent", "--set policies.holes")
    assert found["arena.caps"][0] == {"window-64": 9}
    assert found["logs.level"] == ("debug", "environment KVARENA_LOG")
    assert found["logs.format"] == ("json", "--log-format")
    assert found["KVARENA_DISABLE_PLUGIN_AUTOLOAD"] == ("1", "environment")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("arena.page_tokens", "--set arena.page_tokens: must be KEY=VALUE"),
        *(
            (f"{key}=1", f"--set {key}=1: must be KEY=VALUE")
            for key in ("arena..memory", "arena.", ".arena", "layers[x]y")
        ),
        ("arena.page_tokens=8\nfoo=3", "--set arena.page_tokens: '8\\nfoo=3' sets more than one key; give each a"),
        ("layers[0][0]=3", "--set layers[0][0]: there is no table or list to set 0 in"),
        ("policies.holes.recent_max=5", "--set policies.holes.recent_max: policies.holes: must be a name or a table"),
        ('backend={name="cpu", x=1}', "--set backend: x: unknown key"),
        ("arena.page_tokens=0", "--set arena.page_tokens: must be a whole number >= 1, not 0"),
        ("arena.page_token=8", "--set arena.page_token: unknown key; did you mean 'page_tokens'?"),
        ("policies.holes=nearst", "--set policies.holes: no policy is named 'nearst'; did you mean 'nearest'?"),
        ("backend.name=cpu", "--set backend.name: there is no table or list to set 'name' in"),
        ("layers[3].window=2", "--set layers[3].window: there is no 3 to set something in"),
        ("prefix.eviction.most=1", "--set prefix.eviction.most: unknown key"),
    ],
)
def test_a_wrong_change_is_one_line(serve: Path, capsys: Capture, change: str, says: str) -> None:
    """With the key, what was found and what would do; exit code 2."""
    assert run(["config", "show", str(serve), "--set", change]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvarena: {says}")


def test_a_mistake_of_the_file_has_its_line(serve: Path, capsys: Capture) -> None:
    """As the command that reads the file tells it."""
    serve.write_text(SERVE.replace("kv_heads", "kv_head"), encoding="utf-8")
    assert run(["config", "show", str(serve)]) == 2
    assert capsys.readouterr().err.startswith(f"kvarena: {serve}:14: layers[0].kv_head: unknown key")


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_config_of_the_repository_is_shown_and_valid(example: Path, validator: Any, capsys: Capture) -> None:
    """Each value of the file has a row that names its line."""
    path = ROOT / example
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(data)] == []

    rows = shown(capsys, "config", "show", path)
    lines = {source.rpartition(":")[2] for _, source in rows.values() if source.startswith(f"{path}:")}
    assert len(lines) >= 3
    assert all(key in rows for key, value in data.items() if not isinstance(value, dict | list) and key != "version")


def test_the_kind_of_a_file_is_told_by_its_keys() -> None:
    """A run names a model and a trace; accelerators stand in tables of their own; the rest is a storage."""
    assert kind_of({"model": "lfm3", "arena": {}}) == RUN
    assert kind_of({"arena": {}}) == kind_of({}) == kind_of({"arean": {}}) == STORAGE
    assert kind_of({"version": 1, "mine": {"base": "h100"}}) == GPUS


def choices_of(cls: type, at: str = "") -> Iterator[str]:
    """The key of every field that names a plugin."""
    for field in attrs.fields(cls):
        key = f"{at}.{field.name}" if at else field.name
        if field.type is Choice or "Choice" in str(field.type):
            yield key
        elif isinstance(field.type, type) and attrs.has(field.type):
            yield from choices_of(field.type, key)


def test_every_setting_that_names_a_plugin_is_known() -> None:
    """A new one needs its kind, or neither page would know which names it may have."""
    assert {key for cls in CLASSES.values() for key in choices_of(cls)} == set(CHOICES)


LAYER = {"index": 0, "layout": "mha", "kv_heads": 8, "head_dim": 128}
GOOD: dict[str, dict[str, Any]] = {
    "the least": {"arena": {"memory": "1GiB"}},
    "bytes": {"arena": {"memory": 4096}, "version": 1},
    "a cap": {"arena": {"memory": "1.5 GB", "caps": {"state": 3}, "state_share": 0.5}},
    "tables": {"arena": {"memory": "1GiB"}, "policies": {"compaction": {"name": "lazy", "max_moves": 3}}},
    "a layer": {"arena": {"memory": "1GiB"}, "layers": [LAYER]},
    "a window": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "lifetime": "window", "window": 4}]},
    "a state": {
        "arena": {"memory": "1GiB"},
        "layers": [{"index": [1], "layout": "short-conv", "channels": 4, "columns": 3, "lifetime": "state"}],
    },
    "tensors": {
        "arena": {"memory": "1GiB"},
        "layers": [
            {"index": 1, "layout": "tensors", "tensors": [{"name": "a", "dtype": "bf16", "shape": [2, 3]}]},
        ],
    },
    "shared": {"arena": {"memory": "1GiB"}, "layers": [LAYER, {"index": 1, "shares": 0, "kind": "shared"}]},
    "logs": {"arena": {"memory": "1GiB"}, "logs": {"level": "info", "format": "json"}, "checks": {"level": 2}},
}
BAD: dict[str, dict[str, Any]] = {
    "no arena": {"backend": "cpu"},
    "no memory": {"arena": {}},
    "a misspelt key": {"arena": {"memory": "1GiB", "page_token": 3}},
    "a misspelt section": {"arena": {"memory": "1GiB"}, "polices": {}},
    "a text for a number": {"arena": {"memory": "1GiB", "page_tokens": "16"}},
    "true for a number": {"arena": {"memory": "1GiB", "page_tokens": True}},
    "a number for true": {"arena": {"memory": "1GiB", "mirrors": 1}},
    "below its range": {"arena": {"memory": "1GiB", "page_tokens": 0}},
    "above its range": {"arena": {"memory": "1GiB", "forwards_in_flight": 65}},
    "an unknown unit": {"arena": {"memory": "1 gigabyte"}},
    "a share of all": {"arena": {"memory": "1GiB", "state_share": 1.0}},
    "another version": {"arena": {"memory": "1GiB"}, "version": 2},
    "an unknown word": {"arena": {"memory": "1GiB", "owner": "al"}},
    "a cap of none": {"arena": {"memory": "1GiB", "caps": {"state": 0}}},
    "an unknown level": {"arena": {"memory": "1GiB"}, "checks": {"level": 3}},
    "a loud log": {"arena": {"memory": "1GiB"}, "logs": {"level": "loud"}},
    "a text for a list": {"arena": {"memory": "1GiB"}, "plugins": {"enable": "mha"}},
    "an unknown policy": {"arena": {"memory": "1GiB"}, "policies": {"holes": "nearst"}},
    "a policy of another sort": {"arena": {"memory": "1GiB"}, "policies": {"holes": "lru"}},
    "a setting of another policy": {
        "arena": {"memory": "1GiB"}, "policies": {"compaction": {"name": "eager", "max_moves": 3}},
    },
    "a setting out of range": {
        "arena": {"memory": "1GiB"}, "policies": {"compaction": {"name": "lazy", "max_moves": 0}},
    },
    "a table without a name": {"arena": {"memory": "1GiB"}, "prefix": {"share": True, "eviction": {"splits": True}}},
    "no such layout": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "layout": "mhb"}]},
    "no index": {"arena": {"memory": "1GiB"}, "layers": [{"layout": "mha", "kv_heads": 8, "head_dim": 128}]},
    "no heads": {"arena": {"memory": "1GiB"}, "layers": [{"index": 0, "layout": "mha", "head_dim": 128}]},
    "a strange key of a layer": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "windw": 3}]},
    "a window without its size": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "lifetime": "window"}]},
    "a window's size for all": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "window": 4}]},
    "a setting without a layout": {"arena": {"memory": "1GiB"}, "layers": [{"index": 0, "kv_heads": 8}]},
    "an unknown dtype": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "dtype": "int7"}]},
    "no heads at all": {"arena": {"memory": "1GiB"}, "layers": [{**LAYER, "kv_heads": 0}]},
}  # fmt: skip


def reading(data: dict[str, Any]) -> None:
    """As a command reads a storage's file."""
    config = structure(StorageConfig, data, "serve.toml")
    catalog = Catalog.installed(config.plugins)
    make_policies(catalog, config.policies)
    check_eviction(catalog, config.prefix)
    declared_layers(config, catalog)


@pytest.mark.parametrize("data", GOOD.values(), ids=GOOD)
def test_the_schema_takes_what_is_read(data: dict[str, Any], validator: Any) -> None:
    """Nothing that a command reads is a mistake to an editor."""
    reading(data)
    assert [error.message for error in validator.iter_errors(data)] == []


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_the_schema_refuses_what_is_refused(data: dict[str, Any], validator: Any) -> None:
    """Each mistake that the reader tells, the schema finds too."""
    with pytest.raises(KvarenaError):
        reading(data)
    assert not validator.is_valid(data)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"arena": {"memory": "1GiB"}, "memory_requests": 2.0}, False),
        ({"memory_requests": 0.5}, False),
        ({"model": 3}, False),
        ({"serving": {"output_fraction": 0.0}}, False),
        ({"serving": {"chunk_tokns": 8}}, False),
        ({"trace": {"file": "a.csv", "on_bad": "cry"}}, False),
        ({"clock": {"step_seconds": 0.0}}, False),
        ({"kv_layout": "mhb"}, False),
        ({"kv_layout": "mha"}, True),
        ({"kv_layout": {"name": "mha", "dtype": "fp8"}}, True),
        ({"kv_layout": {"name": "mha", "dtyp": "fp8"}}, False),
    ],
)
def test_the_file_of_a_run_is_one_too(change: dict[str, Any], fits: bool, validator: Any) -> None:
    """Its own sections beside those of the storage; its memory is said once."""
    data = {"model": "lfm3", "trace": {"file": "a.csv"}, "memory_requests": 2.0, **change}
    assert validator.is_valid(data) is fits


def test_a_plugins_own_settings_are_in_the_schema_and_a_broken_plugin_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With types, ranges and defaults; what cannot be imported is left out and named on stderr."""
    strange = [
        Entry("policies", "tight", "stranger", "1", f"{__name__}:Tight"),
        Entry("layouts", "gone", "stranger", "1", "no_such_module:Layout"),
        Entry("policies", "loose", "stranger", "1", f"{__name__}:loose"),
    ]
    entries = (*installed_entries(), *strange)
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog(entries, plugins)))
    assert run(["config", "schema"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    compaction = document["$defs"]["storage"]["properties"]["policies"]["properties"]["compaction"]["oneOf"]
    tables = {table["properties"]["name"]["const"]: table for table in compaction[1:]}

    assert set(compaction[0]["enum"]) == {"eager", "lazy", "none", "tight"}
    assert tables["tight"]["properties"]["share"] == {"type": "number", "exclusiveMinimum": 0, "default": 0.1}
    assert tables["tight"]["required"] == ["name", "most"]
    assert err.count("\n") == 1
    assert "left out: layout 'gone' (stranger 1): ModuleNotFoundError" in err


def test_the_schema_knows_the_version_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind of file, also of tables of accelerators."""
    document, _ = schema_of(Catalog.installed())
    for kind in ("storage", "run", "gpus"):
        assert document["$defs"][kind]["properties"]["version"]["const"] == CONFIG_VERSION, kind
    monkeypatch.setattr(config_schema, "CONFIG_VERSION", 7)
    document, _ = schema_of(Catalog.installed())
    assert document["$defs"]["gpus"]["properties"]["version"] == {"const": 7}


@attrs.define
class Homonym:
    """A layout whose settings are called like keys of a file."""

    backend: str
    layers: int = 2


def test_a_plugins_setting_is_no_key_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One called ``backend`` is what its type says; what is no class is left out with a reason."""
    strange = [
        Entry("layouts", "homonym", "stranger", "1", f"{__name__}:Homonym"),
        Entry("layouts", "number", "stranger", "1", f"{__name__}:NO_CLASS"),
    ]
    document, refusals = schema_of(Catalog([*installed_entries(), *strange]))
    made = document["$defs"]["layouts/homonym"]["properties"]

    assert (made["backend"], made["layers"]) == ({"type": "string"}, {"type": "integer", "default": 2})
    assert [why for why in refusals if "it does not tell which settings it takes" in why]


NO_CLASS = 7


@attrs.frozen
class Tight:
    """A policy with settings."""

    most: int
    share: float = attrs.field(default=0.1, validator=attrs.validators.gt(0))
    name = "tight"

    def moves(self, live: int, holes: int) -> int:
        """None."""
        return 0


def loose(end: str = "low") -> None:
    """A policy that is a function, and none of the sorts."""


class Misspelt:
    """A hook plugin with a hook that does not exist."""

    @hookimpl
    def kvarena_step(self) -> None:
        """None."""


def test_hook_plugins_are_checked_as_a_run_would(serve: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that enables a plugin with a hook that is none is refused, not shown."""
    entries = [*installed_entries(), Entry("plugins", "misspelt", "other", "1", f"{__name__}:Misspelt")]
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog(entries, plugins)))

    assert run(["config", "show", str(serve), "--set", 'plugins.enable=["misspelt"]']) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "kvarena: hook plugin 'misspelt' (other 1): PluginValidationError: unknown hook 'kvarena_step'"
    )


def test_the_schema_is_printed_as_json(capsys: Capture) -> None:
    """Of the draft that it says, and nothing beside it."""
    assert run(["config", "schema"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert err == ""
