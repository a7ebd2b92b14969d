"""Accelerators of the cost model: presets by name, or tables of a TOML file of the user's."""

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from kvarena.terms.errors import ConfigError, nearest

_PRESETS = "gpus.toml"


@attrs.frozen
class Gpu:
    """One accelerator: FLOP/s (dense bf16), bytes/s, the shares of both that kernels reach, and a constant."""

    name: str
    peak_flops: float
    bandwidth: float
    compute_efficiency: float
    bandwidth_efficiency: float
    overhead_us: float


_KEYS = tuple(field.name for field in attrs.fields(Gpu) if field.name != "name")
_SHARES = ("compute_efficiency", "bandwidth_efficiency")


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
        return _gpu(_PRESETS, text, presets[text])
    file, name = f"{path}.toml", name.removeprefix(":")
    tables = _tables(file, _read(file))
    if not name and len(tables) != 1:
        raise ConfigError(
            f"{file}: {len(tables)} accelerators; say which as {file}:NAME, of: {', '.join(sorted(tables))}"
        )
    name = name or next(iter(tables))
    if name not in tables:
        raise ConfigError(f"{file}: no table [{name}]; {nearest(name, tables)}")
    table = dict(tables[name])
    base = table.pop("base", None)
    if base is not None and base not in presets:
        raise ConfigError(f"{file}: {name}.base: no preset {base!r}; {nearest(str(base), presets)}")
    return _gpu(file, name, {**presets.get(str(base), {}), **table})


def _presets() -> dict[str, Mapping[str, Any]]:
    text = resources.files(__package__).joinpath(_PRESETS).read_text(encoding="utf-8")
    return _tables(_PRESETS, tomllib.loads(text))


def _read(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot read it ({error.strerror}); name a TOML file of accelerators") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML ({error})") from None


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
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{file}: {name}.{key}: unknown key; {nearest(key, _KEYS)}")
    for key in _KEYS:
        place = f"{file}: {name}.{key}"
        if key not in table:
            raise ConfigError(f'{place}: missing; give it, or a base = "h100" to take it from')
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"{place} is {value!r}, not a number")
        if value < 0 or (value == 0 and key != "overhead_us") or (key in _SHARES and value > 1):
            raise ConfigError(f"{place} is {value}; it must be {'in (0, 1]' if key in _SHARES else 'positive'}")
    return Gpu(name=name, **{key: float(table[key]) for key in _KEYS})
