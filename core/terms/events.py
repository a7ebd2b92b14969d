"""What happens, told as events with their sums: structlog over the standard library's logging.

Nothing is shown until the program says so, with ``telling.tell_events`` or by configuring logging itself: events go to
the logger ``kvarena``. docs/events.md lists them all.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

from kvarena.terms.telling import CARRIES, LOGGER

_words = structlog.processors.KeyValueRenderer(key_order=["event"])


def event_log() -> structlog.stdlib.BoundLogger:
    """The log that every room tells its events to: ``log.info("request.retracted", request=7)``."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        LOGGER,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, _as_record],
    )
    return bound


def tells_debug() -> bool:
    """Whether debug events are told to anybody: ask before something is counted for one."""
    return LOGGER.isEnabledFor(logging.DEBUG)


def _as_record(logger: Any, method: str, fields: MutableMapping[str, Any]) -> Any:
    """The event as words, and its fields beside them for a handler that wants them whole."""
    return (_words(logger, method, dict(fields)),), {"extra": {CARRIES: dict(fields)}}
