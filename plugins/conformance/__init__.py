"""The conformance kit: inherit the class of your plugin's kind, give a fixture, and its promises are tested.

Needs pytest and hypothesis: ``pip install 'kvarena[kit]'``. docs/kit.md has the promises.
"""

from kvarena.terms.errors import MissingExtraError

try:
    from kvarena.plugins.conformance.base import Conformance, Promise, promises
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("pytest", "hypothesis"):
        raise
    raise MissingExtraError(f"{error.name} (for kvarena.plugins.conformance)", "kit") from error

from kvarena.plugins.conformance.backends import BackendConformance
from kvarena.plugins.conformance.evictions import EvictionConformance
from kvarena.plugins.conformance.hole_orders import HoleOrderConformance
from kvarena.plugins.conformance.layouts import LayoutConformance
from kvarena.plugins.conformance.lifetimes import LifetimeConformance
from kvarena.plugins.conformance.moves import CompactionConformance, PlacementConformance
from kvarena.plugins.conformance.readers import ReaderConformance

__all__ = [
    "BackendConformance",
    "CompactionConformance",
    "Conformance",
    "EvictionConformance",
    "HoleOrderConformance",
    "LayoutConformance",
    "LifetimeConformance",
    "PlacementConformance",
    "Promise",
    "ReaderConformance",
    "promises",
]
