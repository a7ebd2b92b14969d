"""A sub-pool without bytes: ids are taken and freed, and each is its own page.

The owner of ids of a model in which no layer outlives the others; a stage that keeps no layer of a kind.
"""

from kvarena.bands.grid import Grid
from kvarena.bands.unit_ids import UnitIds
from kvarena.ledger.clearance import Actor
from kvarena.planning.snapshot import BandShot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class IdBand:
    """Counts ids and keeps double takes and double frees out; takes no room in the arena."""

    def __init__(self, grid: Grid, ids: UnitIds) -> None:
        invariant("id_band.has_bytes", not grid.unit_bytes, sub_pool=grid.name)
        self.grid = grid
        self.ids = ids

    @property
    def live(self) -> int:
        """How many ids are taken."""
        return self.ids.bound

    def shot(self, *, released: bool = False) -> BandShot:
        """What pricing needs to know: the count, whatever transfers do."""
        return BandShot(self.grid.name, 0, None, self.live, 0, 0, 0, self.grid.id_count - self.live)

    def take(self, ids: IntArray) -> IntArray:
        """Take ids that are nobody's: minted just now, or checked by ``check_unbound``."""
        self.ids.bind(ids, ids)
        return ids

    def reuse(self, ids: IntArray, actors: tuple[Actor, ...] = ()) -> IntArray:
        """The same: ids need no room."""
        return self.take(ids)

    def free(self, ids: IntArray) -> None:
        """Give ids back."""
        self.ids.unbind(ids)

    def free_among(self, ids: IntArray) -> None:
        """Give back those of these ids that are taken."""
        self.ids.unbind_among(ids)

    def rebind(self, sources: IntArray, targets: IntArray) -> None:
        """The others are taken in the stead of these ids."""
        self.ids.unbind(sources)
        self.ids.bind(targets, targets)

    def check_free(self, ids: IntArray) -> None:
        """These ids can be freed: each is taken and named once. Nothing changes."""
        self.ids.check_bound(ids)

    def verify(self) -> None:
        """The maps agree."""
        self.ids.verify()
