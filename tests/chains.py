"""Small chains that tests share, and their bytes."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np
from hypothesis import strategies as st

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain, NewPages, Policies
from kvarena.planning.plan import Plan, plan_storage
from kvarena.policies.compaction import Eager, Lazy, Never
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import HIGH, End, FieldView, IntArray

POLICIES = Policies(Nearest(), Lazy(), Middle())


@attrs.frozen
class Raw:
    """An entry of so many bytes, zeroed when it is handed out or not."""

    size: int
    zero_on_take: bool = True
    name = "raw"

    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("bytes", "uint8", (self.size,)),)


class SortedHoles:
    """A third party's holes: a set, and nothing clever."""

    def __init__(self, end: End) -> None:
        self.pages: set[int] = set()
        self.sign = -1 if end is HIGH else 1

    def __len__(self) -> int:
        return len(self.pages)

    def add(self, pages: IntArray) -> None:
        """Freed pages."""
        self.pages |= set(pages.tolist())

    def take(self, count: int) -> IntArray:
        """The farthest first, to be unlike the built-in ones."""
        taken = sorted(self.pages, key=lambda page: -self.sign * page)[:count]
        self.pages -= set(taken)
        return np.array(taken, dtype=np.int64)

    def remove(self, pages: IntArray) -> None:
        """Filled by moves."""
        self.pages -= set(pages.tolist())

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        """Any of a range."""
        return np.array(sorted(page for page in self.pages if start <= page < stop)[:count], dtype=np.int64)

    def drop_below(self, stop: int) -> int:
        """The run that ends below ``stop``."""
        return self._drop(stop - 1, -1)

    def drop_above(self, start: int) -> int:
        """The run from ``start`` on."""
        return self._drop(start, 1)

    def _drop(self, page: int, step: int) -> int:
        count = 0
        while page in self.pages:
            self.pages.remove(page)
            page, count = page + step, count + 1
        return count


@attrs.frozen
class Farthest:
    """A third party's hole order."""

    name = "farthest"

    def open(self, page_count: int, end: End) -> SortedHoles:
        """One per band."""
        return SortedHoles(end)


@attrs.frozen
class Half:
    """A third party's compaction: half of the holes a pass, and a little more than there are at the end."""

    name = "half"

    def moves(self, live: int, holes: int) -> int:
        """Rounded up."""
        return holes // 2 + 1


@attrs.frozen
class Lowest:
    """A third party's placement: as low as it may."""

    name = "lowest"

    def start(self, lowest: int, highest: int) -> int:
        """The lowest."""
        return lowest


LIFETIMES = (State(), Window(64), Window(32), Chunk(48), Window(8), Window(4), Full())
HOLE_ORDERS = (Nearest(), Nearest(recent_max=0), Nearest(recent_max=2), Recent(), Farthest())
COMPACTIONS = (Lazy(max_moves=3), Eager(), Never(), Half())
PLACEMENTS = (Middle(), Lowest())


def planned(*parts: tuple[Lifetime, int]) -> Plan:
    """One layer per lifetime and bytes of an entry, pages of one token."""
    layers = [Layer(index, (Part(Raw(size), lifetime),)) for index, (lifetime, size) in enumerate(parts)]
    return plan_storage(layers, page_tokens=1)


def chain_of(
    plan: Plan,
    arena_bytes: int,
    *,
    slots: int = 8,
    device: CpuDevice | HostDevice | None = None,
    policies: Policies = POLICIES,
    checks: int = 1,
) -> Chain:
    """A chain over an arena of its own."""
    device = device or CpuDevice()
    device.reserve(arena_bytes)
    return Chain(plan, arena_bytes, device=device, policies=policies, slot_count=slots, checks=checks)


@st.composite
def any_chain(draw: st.DrawFn) -> Chain:
    """One to seven sub-pools with units of 2 to 24 bytes, mixed, on a few hundred bytes."""
    lifetimes = draw(st.lists(st.sampled_from(LIFETIMES), unique=True, min_size=1, max_size=7))
    layers = [
        Layer(index, (Part(Raw(draw(st.integers(2, 24))), lifetime),)) for index, lifetime in enumerate(lifetimes)
    ]
    plan = plan_storage(layers, page_tokens=1)
    arena_bytes = draw(st.integers(64 * len(layers), 128 * len(layers)))
    device = CpuDevice()
    device.reserve(arena_bytes)
    policies = Policies(*(draw(st.sampled_from(kinds)) for kinds in (HOLE_ORDERS, COMPACTIONS, PLACEMENTS)))
    slots, checks = draw(st.integers(1, 12)), draw(st.sampled_from((1, 2)))
    return Chain(plan, arena_bytes, device=device, policies=policies, slot_count=slots, checks=checks)


def filled_up(chain: Chain, minter: str) -> int:
    """Take ids one by one until no more can be had; how many that were."""
    count = 0
    while not isinstance(chain.take_new(minter, 1), Refused):
        count += 1
    return count


def three_kinds(arena_bytes: int = 1000, *, checks: int = 1) -> Chain:
    """State units of 50 bytes, window rows of 4, full rows of 10."""
    return chain_of(planned((State(), 50), (Window(8), 4), (Full(), 10)), arena_bytes, checks=checks)


def take_tokens(chain: Chain, count: int, *names: str) -> IntArray:
    """Fresh ids of the owner, bound in it and in these sub-pools."""
    ids = chain.minters["full"].mint(count)
    assert ids is not None
    taken = chain.take(dict.fromkeys(("full", *names), ids))
    assert not isinstance(taken, Refused), str(taken)
    return ids


def take_new(chain: Chain, minter: str, count: int) -> NewPages:
    """A take that mints, which must succeed."""
    taken = chain.take_new(minter, count)
    assert not isinstance(taken, Refused), str(taken)
    return taken


def arena(chain: Chain) -> np.ndarray:
    """Every byte of the arena, to read and to write."""
    size = chain.device.arena_bytes
    return np.asarray(chain.device.view(FieldView("uint8", (), 1, 0, 1, size)).numpy().reshape(-1))


def unit(chain: Chain, name: str, id_: int) -> np.ndarray:
    """The bytes of the page that an id is bound to, to read and to write."""
    size, page = chain.bands[name].grid.unit_bytes, int(chain.pages(name, np.array([id_]))[0])
    return arena(chain)[page * size : (page + 1) * size]


def bytes_left(chain: Chain) -> int:
    """The bytes that no live page holds."""
    return len(chain.usable) - sum(band.live * band.grid.unit_bytes for band in chain.bands.values())


def everything(chain: Chain) -> tuple[object, ...]:
    """All that a call may change: counts, frontiers, maps, ids to mint, counters of moves and the bytes."""
    maps = []
    for name, band in chain.bands.items():
        ids = np.arange(band.grid.id_count)
        maps.append((chain.pages(name, ids).tobytes(), band.ids.owners_of(slice(None)).tobytes()))
    free = tuple(minter.pool.free for minter in chain.minters.values())
    counters = chain.counters
    bytes_of = arena(chain).tobytes() if chain.device.holds_bytes else b""
    done = (counters.takes, counters.moves, counters.moved_bytes, counters.relocations, dict(counters.moved_by))
    return chain.snapshot(), tuple(maps), free, done, chain.epoch, bytes_of


@contextmanager
def nothing_changes(chain: Chain) -> Iterator[None]:
    """Whatever is done inside, a refusal or an error, leaves the chain as it was and every sum in order."""
    before = everything(chain)
    yield
    assert everything(chain) == before
    chain.verify()
