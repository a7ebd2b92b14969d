"""Where settings stand, so that a message names the place that a person can mend: a key of a file, or an option."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs

from kvarena.terms.errors import ConfigError, KvarenaError, MissingExtraError, PlanError, PluginError


@attrs.frozen
class Places:
    """Of one config: the file that it was read from, and the options of a command line that stand for its keys.

    ``options`` are by key path: ``{"prefix.eviction": "--eviction"}``. Both may be empty, as in a program.
    """

    file: str = ""
    options: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, source: "str | Places") -> "Places":
        """A file by its name, or places as they are."""
        return source if isinstance(source, Places) else cls(source)

    def word(self, key: str) -> str:
        """What a person writes to change the setting of this key path."""
        return self.options.get(key, key)

    def place(self, key: str) -> str:
        """Where the setting stands: ``quickstart.toml: prefix.eviction``, or ``--eviction``."""
        return self.options.get(key) or ": ".join(part for part in (self.file, key) if part)

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """What is wrong with a file or folder that a setting names is told with the place of the setting."""
        try:
            yield
        except (MissingExtraError, PluginError):
            raise
        except KvarenaError as error:
            raise ConfigError(f"{self.place(key)}: {error}") from error

    @contextmanager
    def planning(self) -> Iterator[None]:
        """What no plan can hold is told with its place: the arena's setting that it is about, or the file."""
        try:
            yield
        except PlanError as error:
            known = self.file or self.options
            place = self.place(f"arena.{error.setting}") if known and error.setting else self.file
            if not place:
                raise
            words = str(error).removeprefix(f"{error.setting}: ")
            raise PlanError(f"{place}: {words}", setting=error.setting) from error
