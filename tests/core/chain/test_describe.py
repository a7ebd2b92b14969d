"""A chain for people and for logs: the drawing is true to the byte, and the counts are exact."""

import re

import attrs
import numpy as np
import pytest
from chains import POLICIES, chain_of, filled_up, planned, take_new, take_tokens, three_kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain
from kvarena.chain.describe import FIXED, GAP, HOLE, LIVE, SINK, describe, picture, ruler, stats
from kvarena.terms.lifetimes import Chunk, Full, State, Window

GIB = 1 << 30


def two_ends() -> Chain:
    """Slots of 100 bytes below, rows of 10 above, with holes near the frontier and fixed rows by the anchor."""
    chain = chain_of(planned((State(), 100), (Full(), 10)), 7210)
    take_new(chain, "state", 6)
    ids = take_tokens(chain, 200)
    ids = ids[np.argsort(chain.pages("full", ids))]
    chain.free("full", ids[20:80])
    chain.usage.fix("full", ids[150:190])
    return chain


def test_the_arena_as_text() -> None:
    """Sinks, live rows, holes where they are, fixed rows, the gap; frontiers as arrows; a line per band; the sums."""
    assert describe(two_ends()).splitlines() == [
        "|x#######................................................##ooooooo#######@@@@@#|",
        "  a----->                                                <--------------------b",
        " # live  @ fixed  o hole  . gap  x sink   (7.04 KiB, 92 B a cell)",
        "",
        "   band   live  holes  fixed   unit      from        to  ids left",
        " a state     6      0      0  100 B     100 B     700 B         2",
        " b full    140     60     40   10 B  5.08 KiB  7.03 KiB       581",
        "free 4.98 KiB of 6.93 KiB: 600 B in holes, 4.39 KiB in gaps",
        "takes 2 · refusals 0 · moves 0 (0 B) · relocations 0",
    ]


@attrs.frozen
class Lowest:
    """A placement that puts an empty float right beside its lower neighbour."""

    name = "lowest"

    def start(self, lowest: int, highest: int) -> int:
        """The lowest page that will do."""
        return lowest


def five_floats() -> Chain:
    """A model with seven kinds, in GiB."""
    windows = [(Window(2**power), 640 * 1024 * power) for power in range(3, 8)]
    return chain_of(
        planned((State(), 3 << 20), *windows, (Full(), 1280 << 10)), 8 * GIB, slots=400, device=HostDevice()
    )


@pytest.mark.parametrize(
    "chain",
    [
        chain_of(planned((Full(), 10)), 7210),
        chain_of(planned((Full(), 3)), 30),
        chain_of(planned((State(), 100), (Full(), 10)), 7210),
        chain_of(planned((Chunk(10), 5), (Window(8), 4)), 1000),
        three_kinds(),
        five_floats(),
    ],
    ids=["one band", "thirty bytes", "two ends", "owner without bytes", "three", "five floats"],
)
def test_it_fits_eighty_columns_empty_and_full(chain: Chain) -> None:
    """Whatever the chain, and however much it holds."""
    assert set(picture(chain)) <= {GAP, SINK}
    for text in (describe(chain), filled(chain)):
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if line.rstrip() != line] == []
        assert len(lines) == 5 + len(chain.bands) + 2
    assert GAP not in picture(chain)


def filled(chain: Chain) -> str:
    """The chain as text once nothing more can be taken of it."""
    for minter in chain.minters:
        filled_up(chain, minter)
    return describe(chain)


def test_bands_are_marked_by_letter_with_arrows_at_their_frontiers() -> None:
    """Low ends grow up, high ends down, floats to both sides; an empty end stands at its anchor, an empty float not."""
    chain = chain_of(planned((State(), 100), (Window(8), 40), (Full(), 10)), 7800, slots=20)
    assert ruler(chain) == " a" + " " * 75 + "c"
    take_new(chain, "state", 20)
    ids = take_new(chain, "full", 50).ids
    chain.free_all({"full": ids[np.argsort(chain.pages("full", ids))][:30]})

    line = ruler(chain)
    assert re.fullmatch(r" a-+> +<-+b-+> +<-c", line)
    for name, letter in (("state", "a-+>"), ("window-8", "<-+b-+>"), ("full", "<-c")):
        band = chain.bands[name]
        unit = band.grid.unit_bytes
        found = re.search(letter, line)
        assert found is not None
        assert found.start() == band.start * unit * 78 // 7800  # type: ignore[union-attr]
        assert found.end() - 1 == (band.stop * unit - 1) * 78 // 7800  # type: ignore[union-attr]


def test_bands_that_share_a_cell_never_hide_the_earlier_one() -> None:
    """In a huge arena a few units are less than a cell; a float beside a low end takes what is left of its cells."""
    policies = attrs.evolve(POLICIES, placement=Lowest())
    kinds = planned((State(), 4096), (Window(8), 1 << 20), (Full(), 4096))
    chain = chain_of(kinds, 60 * GIB, slots=9, device=HostDevice(), policies=policies)
    take_new(chain, "state", 2)
    take_new(chain, "full", 2)
    assert ruler(chain) == "a" + " " * 76 + "c"
    take_new(chain, "full", 1500)
    assert ruler(chain) == "ab" + " " * 75 + "c"
    take_new(chain, "full", 1500)
    assert ruler(chain) == "a<b>" + " " * 73 + "c"


def painted(chain: Chain) -> str:
    """Every byte of a small arena by what it is, found unit by unit."""
    line = [SINK] * chain.arena_bytes
    line[chain.usable.start : chain.usable.stop] = GAP * len(chain.usable)
    for band in chain.bands.values():
        unit = band.grid.unit_bytes
        if not unit:
            continue
        for page in range(band.start, band.stop):  # type: ignore[union-attr]
            owned = band.ids.owners_of(np.array([page]))[0] >= 0
            sign = HOLE if not owned else FIXED if page in band.still.fixed else LIVE  # type: ignore[union-attr]
            line[page * unit : (page + 1) * unit] = sign * unit
    return "".join(line)


@given(data=st.data())
@settings(max_examples=60)
def test_every_cell_shows_what_most_of_its_bytes_are(data: st.DataObject) -> None:
    """Against a drawing byte by byte, at any width; so a hole or a gap that fills its cell is always seen."""
    chain = three_kinds()
    take_new(chain, "state", data.draw(st.integers(0, 6)))
    ids = take_new(chain, "full", data.draw(st.integers(1, 30))).ids
    some = st.sets(st.sampled_from(ids.tolist()))
    gone = data.draw(some)
    for name, freed in (("window-8", gone | data.draw(some)), ("full", gone)):
        chain.free(name, np.array(sorted(freed), dtype=np.int64))
    chain.usage.fix("full", np.array(sorted(data.draw(some) - gone), dtype=np.int64))
    width = data.draw(st.integers(1, 200))
    truth, drawn = painted(chain), picture(chain, width)

    assert len(drawn) == width
    assert picture(chain, 1000) == truth
    for at, sign in enumerate(drawn):
        cell = truth[at * 1000 // width : (at + 1) * 1000 // width]
        assert cell.count(sign) == max(cell.count(other) for other in set(cell))


def test_stats_are_exact() -> None:
    """Every count per sub-pool; the sum holds; moves and refusals are each band's own."""
    chain = two_ends()
    assert not chain.take_new("state", 3)
    found = stats(chain)

    assert list(found) == ["state", "full"]
    assert found["state"] == {
        "live": 6, "holes": 0, "pending": 0, "vacated": 0, "reserved": 0, "span": 6, "fixed": 0,
        "ids_free": 2, "unit_bytes": 100, "moves": 0, "refusals": 1,
    }  # fmt: skip
    assert found["full"] == {
        "live": 140, "holes": 60, "pending": 0, "vacated": 0, "reserved": 0, "span": 200, "fixed": 40,
        "ids_free": 581, "unit_bytes": 10, "moves": 0, "refusals": 0,
    }  # fmt: skip
    moved = chain.flush()
    assert moved == stats(chain)["full"]["moves"] == 20
    assert (stats(chain)["full"]["holes"], stats(chain)["full"]["span"]) == (0, 140)
    for counts in stats(chain).values():
        assert counts["span"] == sum(counts[key] for key in ("live", "holes", "pending", "vacated", "reserved"))


def test_a_sub_pool_without_bytes_has_a_line_too() -> None:
    """It has no letter, no unit and no place."""
    chain = chain_of(planned((Chunk(10), 5), (Window(8), 4)), 1000)
    take_new(chain, "ids", 3)
    lines = describe(chain).splitlines()

    assert [line.split() for line in lines if " ids " in line][-1] == ["ids", "3", "0", "no", "bytes", "447"]
    assert stats(chain)["ids"]["live"] == 3
    assert stats(chain)["ids"]["span"] == 0
