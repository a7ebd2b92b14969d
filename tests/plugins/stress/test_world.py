"""A seed stands for a whole run's circumstances, always the same, and seeds differ in kind and not only in numbers."""

import collections

import attrs
import pytest

from kvarena.assembly.arena import plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.loader import declared_layers
from kvarena.assembly.structuring import structure
from kvarena.planning.plan import Plan
from kvarena.plugins.stress.swarm.world import ACTIONS, NEEDED, SHARING, World, draw_world
from kvarena.terms.errors import ConfigError

CATALOG = Catalog.installed()
WORLDS = [draw_world(seed, catalog=CATALOG) for seed in range(150)]


def plan_of(world: World) -> Plan:
    """The chain of a world."""
    config = world.config()
    return plan_arena(declared_layers(config, CATALOG), config.arena)


def test_a_seed_is_always_the_same_world() -> None:
    """Drawn twice, or by another process, a seed gives equal values."""
    assert [draw_world(seed, catalog=CATALOG) for seed in range(20)] == WORLDS[:20]


@pytest.mark.req("HAR-1")
def test_chains_have_two_to_five_bands_of_mixed_units() -> None:
    """State and owner ends, one to three floats; chains without a state and owners without bytes are among them."""
    plans = [plan_of(world) for world in WORLDS]

    assert {len(plan.sub_pools) for plan in plans} == {2, 3, 4, 5}
    assert {plan.slots is None for plan in plans} == {True, False}
    assert any(pool.unit_bytes == 0 for plan in plans for pool in plan.sub_pools)
    assert len({pool.unit_bytes for plan in plans for pool in plan.sub_pools}) > 20
    assert len({plan.page_tokens for plan in plans}) >= 4


@pytest.mark.req("HAR-1")
def test_every_seed_draws_its_own_weights() -> None:
    """Each action is silent in some worlds and loud in others; what the rest hangs on is never silent."""
    silent = collections.Counter(name for world in WORLDS for name, weight in world.weights.items() if not weight)

    assert set(silent) == {*ACTIONS, *SHARING} - NEEDED
    assert max(silent.values()) < len(WORLDS)
    assert any(all(world.weights.values()) for world in WORLDS)


def test_overlap_mirrors_policies_and_levels_are_drawn() -> None:
    """No overlap and up to three forwards in flight, every hole order and compaction, mirrors or none, two levels."""
    arenas = [world.storage["arena"] for world in WORLDS]
    policies = [world.storage["policies"] for world in WORLDS]

    assert {world.in_flight for world in WORLDS} == {0, 1, 2, 3}
    assert {arena["mirrors"] for arena in arenas} == {True, False}
    assert len({str(policy["holes"]) for policy in policies}) == 4
    assert len({str(policy["compaction"]) for policy in policies}) == 5
    assert {world.storage["checks"]["level"] for world in WORLDS} == {1, 2}


def test_the_two_ranks_see_work_land_at_different_times() -> None:
    """One timing for each rank; only chance may stand twice, with a seed of its own on each."""
    assert all(world.timings[0] != world.timings[1] or world.timings[0] == "random" for world in WORLDS)


def test_a_users_chain_is_kept_and_only_the_rest_is_drawn() -> None:
    """With a config's sections the storage is the user's on every seed; weights still differ."""
    mine = {**WORLDS[3].storage, "policies": {"compaction": "none"}}

    first, second = draw_world(1, mine), draw_world(2, mine)

    assert first.storage == second.storage == mine
    assert first.weights != second.weights


def test_a_world_is_read_back_and_a_wrong_one_is_refused_by_its_place() -> None:
    """Its tables read as the same value; an unknown action and a timing of another word are named."""
    tables = attrs.asdict(WORLDS[0], recurse=False) | {"timings": list(WORLDS[0].timings)}

    assert structure(World, tables, "case.toml", at="world") == WORLDS[0]
    with pytest.raises(ConfigError, match=r"case.toml: world.weights: no action is named 'dance'"):
        structure(World, {**tables, "weights": {"dance": 1.0}}, "case.toml", at="world")
    with pytest.raises(ConfigError, match=r"world.timings: two of random, early, late"):
        structure(World, {**tables, "timings": ["soon", "late"]}, "case.toml", at="world")
