"""The hooks that a plugin of the kind ``plugins`` may implement. Called when a storage is built, opens and closes.

Nothing here is called per step, page or request: what a step needs is an object, got once by name.
"""

from typing import Any

from kvarena.terms.marks import hookspec


@hookspec
def kvarena_clearance() -> Any:
    """A plugin that records uses of pages of its own, or uses pages in a way of its own, adds rows or columns.

    Returns an ``Extension`` of ``kvarena.ledger.clearance``, or None. Called once, before the storage is built, which
    is refused where a pair of an actor and a hazard is left without an answer.
    """


@hookspec
def kvarena_storage_opened(storage: Any) -> None:
    """A storage was built, and nothing was taken from it yet.

    ``storage`` is the whole interface that a scheduler holds; keep it to read its statistics.
    """


@hookspec
def kvarena_storage_closed(storage: Any) -> None:
    """A storage is about to give its memory back. Its statistics can still be read; its views cannot."""
