"""Eviction policies: which piece goes first, and that what changed far from a piece is found when its turn comes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import CATALOG

from kvarena.assembly.config import Choice, PrefixConfig
from kvarena.assembly.loader import make_eviction
from kvarena.policies.eviction import Lfu, Lru, Priority, RankedVictims, Worth
from kvarena.terms.errors import ConfigError, InvariantError
from kvarena.terms.ports import Eviction, Piece, Victims

POLICIES = (Lru(), Lfu(), Priority(), Worth())


def piece(*, size: int = 100, tokens: int = 16, hits: int = 0, priority: float = 0, used: int = 0) -> Piece:
    return Piece(size, tokens, hits, priority, used)


def order(policy: Eviction, pieces: dict[int, Piece]) -> list[int]:
    """All of them, in the order in which they go."""
    victims = policy.open()
    for key, facts in pieces.items():
        victims.add(key, facts)
    return drained(victims, pieces)


def drained(victims: Victims, pieces: dict[int, Piece]) -> list[int]:
    gone = []
    while (key := victims.pop(pieces.__getitem__)) is not None:
        gone.append(key)
    assert not len(victims)
    return gone


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize(
    ("policy", "pieces", "goes"),
    [
        (Lru(), {1: piece(used=5), 2: piece(used=3), 3: piece(used=9)}, [2, 1, 3]),
        (Lfu(), {1: piece(hits=2, used=1), 2: piece(hits=0, used=9), 3: piece(hits=2, used=0)}, [2, 3, 1]),
        (Priority(), {1: piece(priority=1), 2: piece(priority=-2.5), 3: piece(priority=0, used=4)}, [2, 3, 1]),
        (Worth(), {1: piece(size=100), 2: piece(size=400), 3: piece(tokens=64)}, [2, 1, 3]),
        (Worth(), {1: piece(size=400, hits=9), 2: piece(size=100)}, [2, 1]),
        (Worth(), {1: piece(size=10**6, tokens=1), 2: piece(tokens=0, used=9), 3: piece(size=0)}, [2, 1, 3]),
    ],
)
def test_what_goes_first(policy: Eviction, pieces: dict[int, Piece], goes: list[int]) -> None:
    """The oldest, the rarest, the least important, the one that is worth least; what is worth nothing before all."""
    assert order(policy, pieces) == goes


def test_what_was_worth_much_once_gives_way() -> None:
    """A new piece is worth what it is on top of what went last, so that an old favourite goes in the end."""
    victims = Worth().open()
    facts = {0: piece(hits=20)}
    victims.add(0, facts[0])
    gone = []
    for key in range(1, 200):
        facts[key] = piece(used=key)
        victims.add(key, facts[key])
        gone.append(victims.pop(facts.__getitem__))
    assert 0 in gone
    assert gone[:10] == list(range(1, 11))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_changed_unseen_is_found_in_its_turn(policy: Eviction) -> None:
    """A piece that is worth more by now than when it was ranked does not go for what it was."""
    then = {1: piece(tokens=8), 2: piece(used=1, hits=1, priority=1, tokens=16)}
    now = {**then, 1: piece(tokens=64, used=7, hits=7, priority=7)}
    victims = policy.open()
    for key, facts in then.items():
        victims.add(key, facts)
    assert victims.pop(now.__getitem__) == 2
    assert victims.pop(now.__getitem__) == 1


@given(data=st.data(), policy=st.sampled_from(POLICIES))
@settings(max_examples=60)
def test_beside_a_sorted_list(data: st.DataObject, policy: Eviction) -> None:
    """Adds, touches, removes and pops in any order: always the least rank, and each piece once."""
    facts = st.builds(
        piece, size=st.integers(1, 5), tokens=st.integers(0, 5), hits=st.integers(0, 3), priority=st.integers(-1, 1),
        used=st.integers(0, 50),
    )  # fmt: skip
    victims, model = policy.open(), {}
    assert isinstance(victims, RankedVictims)
    floor, floors = 0.0, {}
    for key in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(("add", "add", "touch", "remove", "pop")))
        if what == "add":
            model[key], floors[key] = data.draw(facts), floor
            victims.add(key, model[key])
        elif model and what in ("touch", "remove"):
            chosen = data.draw(st.sampled_from(sorted(model)))
            if what == "remove":
                del model[chosen]
                victims.remove(chosen)
            else:
                model[chosen], floors[chosen] = data.draw(facts), floor
                victims.touch(chosen, model[chosen], used=True)
        elif what == "pop":
            gone = victims.pop(model.__getitem__)
            ranks = {k: policy.rank(p, floors[k]) for k, p in model.items()}  # type: ignore[attr-defined]
            assert (gone is None) == (not model)
            if gone is not None:
                assert ranks[gone] == min(ranks.values())
                floor = max(floor, ranks[gone][0]) if policy.name == "worth" else 0.0
                del model[gone]
        assert len(victims) == len(model)


def test_stale_ranks_do_not_pile_up() -> None:
    """A piece that is used a hundred thousand times is there once, and what it was is forgotten now and then."""
    victims = Lru().open()
    assert isinstance(victims, RankedVictims)
    victims.add(0, piece())
    for used in range(1, 100_000):
        victims.touch(0, piece(used=used), used=True)
    assert len(vars(victims)["_heap"]) < 2000
    assert victims.pop(lambda key: piece(used=99_999)) == 0


def test_a_piece_is_added_once() -> None:
    """A key that is there already is named."""
    victims = Lru().open()
    victims.add(3, piece())
    with pytest.raises(InvariantError, match=r"eviction\.piece_is_there_already"):
        victims.add(3, piece())


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize("name", ["lru", "lfu", "priority", "worth"])
def test_a_config_names_it(name: str) -> None:
    """Each comes in by an entry point, with its setting; one of another sort is refused by name."""
    assert make_eviction(CATALOG, PrefixConfig(eviction=name)).splits
    whole = make_eviction(CATALOG, PrefixConfig(eviction=Choice(name, {"splits": False})))
    assert (whole.name, whole.splits) == (name, False)
    with pytest.raises(ConfigError, match="splits"):
        make_eviction(CATALOG, PrefixConfig(eviction=Choice(name, {"splits": "no"})))
    with pytest.raises(ConfigError, match="no eviction policy"):
        make_eviction(CATALOG, PrefixConfig(eviction="lazy"))
