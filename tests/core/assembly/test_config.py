"""Config files say what they may, and every mistake is one line that names its place and a cure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from kvarena.assembly.config import ArenaConfig, ChecksConfig, Choice, PrefixConfig, StorageConfig, read_toml, structure
from kvarena.assembly.structuring import SettingError
from kvarena.terms.errors import ConfigError

ARENA = {"memory": "2GiB"}


def storage(**sections: Any) -> StorageConfig:
    return structure(StorageConfig, {"arena": ARENA, **sections}, "quickstart.toml")


def test_a_config_with_only_a_budget_has_sane_defaults() -> None:
    """Memory is the one thing that cannot be guessed; the rest has defaults."""
    config = storage()

    assert config.arena.memory == 2 * 1024**3
    assert config.backend.name == "cpu"
    assert (config.policies.holes.name, config.policies.compaction.name, config.policies.placement.name) == (
        "nearest",
        "lazy",
        "middle",
    )
    assert config.prefix == PrefixConfig()
    assert (config.prefix.share, config.prefix.strategy, config.prefix.eviction.name) == (False, "extra_buffer", "lru")
    assert config == StorageConfig(arena=ArenaConfig(memory="2GiB"))


def test_a_plugin_is_named_alone_or_with_its_settings() -> None:
    """``"eager"`` and ``{name = "eager", moves_max = 8}`` are both choices."""
    config = storage(policies={"compaction": {"name": "eager", "moves_max": 8}, "holes": "recent"})

    assert config.policies.compaction == Choice("eager", {"moves_max": 8})
    assert config.policies.holes == Choice("recent")


@pytest.mark.req("BLD-3")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"arena": {"memry": "2GiB"}}, "arena.memry: unknown key; did you mean 'memory'?"),
        ({"arena": {}}, "arena.memory: is missing, and has no default"),
        ({"arena": 3}, "arena: must be a table of settings, not 3"),
        ({"arena": {"memory": "80GG"}}, "arena.memory: '80GG' is not an amount of bytes"),
        ({"arena": {"memory": 1.5}}, 'arena.memory: must be an amount of bytes, such as "2GiB", not 1.5'),
        ({"arena": {"memory": True}}, "arena.memory: must be an amount of bytes"),
        ({"arena": {"memory": -5}}, "arena.memory: -5 is a negative number of bytes"),
        ({"arena": {"memory": 0}}, "arena.memory: 0 bytes is absurd"),
        ({"arena": {"memory": "9000TiB"}}, "is absurd for an arena; from 1 B to 16 TiB"),
        ({"arena": {**ARENA, "page_tokens": 0}}, "arena.page_tokens: must be a whole number >= 1, not 0"),
        ({"arena": {**ARENA, "page_tokens": "16"}}, "arena.page_tokens: must be a whole number, not '16'"),
        ({"arena": {**ARENA, "page_tokens": 1 << 30}}, "arena.page_tokens: 1,073,741,824 is absurd"),
        ({"arena": {**ARENA, "max_running": True}}, "arena.max_running: must be a whole number, not True"),
        ({"arena": {**ARENA, "owner": "al"}}, "arena.owner: unknown value 'al'; choose one of: any, required"),
        ({"arena": {**ARENA, "state_share": 1.0}}, "arena.state_share: must lie between 0 and 1"),
        ({"arena": {**ARENA, "state_share": 0.5, "state_slots": 3}}, "arena.state_share: state_slots is set too"),
        ({"arena": {**ARENA, "mirrors": "yes"}}, "arena.mirrors: must be true or false, not 'yes'"),
        ({"version": 2}, "version: 2 is not known here; this kvarena reads version 1"),
        ({"checks": {"level": 3}}, "checks.level: there is no level 3; choose 0 (off), 1 (tell) or 2 (strict)"),
        ({"checks": {"level": -1}}, "checks.level: there is no level -1; choose 0 (off), 1 (tell) or 2 (strict)"),
        ({"checks": {"level": 10**30}}, f"checks.level: there is no level {10**30}; choose 0"),
        ({"checks": {"level": True}}, "checks.level: must be a whole number, not True"),
        ({"checks": {"level": "strict"}}, "checks.level: must be a whole number, not 'strict'"),
        ({"checks": {"levl": 1}}, "checks.levl: unknown key; did you mean 'level'?"),
        ({"checks": 2}, "checks: must be a table of settings, not 2"),
        ({"prefix": {"share": 1}}, "prefix.share: must be true or false, not 1"),
        (
            {"prefix": {"strategy": "buffer"}},
            "prefix.strategy: unknown value 'buffer'; did you mean 'no_buffer'?",
        ),
        ({"prefix": {"checkpoint_tokens": 0}}, "prefix.checkpoint_tokens: must be a whole number >= 1, not 0"),
        ({"prefix": {"checkpoint_tokens": 1.5}}, "prefix.checkpoint_tokens: must be a whole number, not 1.5"),
        ({"prefix": {"eviction": 3}}, "prefix.eviction: must be a name or a table with a name"),
        ({"prefix": {"cache_output": True}}, "prefix.cache_output: unknown key; did you mean 'cache_outputs'?"),
        ({"polices": {}}, "polices: unknown key; did you mean 'policies'?"),
        ({"policies": {"holes": 3}}, "policies.holes: must be a name or a table with a name"),
        ({"policies": {"holes": {"order": "up"}}}, "policies.holes: must be a name or a table with a name"),
        ({"plugins": {"enable": "mha"}}, "plugins.enable: must be a list, not 'mha'"),
        ({"plugins": {"enable": ["a", 4]}}, "plugins.enable[1]: must be a text, not 4"),
        ({"layers": {"index": 1}}, "layers: must be a list"),
        ({"layers": [3]}, "layers[0]: must be a table, not 3"),
    ],
)
def test_each_mistake_is_named_with_its_place_and_a_cure(sections: Mapping[str, Any], message: str) -> None:
    """One mistake, one ConfigError, which starts with the file and the key path."""
    with pytest.raises(ConfigError) as caught:
        storage(**sections)

    assert str(caught.value).startswith("quickstart.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@attrs.frozen(kw_only=True)
class Section:
    """What another plugin may want to read with the same function."""

    mode: Literal["fast", "safe"] = "safe"
    limits: tuple[int, int] = (1, 2)
    tokens: int | str = attrs.field(default=4)
    weights: Mapping[str, float] = attrs.field(factory=dict)
    trace: Path | None = None
    share: float = attrs.field(default=0.5, validator=attrs.validators.lt(1))

    @tokens.validator
    def _even(self, attribute: Any, value: Any) -> None:
        if isinstance(value, int) and value % 2:
            raise SettingError("tokens", f"{value} is odd")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mode": "fats"}, "f: s.mode: unknown value 'fats'; did you mean 'fast'?"),
        ({"limits": [1, 2, 3]}, "f: s.limits: must be a list of 2, not [1, 2, 3]"),
        ({"limits": [1, "2"]}, "f: s.limits[1]: must be a whole number, not '2'"),
        ({"tokens": 3}, "f: s.tokens: 3 is odd"),
        ({"tokens": 3.5}, "f: s.tokens: must be a whole number, not 3.5"),
        ({"weights": {"a": "b"}}, "f: s.weights.a: must be a number, not 'b'"),
        ({"weights": {"a": float("nan")}}, "f: s.weights.a: must be a number, not nan"),
        ({"trace": 3}, "f: s.trace: must be the path of a file, not 3"),
        ({"share": 2}, "f: s.share: must be < 1: 2.0"),
        ([], "f: s: must be a table of settings, not []"),
    ],
)
def test_a_plugins_own_section_is_read_as_strictly(data: Any, message: str) -> None:
    """``structure`` knows no section by name: any attrs class is read, with a path below ``at``."""
    with pytest.raises(ConfigError) as caught:
        structure(Section, data, "f", at="s")

    assert str(caught.value) == message


def test_what_is_right_is_read_as_it_is() -> None:
    """Whole numbers pass as numbers, paths become paths, unions take what fits."""
    data = {"mode": "fast", "limits": [3, 4], "tokens": "all", "weights": {"a": 1}, "trace": "x.csv", "share": 0}

    assert structure(Section, data, "f") == Section(
        mode="fast", limits=(3, 4), tokens="all", weights={"a": 1.0}, trace=Path("x.csv"), share=0.0
    )


def test_toml_is_read_or_refused_with_the_line(tmp_path: Path) -> None:
    """A missing file, a folder, bytes that are no text and a syntax error each say so."""
    good, bad, raw = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "raw.toml"
    good.write_text("[arena]\nmemory = '1MiB'\n")
    bad.write_text("[arena]\nmemory = \n")
    raw.write_bytes(b"\xff\xfe")

    assert read_toml(good) == {"arena": {"memory": "1MiB"}}
    with pytest.raises(ConfigError, match=r"absent.toml: there is no such file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        read_toml(tmp_path)
    with pytest.raises(ConfigError, match=r"bad.toml: is no TOML: .*line 2"):
        read_toml(bad)
    with pytest.raises(ConfigError, match=r"raw.toml: is no text in UTF-8"):
        read_toml(raw)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000 + "]" * 5000, "x = " + "9" * 5000])
def test_toml_that_breaks_its_reader_is_refused(tmp_path: Path, text: str) -> None:
    """Nests without end and numbers of 5,000 digits are told as any other mistake."""
    file = tmp_path / "x.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"x.toml: is no TOML"):
        read_toml(file)


def test_a_value_that_is_refused_in_python_names_its_setting() -> None:
    """Where no file says the place, the finding does."""
    with pytest.raises(SettingError, match="page_tokens: must be a whole number >= 1"):
        ArenaConfig(memory=1, page_tokens=0)  # type: ignore[arg-type]


@pytest.mark.req("CHK-1")
def test_a_level_of_checks_is_one_of_three() -> None:
    """0, 1 (the default) or 2, from a file as from Python; the page of settings has its row."""
    assert [storage(checks={"level": level}).checks.level for level in (0, 1, 2)] == [0, 1, 2]
    assert storage().checks == ChecksConfig() == ChecksConfig(level=1)
    for level in (True, 3, -1, 1.5, None):
        with pytest.raises(SettingError, match="level: there is no level"):
            ChecksConfig(level=level)  # type: ignore[arg-type]
    page = Path(__file__).parents[3] / "docs" / "config.md"
    assert "| `level` |" in page.read_text(encoding="utf-8")
