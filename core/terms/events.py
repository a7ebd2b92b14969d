"""What happens, told as events with their sums: structlog over the standard library's logging.

Nothing is shown until the program says so: events go to the logger ``kvarena``, which is silent below
warnings until logging is configured. ``kvarena --log info`` does that for the commands.
"""

import logging

import structlog

_LOGGER = logging.getLogger("kvarena")


def event_log() -> structlog.stdlib.BoundLogger:
    """The log that every room tells its events to: ``log.info("request_retracted", request=7)``."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        _LOGGER,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )
    return bound


def tells_debug() -> bool:
    """Whether debug events are told to anybody: ask before something is counted for one."""
    return _LOGGER.isEnabledFor(logging.DEBUG)
