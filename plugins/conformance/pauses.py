"""Work that takes its time, so that what is queued behind it is still queued when the calls are over."""

import threading

PAUSE_S = 0.01
_NEVER = threading.Event()


def pause() -> None:
    """Nothing, for a moment: on a device that does work where it is called, the caller waits for it."""
    _NEVER.wait(PAUSE_S)
