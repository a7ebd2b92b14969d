"""Named promises. A log line, a test and a design note say the same word for the same check.

Checks have levels. At ``OFF`` only what costs nothing is looked at. At ``WARN`` what comes from outside is checked
whole before anything changes, and what is wrong but harms nobody yet is told. At ``STRICT`` that stops the program
too. A broken ``invariant`` stops it at every level that looks. docs/checks.md has the list.
"""

from typing import Any, NoReturn

from kvarena.terms.errors import InvariantError

OFF, WARN, STRICT = 0, 1, 2


def invariant(name: str, holds: Any, /, **found: Any) -> None:
    """Stop the program when a promise is broken.

    Raises:
        InvariantError: ``holds`` is false; the message has the name and what was found.
    """
    if not holds:
        raise InvariantError(broken(name, **found))


def fail(name: str, /, **found: Any) -> NoReturn:
    """Stop the program: a promise that was looked at is broken.

    Raises:
        InvariantError: always.
    """
    raise InvariantError(broken(name, **found))


def broken(name: str, /, **found: Any) -> str:
    """The words for a broken promise: its name and what was found."""
    details = " ".join(f"{key}={value!r}" for key, value in found.items())
    return f"{name}: {details}" if details else name
