"""A file that is there whole or not at all: it is written beside its place and moved there when it is done."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from kvarena.terms.errors import ConfigError


class WholeFile:
    """A file that a long command writes at its end; whether it can is known when this is made.

    Until ``write`` has written all of it, what was there before stays. Nothing is left beside it.
    """

    def __init__(self, path: Path, option: str) -> None:
        """``option`` is the flag that named the file, for errors.

        Raises:
            ConfigError: the file cannot be written where it is asked for.
        """
        self.path = path
        self._option = option
        self._place = Path(os.path.realpath(path))
        self._part = self._place.with_name(f".{self._place.name}.{os.getpid()}.part")
        if self._place.exists() and not (self._place.is_file() and os.access(self._place, os.W_OK)):
            raise ConfigError(f"{option} {path}: is there and cannot be overwritten")
        self._put(lambda stream: None, self._part.unlink)

    def write(self, fill: Callable[[TextIO], None]) -> None:
        """The file is what ``fill`` writes.

        Raises:
            ConfigError: the disk is full, say; what was there before is there.
        """
        self._put(fill, lambda: self._part.replace(self._place))

    def _put(self, fill: Callable[[TextIO], None], then: Callable[[], object]) -> None:
        """Write the part, then do the rest; where either fails, no part is left."""
        try:
            stream = self._part.open("x", encoding="utf-8", newline="")
            try:
                with stream:
                    fill(stream)
                then()
            finally:
                self._part.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._option} {self.path}: cannot be written: {error.strerror}") from None
