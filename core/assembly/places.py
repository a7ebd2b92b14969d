"""Where settings stand, so that a message names the place that a person can mend: a key of a file, or an option."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import attrs

from kvarena.assembly.lines import positions, steps_of
from kvarena.terms.errors import ConfigError, KvarenaError, MissingExtraError, PlanError, PluginError


@attrs.frozen
class Places:
    """Of one config: the file that it was read from, and the options of a command line that stand for its keys.

    ``options`` are by key path: ``{"prefix.eviction": "--eviction"}``. Both may be empty, as in a program. ``path`` is
    where the file lies; with it, a place has its line.
    """

    file: str = ""
    options: Mapping[str, str] = attrs.field(factory=dict)
    path: Path | None = attrs.field(default=None, repr=False, eq=False)

    @classmethod
    def of(cls, source: "str | Places") -> "Places":
        """A file by its name, or places as they are."""
        return source if isinstance(source, Places) else cls(source)

    @classmethod
    def in_file(cls, path: str | Path, options: Mapping[str, str] | None = None, *, name: str = "") -> "Places":
        """Those of a file that is there, with lines; called by ``name`` in messages, or as its path is written."""
        return cls(name or str(path), options or {}, Path(path))

    def word(self, key: str) -> str:
        """What a person writes to change the setting of this key path."""
        return self.options.get(key, key)

    def place(self, key: str) -> str:
        """Where the setting stands: ``quickstart.toml:12: prefix.eviction``, or ``--eviction``."""
        for option, words in self.options.items():
            if key == option or key.startswith(f"{option}."):
                return ": ".join(part for part in (words, key.removeprefix(option).removeprefix(".")) if part)
            if self.path and option.startswith((f"{key}.", f"{key}[")) and self.line(key) is None:
                return f"{words}: {key}"  # the file has no such table: the option has made it
        return ": ".join(part for part in (self.file_and_line(key), key) if part)

    def file_and_line(self, key: str) -> str:
        """The file with the line of a setting, or of the table that lacks it: ``quickstart.toml:12``."""
        steps = steps_of(key)
        known = (self._lines.get(steps[:count]) for count in range(len(steps), 0, -1)) if self.path else iter(())
        line = next((line for line in known if line is not None), None)
        return self.file if line is None else f"{self.file}:{line}"

    def line(self, key: str) -> int | None:
        """The line on which this very setting stands; None where it stands nowhere."""
        return self._lines.get(steps_of(key))

    @cached_property
    def _lines(self) -> Mapping[tuple[str | int, ...], int]:
        try:
            return positions(self.path.read_text(encoding="utf-8")) if self.path is not None else {}
        except (OSError, UnicodeDecodeError):
            return {}

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
