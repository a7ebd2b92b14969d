"""Values that no entry point offers, under names of their own, so that a world's config can name them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvarena.assembly.catalog import Catalog, Entry
from kvarena.assembly.config import PluginsConfig
from kvarena.assembly.places import Places
from kvarena.plugins.stress.swarm.world import installed

Makers = Mapping[tuple[str, str], Callable[..., Any]]
"""By kind and name, as ``("layouts", "mine")``: what is called, with the settings beside the name, for the value."""


class LentCatalog(Catalog):
    """What is installed, and what is lent beside it: of two of one name, what is lent is meant."""

    def __init__(self, makers: Makers, entries: Iterable[Entry] | None = None) -> None:
        """``entries``: what else is there; None for what is installed here."""
        super().__init__(installed().entries() if entries is None else entries)
        self._makers = dict(makers)

    def under(self, plugins: PluginsConfig, *, source: str | Places = "") -> Catalog:
        """The same offers under the ``[plugins]`` of a file; what is lent is there whatever it says.

        Raises:
            ConfigError: ``[plugins]`` names what is not there.
        """
        return LentCatalog(self._makers, super().under(plugins, source=source).entries())

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of one kind, sorted."""
        lent = {name for its_kind, name in self._makers if its_kind == kind}
        return tuple(sorted({*super().names(kind), *lent}))

    def offers(self, kind: str, name: str) -> bool:
        """Whether anybody has this name."""
        return (kind, name) in self._makers or super().offers(kind, name)

    def load(self, kind: str, name: str) -> Any:
        """What is lent under this name, or else installed.

        Raises:
            PluginError: no plugin has the name, two have, or it is broken.
            MissingExtraError: it needs a package of an optional extra.
        """
        return self._makers[kind, name] if (kind, name) in self._makers else super().load(kind, name)


def always(value: Any) -> Callable[[], Any]:
    """What makes this very value, whenever it is asked."""
    return lambda: value
