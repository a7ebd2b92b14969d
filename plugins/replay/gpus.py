"""Accelerators of the cost model: presets by name, or tables of a TOML file of the user's."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.config import SettingError, read_toml, structure
from kvarena.terms.errors import ConfigError, nearest

_PRESETS = Path(__file__).with_name("gpus.toml")
_MISSING = math.nan
"""What no file can say, as ``structure`` takes it for no number: the value of a key that is not there."""


def _rate(instance: "Gpu", attribute: "attrs.Attribute[float]", value: float) -> None:
    if math.isnan(value):
        raise SettingError(attribute.name, 'is missing; give it, or a base = "h100" to take it from')
    if not (0 < value < math.inf or (value == 0 and attribute.name == "overhead_us")):
        raise SettingError(attribute.name, f"must be positive and finite, not {value}")


def _share(instance: "Gpu", attribute: "attrs.Attribute[float]", value: float) -> None:
    _rate(instance, attribute, value)
    if value > 1:
        raise SettingError(attribute.name, f"must be in (0, 1], not {value}")


@attrs.frozen
class Gpu:
    """One accelerator: FLOP/s (dense bf16), bytes/s, the shares of both that kernels reach, and a constant.

    Every number must be given; ``name`` is the table's unless it says another.
    """

    name: str
    peak_flops: float = attrs.field(default=_MISSING, validator=_rate)
    bandwidth: float = attrs.field(default=_MISSING, validator=_rate)
    compute_efficiency: float = attrs.field(default=_MISSING, validator=_share)
    bandwidth_efficiency: float = attrs.field(default=_MISSING, validator=_share)
    overhead_us: float = attrs.field(default=_MISSING, validator=_rate)


def preset_names() -> tuple[str, ...]:
    """The accelerators that come with kvarena."""
    return tuple(_presets())


def load_gpu(text: str) -> Gpu:
    """An accelerator by preset name, by TOML path where the file has one table, or by ``PATH.toml:NAME``.

    A table of the user's may say ``base = "h100"`` and change only some values.

    Raises:
        ConfigError: no such name or file, an unknown or missing key, a value out of range.
    """
    presets = _presets()
    path, ending, name = text.rpartition(".toml")
    if not ending:
        if text not in presets:
            raise ConfigError(f"gpu {text!r} is no preset and no .toml path; {nearest(text, presets)}")
        return _gpu(_PRESETS.name, text, presets[text])
    file, name = f"{path}.toml", name.removeprefix(":")
    tables = _tables(file, read_toml(file))
    if not name and len(tables) != 1:
        raise ConfigError(
            f"{file}: {len(tables)} accelerators; say which as {file}:NAME, of: {', '.join(sorted(tables))}"
        )
    name = name or next(iter(tables))
    if name not in tables:
        raise ConfigError(f"{file}: no table [{name}]; {nearest(name, tables)}")
    table = dict(tables[name])
    base = table.pop("base", None)
    if base is not None and str(base) not in presets:
        raise ConfigError(f"{file}: {name}.base: no preset {base!r}; {nearest(str(base), presets)}")
    return _gpu(file, name, {**presets.get(str(base), {}), **table})


def _presets() -> dict[str, Mapping[str, Any]]:
    return _tables(_PRESETS.name, read_toml(_PRESETS))


def _tables(file: str, record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    version = record.get("version", 1)
    if version != 1:
        raise ConfigError(f"{file}: version {version!r}; this kvarena reads version 1")
    tables: dict[str, Mapping[str, Any]] = {name: value for name, value in record.items() if isinstance(value, dict)}
    stray = [name for name in record if name not in tables and name != "version"]
    if stray:
        raise ConfigError(f"{file}: {stray[0]}: unknown key; values stand in a table such as [my-gpu]")
    return tables


def _gpu(file: str, name: str, table: Mapping[str, Any]) -> Gpu:
    return structure(Gpu, {"name": name, **table}, file, at=name)
