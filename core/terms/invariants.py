"""Named promises. A log line, a test and a design note say the same word for the same check."""

from typing import Any

from kvarena.terms.errors import InvariantError


def invariant(name: str, holds: Any, /, **found: Any) -> None:
    """Stop the program when a promise is broken.

    Raises:
        InvariantError: ``holds`` is false; the message has the name and what was found.
    """
    if not holds:
        details = " ".join(f"{key}={value!r}" for key, value in found.items())
        raise InvariantError(f"{name}: {details}" if details else name)
