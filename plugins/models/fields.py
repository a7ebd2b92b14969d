"""Typed reading of a config.json: every value checked, every error with its place, finding and cure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvarena.terms.errors import ConfigError
from kvarena.terms.fields import dtype_name


class Fields:
    """One config's values by name. A value that is null counts as absent.

    ``cache_dtype`` is what the caller wants keys and values stored in; None leaves it to the config.
    """

    def __init__(self, data: Mapping[str, Any], source: str, cache_dtype: str | None = None) -> None:
        self.data = data
        self.source = source
        self.asked_dtype = cache_dtype

    @property
    def cache_dtype(self) -> str:
        """The dtype of keys and values: what was asked for, else the model's."""
        return self.asked_dtype or self.dtype("dtype", "torch_dtype", default="bfloat16")

    @property
    def model_type(self) -> str:
        """The family's name, such as ``llama``; empty where the config has none."""
        value = self.data.get("model_type")
        if value is not None and not isinstance(value, str):
            raise self.error("model_type", f"a text is needed here, not {_shown(value)}")
        return value or ""

    def error(self, name: str, finding: str) -> ConfigError:
        """An error about one value, for the reader to raise: ``config.json: head_dim: finding``."""
        return ConfigError(f"{self.source}: {name}: {finding}")

    def get(self, *names: str) -> Any:
        """The first of these values that is there, or None."""
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first of these names that is there.

        Raises:
            ConfigError: none is there and there is no default, or the value is no whole number >= ``least``.
        """
        found = next((name for name in names if self.data.get(name) is not None), None)
        if found is None:
            if default is None:
                raise self._missing(names)
            return default
        return self._checked(found, self.data[found], least)

    def wholes(self, name: str) -> list[int] | None:
        """A list of whole numbers >= 0, or None where there is none."""
        items = self.items(name)
        return None if items is None else [self._checked(f"{name}[{at}]", item, 0) for at, item in enumerate(items)]

    def items(self, *names: str) -> list[Any] | None:
        """A list under the first of these names that is there, or None."""
        found = next((name for name in names if self.data.get(name) is not None), None)
        if found is None:
            return None
        if not isinstance(self.data[found], Sequence) or isinstance(self.data[found], str):
            raise self.error(found, f"a list is needed here, not {_shown(self.data[found])}")
        return list(self.data[found])

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"true or false is needed here, not {_shown(value)}")
        return default if value is None else value

    def dtype(self, *names: str, default: str) -> str:
        """The full name of a dtype under the first of these names that is there."""
        value = self.get(*names)
        try:
            return dtype_name(default if value in (None, "auto") else value)
        except ValueError as error:
            raise self.error(" or ".join(names), str(error)) from error

    def group(self, name: str) -> "Fields | None":
        """The values nested under a name, or None where there are none."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"an object is needed here, not {_shown(value)}")
        return self._derived(value, name)

    def at_layer(self, index: int) -> "Fields":
        """The values as one layer sees them: ``per_layer_config`` may override some (Gemma 4, Step 3.5)."""
        overrides = self.data.get("per_layer_config")
        if not isinstance(overrides, Mapping):
            return self
        own = next((value for key, value in overrides.items() if str(key).isdigit() and int(key) == index), None)
        return self._derived({**self.data, **own}, f"layer {index}") if own else self

    def having(self, values: Mapping[str, Any]) -> "Fields":
        """The same config with some values in place of its own."""
        return Fields({**self.data, **values}, self.source, self.asked_dtype)

    def _derived(self, data: Mapping[str, Any], place: str) -> "Fields":
        return Fields(data, f"{self.source}: {place}", self.asked_dtype)

    def _missing(self, names: tuple[str, ...]) -> ConfigError:
        alias = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        whose = f"model type {self.model_type!r}" if self.model_type else "a config without model_type"
        return self.error(names[0], f"missing{alias}, and {whose} cannot be planned without it; add the field")

    def _checked(self, name: str, value: Any, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"a whole number >= {least} is needed here, not {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
