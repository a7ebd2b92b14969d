"""Where events are shown, and how: the logger ``kvarena`` of the standard library, silent until somebody asks.

It imports no structlog, which telling an event needs and setting this up does not.
"""

import json
import logging
import math
from collections.abc import Mapping
from typing import IO, Any

LEVELS = ("debug", "info", "warning")
CONSOLE, JSON = FORMATS = ("console", "json")

LOGGER = logging.getLogger("kvarena")
LOGGER.addHandler(logging.NullHandler())

_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}

CARRIES = "kvarena_event"
"""The attribute of a log record that carries an event's fields."""


def tell_events(level: str, form: str = CONSOLE, stream: IO[str] | None = None) -> None:
    """Tell events of this level and above, one a line: words for people (``console``) or one JSON object (``json``).

    ``stream`` is stderr as it is now, if none is given. Replaces what an earlier call set; other loggers are not
    touched, and handlers that the program gave the logger ``kvarena`` or the root stay.

    Raises:
        ValueError: there is no such level or form.
    """
    if level not in LEVELS or form not in FORMATS:
        choices = f"a level is one of {', '.join(LEVELS)}, a form one of {', '.join(FORMATS)}"
        raise ValueError(f"events cannot be told at {level!r} as {form!r}: {choices}")
    for handler in [handler for handler in LOGGER.handlers if isinstance(handler, _Teller)]:
        LOGGER.removeHandler(handler)
    teller = _Teller(stream)
    teller.setFormatter(_JsonLines() if form == JSON else logging.Formatter("%(levelname)s %(message)s"))
    LOGGER.addHandler(teller)
    LOGGER.setLevel(level.upper())


class _Teller(logging.StreamHandler[Any]):
    """The handler that ``tell_events`` gives the logger."""


class _JsonLines(logging.Formatter):
    """One JSON object a line: ``event``, ``level``, ``time`` in seconds since 1970, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, CARRIES, None) or {"event": record.getMessage()}
        when = round(record.created, 6)
        line = {"event": fields["event"], "level": record.levelname.lower(), "time": when, **fields}
        return json.dumps(_plain(line), allow_nan=False)


def _plain(value: Any) -> Any:
    """A value in what JSON has words for: numpy's numbers and arrays as Python's; as text all else, and no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(_plain(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    tolist = getattr(value, "tolist", None)  # numpy itself is not imported for this
    return _plain(tolist()) if callable(tolist) else str(value)
