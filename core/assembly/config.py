"""What a config file may say: frozen classes with defaults, read from TOML, refused by key path.

``structure`` is for every section, a plugin's own included: it reads any attrs class from a mapping
and turns each mistake into one ``ConfigError`` with the place, what was found and what would do.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.structuring import SettingError, structure
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.invariants import OFF, STRICT, WARN
from kvarena.terms.telling import CONSOLE, FORMATS, LEVELS
from kvarena.terms.units import PAGE_TOKENS_MAX, TOKENS_MAX, Bytes, parse_bytes

__all__ = [
    "ArenaConfig",
    "ChecksConfig",
    "Choice",
    "LogsConfig",
    "PluginsConfig",
    "PoliciesConfig",
    "PrefixConfig",
    "SettingError",
    "StorageConfig",
    "at_least",
    "choice_of",
    "known_version",
    "one_of",
    "read_toml",
    "structure",
]

CONFIG_VERSION = 1
NO_BUFFER, EXTRA_BUFFER, EXTRA_BUFFER_LAZY = STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
ARENA_BYTES_MAX = 16 * 1024**4
CHECKPOINT_TOKENS_MAX = 1 << 20


@attrs.frozen
class AtLeast:
    """An attrs validator: a whole number from ``least`` to ``most``, or None where the default is None."""

    least: int
    most: int | None = None

    def __call__(self, instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is None and attribute.default is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            raise SettingError(attribute.name, f"must be a whole number >= {self.least}, not {value!r}")
        if self.most is not None and value > self.most:
            raise SettingError(attribute.name, f"{value:,} is absurd; at most {self.most:,}")


def at_least(least: int, most: int | None = None) -> Any:
    """An attrs validator: a whole number from ``least`` to ``most``, or None where the default is None."""
    return AtLeast(least, most)


@attrs.frozen
class OneOf:
    """An attrs validator: a text among ``choices``, or None where the default is None."""

    choices: tuple[str, ...]

    def __call__(self, instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is None and attribute.default is None:
            return
        if value not in self.choices:
            cure = nearest(str(value), self.choices)
            raise SettingError(attribute.name, f"unknown value {value!r}; {cure}")


def one_of(*choices: str) -> Any:
    """An attrs validator: a text among these, or None where the default is None."""
    return OneOf(choices)


def known_version(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """An attrs validator for ``version``: files of another version are refused, not half read."""
    if value != CONFIG_VERSION or isinstance(value, bool):
        raise SettingError(attribute.name, f"{value!r} is not known here; this kvarena reads version {CONFIG_VERSION}")


def choice_of(value: "str | Mapping[str, Any] | Choice") -> "Choice":
    """``Choice.of`` as a plain function, for attrs converters: mypy reads no others."""
    return Choice.of(value)


@attrs.frozen
class Choice:
    """A plugin by its name, with its settings: ``"lazy"`` or ``{name = "lazy", moves_max = 64}``."""

    name: str
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, value: "str | Mapping[str, Any] | Choice") -> "Choice":
        """Read a name, or a table with a ``name``.

        Raises:
            ValueError: it is neither.
        """
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ValueError(f'must be a name or a table with a name, such as {{name = "..."}}, not {value!r}')
        return cls(value["name"], {key: setting for key, setting in value.items() if key != "name"})

    def __str__(self) -> str:
        return self.name


@attrs.frozen(kw_only=True)
class ArenaConfig:
    """``[arena]``: how large the arena is, how it is cut into units, and how many requests it should hold.

    ``memory`` is the whole budget in bytes (``"2GiB"``), id maps and request rows included. ``page_tokens``
    None takes 16, raised to what every rate divides; ``unit_align`` pads units to so many bytes.
    ``owner = "required"`` refuses a model without full attention. ``context_tokens`` is the longest request
    (None: the model's own limit), ``max_running`` caps the concurrency that sizing finds. State slots are
    counted (``state_slots``) or get a share of the chain (``state_share``, 0 to 1); both None leaves it to
    sizing. ``slots_per_request`` follows the checkpoint strategy; ``scratch_slots_per_request`` are taken
    on top for drafts. ``mirrors`` keeps and charges a device copy of the id maps and request rows.
    ``forwards_in_flight`` may be launched before the oldest one's result is processed; with 0 none overlaps.
    ``caps`` names the most units of a sub-pool that may be live at once, such as ``{state = 64}``; the others share
    the arena as far as it goes.
    """

    memory: Bytes = attrs.field(converter=parse_bytes)
    page_tokens: int | None = attrs.field(default=None, validator=at_least(1, PAGE_TOKENS_MAX))
    unit_align: int = attrs.field(default=1, validator=at_least(1, 1 << 30))
    owner: str = attrs.field(default="any", validator=one_of("any", "required"))
    context_tokens: int | None = attrs.field(default=None, validator=at_least(1, TOKENS_MAX))
    max_running: int | None = attrs.field(default=None, validator=at_least(1, 1 << 31))
    state_slots: int | None = attrs.field(default=None, validator=at_least(1, 1 << 31))
    state_share: float | None = attrs.field(
        default=None, metadata={"schema": {"exclusiveMinimum": 0, "exclusiveMaximum": 1}}
    )
    slots_per_request: int = attrs.field(default=1, validator=at_least(1, 1 << 20))
    scratch_slots_per_request: int = attrs.field(default=0, validator=at_least(0, 1 << 20))
    mirrors: bool = True
    forwards_in_flight: int = attrs.field(default=0, validator=at_least(0, 64))
    caps: Mapping[str, int] = attrs.field(
        factory=dict, metadata={"schema": {"additionalProperties": {"type": "integer", "minimum": 1}}}
    )

    @caps.validator
    def _caps_are_counts(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        for name, units in value.items():
            if not isinstance(units, int) or isinstance(units, bool) or units < 1:
                raise SettingError(f"caps.{name}", f"must be a whole number of units >= 1, not {units!r}")

    @memory.validator
    def _memory_is_sane(self, attribute: "attrs.Attribute[int]", value: int) -> None:
        if not 1 <= value <= ARENA_BYTES_MAX:
            raise SettingError("memory", f"{value:,} bytes is absurd for an arena; from 1 B to 16 TiB")

    @state_share.validator
    def _share_is_sane(self, attribute: "attrs.Attribute[float | None]", value: float | None) -> None:
        if value is not None and not 0 < value < 1:
            raise SettingError("state_share", f"must lie between 0 and 1, both excluded, not {value!r}")
        if value is not None and self.state_slots is not None:
            raise SettingError("state_share", "state_slots is set too; a budget follows one of them")


@attrs.frozen(kw_only=True)
class PoliciesConfig:
    """``[policies]``: which hole is handed out first, when holes are closed, where an empty float is put."""

    holes: Choice = attrs.field(default=Choice("nearest"), converter=choice_of)
    compaction: Choice = attrs.field(default=Choice("lazy"), converter=choice_of)
    placement: Choice = attrs.field(default=Choice("middle"), converter=choice_of)


@attrs.frozen(kw_only=True)
class PrefixConfig:
    """``[prefix]``: whether requests share prefixes, and what is kept of their states.

    ``strategy``: ``no_buffer`` keeps the state of a request's end alone; ``extra_buffer`` keeps copies on a grid, for
    which each request has a second slot; with ``extra_buffer_lazy`` it takes one only when it is there. The grid is
    every ``checkpoint_tokens``, a multiple of the page size; None takes the layers' own ``checkpoint_interval``, or
    64, raised to a multiple; where layers differ, the least common one of theirs and the page's. ``eviction`` is the
    policy that says which entry goes first; ``cache_outputs`` keeps what was generated too.
    """

    share: bool = False
    strategy: str = attrs.field(default=EXTRA_BUFFER, validator=one_of(*STRATEGIES))
    checkpoint_tokens: int | None = attrs.field(default=None, validator=at_least(1, CHECKPOINT_TOKENS_MAX))
    eviction: Choice = attrs.field(default=Choice("lru"), converter=choice_of)
    cache_outputs: bool = True


@attrs.frozen(kw_only=True)
class ChecksConfig:
    """``[checks]``: how much a storage checks as it runs.

    ``level`` 0: only what costs nothing; 1: what comes from outside, and what is wrong elsewhere is told; 2:
    lengths in every step too, and all that is wrong stops the program.
    """

    level: int = attrs.field(default=WARN, metadata={"schema": {"minimum": OFF, "maximum": STRICT}})

    @level.validator
    def _level_is_known(self, attribute: "attrs.Attribute[int]", value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not OFF <= value <= STRICT:
            raise SettingError("level", f"there is no level {value!r}; choose 0 (off), 1 (tell) or 2 (strict)")


@attrs.frozen(kw_only=True)
class LogsConfig:
    """``[logs]``: what a command tells on stderr of what happens: events of this level and above, one a line.

    ``format`` is ``console``, words for people, or ``json``, one object a line. Of use to commands alone: a program
    that builds a storage says itself what it wants to hear, with ``tell_events`` or logging's own means.
    """

    level: str = attrs.field(default="warning", validator=one_of(*LEVELS))
    format: str = attrs.field(default=CONSOLE, validator=one_of(*FORMATS))


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """``[plugins]``: which plugins are left out, and which are let in.

    Each word is a plugin's name (``mha``), ``kind:name`` (``layouts:mha``) or a distribution. Plugins of the
    kind ``plugins`` (hooks) run only when enabled here; the others are there unless disabled, or unless
    ``KVARENA_DISABLE_PLUGIN_AUTOLOAD=1`` limits them to kvarena's own and those enabled.
    """

    enable: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    disable: tuple[str, ...] = attrs.field(default=(), converter=tuple)


@attrs.frozen(kw_only=True)
class StorageConfig:
    """One storage: its arena, its backend, policies and checks, and the layers if no model's config.json gives them.

    ``layers`` are tables as ``declared_layers`` reads them.
    """

    arena: ArenaConfig
    version: int = attrs.field(
        default=CONFIG_VERSION, validator=known_version, metadata={"schema": {"const": CONFIG_VERSION}}
    )
    backend: Choice = attrs.field(default=Choice("cpu"), converter=choice_of)
    policies: PoliciesConfig = attrs.field(factory=PoliciesConfig)
    prefix: PrefixConfig = attrs.field(factory=PrefixConfig)
    checks: ChecksConfig = attrs.field(factory=ChecksConfig)
    logs: LogsConfig = attrs.field(factory=LogsConfig)
    plugins: PluginsConfig = attrs.field(factory=PluginsConfig)
    layers: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=tuple)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it is no TOML (with the line).
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no text in UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:  # tomllib's own, a number of 5,000 digits, nests without end
        raise ConfigError(f"{path}: is no TOML: {error}") from None
