"""What a chain should say: ids, tags and sums, kept in dictionaries beside it."""

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.planning.snapshot import BandShot


class ChainModel:
    """Per sub-pool: id -> tag of what is written under it, and id -> page of those that are fixed."""

    def open(self, chain: Chain) -> None:
        """Nothing is taken yet."""
        self.chain = chain
        self.tags: dict[str, dict[int, int]] = {name: {} for name in chain.bands}
        self.fixed: dict[str, dict[int, int]] = {name: {} for name in chain.bands}
        self.out: dict[str, set[int]] = {name: set() for name in chain.minters}
        self.names = {name: list(minter.names) for name, minter in chain.minters.items()}
        self.backed = [name for name, band in chain.bands.items() if band.grid.unit_bytes]
        self.serial = self.takes = self.refusals = 0
        self.moved = dict.fromkeys(chain.bands, 0)
        self.refused: dict[str, int] = {}

    def pages(self) -> dict[str, dict[int, int]]:
        """The page of every bound id now."""
        return {
            name: dict(zip(tags, self.chain.pages(name, np.array(list(tags), dtype=np.int64)).tolist(), strict=True))
            for name, tags in self.tags.items()
        }

    def count_moves(self) -> None:
        """Add the pages that lie elsewhere than before."""
        now = self.pages()
        for name, places in self.places.items():
            self.moved[name] += sum(now[name][id_] != page for id_, page in places.items())

    def counts(self, wanted: dict[str, int]) -> tuple[int, ...]:
        """Units per sub-pool, in chain order."""
        return tuple(wanted.get(name, 0) for name in self.chain.bands)

    def ids_left(self, minter: str) -> int:
        """How many ids nobody has minted."""
        return self.chain.bands[minter].grid.id_count - len(self.out[minter])

    def loose(self, name: str) -> list[int]:
        """The ids that are bound and not fixed."""
        return sorted(self.tags[name].keys() - self.fixed[name].keys())

    def may_go(self, name: str) -> list[int]:
        """Loose ids that no other sub-pool has a page for, where this is the one that mints them."""
        others = [self.tags[other] for other in self.names.get(name, ()) if other != name]
        return [id_ for id_ in self.loose(name) if not any(id_ in tags for tags in others)]

    def pattern(self, name: str, tag: int) -> np.ndarray:
        """A unit's bytes for this tag: never zero, different for neighbours in number."""
        size = self.chain.bands[name].grid.unit_bytes
        return np.resize(np.array([tag % 251 + 1, tag // 251 % 251 + 1], dtype=np.uint8), size)

    def counted(self, name: str) -> BandShot:
        """The band as the model counts it; its span reaches exactly from its first page to its last."""
        band, live = self.chain.bands[name], len(self.tags[name])
        left, shot = band.grid.id_count - live, self.chain.snapshot()[2][list(self.chain.bands).index(name)]
        if not band.grid.unit_bytes:
            return BandShot(name, 0, None, live, 0, 0, 0, left)
        pages, fixed = self.pages()[name].values(), sorted(self.fixed[name].values())
        low, high = (fixed[0], fixed[-1] + 1) if fixed else (0, 0)
        start, stop = (min(pages), max(pages) + 1) if live else (shot.start, shot.start)
        if band.grid.end is not None and live:
            start, stop = (band.grid.first, stop) if band.grid.end.name == "low" else (start, band.grid.stop)
        holes = stop - start - live
        return BandShot(
            name, band.grid.unit_bytes, band.grid.end, live, holes, start, stop, left, fixed_start=low, fixed_stop=high
        )
