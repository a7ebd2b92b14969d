"""The hooks that a plugin of the kind ``plugins`` may implement. Called when a storage opens and closes.

Nothing here is called per step, page or request: what a step needs is an object, got once by name.
"""

from typing import Any

from kvarena.terms.marks import hookspec


@hookspec
def kvarena_storage_opened(storage: Any) -> None:
    """A storage was built, and nothing was taken from it yet.

    ``storage`` is the whole interface that a scheduler holds; keep it to read its statistics.
    """


@hookspec
def kvarena_storage_closed(storage: Any) -> None:
    """A storage gives its memory back. Its statistics can still be read; its views cannot."""
