"""What a plugin's maker, an attrs class or anything else that can be called, takes as settings."""

import inspect
from typing import Any, NamedTuple

import attrs

from kvarena.terms.errors import PluginError
from kvarena.terms.owners import described

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@attrs.frozen
class Setting:
    """One keyword of a maker: ``default`` is ``attrs.NOTHING`` where it must be given, ``field`` an attrs class's own.

    A default that is made anew for each object is made here once; one that needs the object is an ``attrs.Factory``.
    """

    name: str
    default: Any
    field: "attrs.Attribute[Any] | None" = None

    @property
    def needed(self) -> bool:
        """Whether it must be given."""
        return self.default is attrs.NOTHING

    @property
    def tells(self) -> bool:
        """Whether its default is known before an object is made."""
        return not self.needed and not hasattr(self.default, "takes_self")


class Settings(NamedTuple):
    """The settings by name, in the order of the maker; ``takes_any`` where it takes other keywords too."""

    known: dict[str, Setting]
    takes_any: bool = False

    def takes(self, name: str) -> bool:
        """Whether a setting of this name may be given."""
        return self.takes_any or name in self.known


def settings_of(maker: Any) -> Settings:
    """The settings that a maker takes.

    Raises:
        PluginError: it cannot be called, or does not say how.
    """
    if attrs.has(maker):
        fields = [field for field in attrs.fields(maker) if field.init]
        return Settings({field.name: Setting(field.name, _made(field.default), field) for field in fields})
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError) as error:
        raise PluginError(f"{described('plugin', maker)}: it does not tell which settings it takes: {error}") from error
    known = {
        each.name: Setting(each.name, attrs.NOTHING if each.default is inspect.Parameter.empty else each.default)
        for each in parameters
        if each.kind not in _VARIADIC
    }
    return Settings(known, any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters))


def _made(default: Any) -> Any:
    """A default, made where it is made anew for each; one that needs the object stays its factory."""
    is_made = isinstance(default, attrs.Factory) and not default.takes_self  # type: ignore[arg-type]
    return default.factory() if is_made else default
