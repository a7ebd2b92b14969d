"""A storage is built whole, or refused before anything is taken."""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, PoliciesConfig, PrefixConfig, StorageConfig
from kvarena.backends.host import HostDevice
from kvarena.layouts.mha import Mha
from kvarena.planning.charges import ROW_COLUMNS, Limits
from kvarena.planning.plan import Plan
from kvarena.storage.requests import RequestTable
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window


def test_bookkeeping_beyond_the_machine_is_refused() -> None:
    """Without mirrors nothing else stops rows for a context of 2**40 tokens; they would take all host memory."""
    arena = ArenaConfig(memory="1GiB", context_tokens=1 << 40, mirrors=False)  # type: ignore[arg-type]
    layers = [Layer(0, (Part(Mha(kv_heads=1, head_dim=64), Full()),))]
    with pytest.raises(ConfigError, match=r"of bookkeeping, and this machine has .*; lower context_tokens"):
        build_storage(layers, StorageConfig(arena=arena, backend="host"))


@pytest.mark.req("CMP-7")
def test_the_device_is_warm_for_every_unit_before_the_first_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, when the storage is built: for the size of each sub-pool's unit; one without bytes has nothing to copy."""
    warmed: list[list[int]] = []
    monkeypatch.setattr(HostDevice, "warm", lambda device, sizes: warmed.append(list(sizes)))
    layers = [Layer(i, (Part(Mha(kv_heads=i + 1, head_dim=8), kind),)) for i, kind in enumerate((Chunk(8), Window(4)))]
    storage = build_storage(layers, StorageConfig(arena=ArenaConfig(memory=1 << 20, context_tokens=64), backend="host"))

    assert warmed == [[pool.unit_bytes for pool in storage.plan.sub_pools if pool.unit_bytes]]
    assert len(warmed[0]) == 2 < len(storage.plan.sub_pools)
    storage.release()


@pytest.mark.req("CMP-8")
@pytest.mark.req("PLG-1")
def test_a_strangers_policies_are_chosen_like_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package beside ours offers a compaction and a placement; a config names them, and they decide."""
    info = tmp_path / "strange_policies-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-policies\nVersion: 0.1\n")
    points = "[kvarena.policies]\nsparing = strange_policies:Sparing\nlowest = strange_policies:Lowest\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "strange_policies.py").write_text(
        "class Sparing:\n"
        "    name = 'sparing'\n"
        "    def __init__(self, at_most=1):\n        self.at_most = at_most\n"
        "    def moves(self, live, holes):\n        return min(self.at_most, holes)\n\n\n"
        "class Lowest:\n"
        "    name = 'lowest'\n"
        "    def start(self, lowest, highest):\n        return lowest\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    policies = PoliciesConfig(compaction={"name": "sparing", "at_most": 2}, placement="lowest")  # type: ignore[arg-type]
    arena = ArenaConfig(memory="1MiB", page_tokens=1, context_tokens=64, mirrors=False)  # type: ignore[arg-type]
    heads = Mha(kv_heads=1, head_dim=8)
    kinds = (Window(4), Window(2), Full())
    layers = [Layer(index, (Part(heads, kind),)) for index, kind in enumerate(kinds)]
    storage = build_storage(layers, StorageConfig(arena=arena, backend="host", policies=policies))
    rows = storage.open_batch(2)
    assert not isinstance(rows, Refused)
    storage.step(rows, np.array([30, 30]))
    assert storage.chain.bands["window-2"].start == storage.chain.bands["window-4"].stop
    storage.close(rows[:1])
    assert [storage.flush() for _ in range(2)] == [2, 2], "the low end closes two holes a pass"
    storage.verify()


def plan_of(*kinds: Lifetime, page_tokens: int = 16) -> Plan:
    """One layer of each kind."""
    layers = [Layer(index, (Part(Mha(kv_heads=1, head_dim=8), kind),)) for index, kind in enumerate(kinds)]
    return plan_arena(layers, ArenaConfig(memory=1 << 20, page_tokens=page_tokens))


@pytest.mark.req("CKP-1")
@pytest.mark.parametrize(
    ("kinds", "prefix", "expected"),
    [
        ((State(), Full()), {}, (64, 2, 0)),
        ((State(), Full()), {"strategy": "extra_buffer_lazy"}, (64, 1, 1)),
        ((State(), Full()), {"strategy": "no_buffer"}, (None, 1, 0)),
        ((State(), Full()), {"share": False}, (None, 1, 0)),
        ((State(), Full()), {"checkpoint_tokens": 96}, (96, 2, 0)),
        ((State(128), Window(8), Full()), {}, (128, 2, 0)),
        ((State(100), Full()), {}, (112, 2, 0)),  # the layers' own, raised to whole pages
        ((State(96), State(64), Full()), {}, (192, 2, 0)),  # theirs, where all of them and a page end
        ((State(24), State(), State(20), Full()), {}, (240, 2, 0)),
        ((State(1021), State(1031), Full()), {"checkpoint_tokens": 32}, (32, 2, 0)),
        ((State(128), Full()), {"checkpoint_tokens": 32}, (32, 2, 0)),
        ((Window(8), Full()), {}, (None, 1, 0)),
    ],
)
def test_the_grid_and_the_slots_follow_the_strategy(
    kinds: tuple[Lifetime, ...], prefix: dict[str, Any], expected: tuple[int | None, int, int]
) -> None:
    """A grid where prefixes are shared and states kept on it; a slot more that is charged, or a place that is not."""
    config = PrefixConfig(**{"share": True, **prefix})
    limits = limits_of(ArenaConfig(memory=1 << 20), config, plan_of(*kinds))
    assert (limits.grid, limits.slots_per_request, limits.spare_slots) == expected
    assert limits_of(ArenaConfig(memory=1 << 20)) == Limits()


@pytest.mark.req("BLD-3")
def test_a_grid_that_cuts_pages_names_both_and_the_cure() -> None:
    """Checkpoints lie at the ends of pages."""
    config = PrefixConfig(share=True, checkpoint_tokens=50)
    why = (
        r"^q\.toml: prefix\.checkpoint_tokens: 50 is no multiple of the page size of 16 tokens "
        r"\(arena\.page_tokens\); take 64, or leave it out$"
    )
    with pytest.raises(ConfigError, match=why):
        limits_of(ArenaConfig(memory=1 << 20), config, plan_of(State(), Full()), source="q.toml")
    config = attrs.evolve(config, share=False)  # then nothing is kept, and nothing refused
    assert limits_of(ArenaConfig(memory=1 << 20), config, plan_of(State(), Full())).grid is None


@pytest.mark.req("CKP-1")
def test_intervals_that_meet_nowhere_in_reach_are_named_with_the_cure() -> None:
    """Layers that may be copied every 1,021 and every 1,031 tokens have a grid of 16 million in common: nobody's."""
    why = (
        r"^q\.toml: prefix\.checkpoint_tokens: the layers' checkpoint_interval are 1,021, 1,031, which meet with pages "
        r"of 16 tokens at no multiple up to 1,048,576; give them ones that divide each other, or a grid here$"
    )
    with pytest.raises(ConfigError, match=why):
        limits_of(
            ArenaConfig(memory=1 << 20),
            PrefixConfig(share=True),
            plan_of(State(1031), State(1021), Full()),
            source="q.toml",
        )


@pytest.mark.req("BLD-3")
def test_the_host_s_bookkeeping_is_counted_as_it_is_kept() -> None:
    """A row costs what the request table's arrays have for it: no fewer, and not a column more than is there."""

    def row_bytes(rows: int) -> int:
        table = RequestTable(rows, 5, pools=3, slots_per_row=2, spare_slots=1)
        parts = (table, table.away, table.fresh)
        arrays = {
            id(found if found.base is None else found.base): found if found.base is None else found.base
            for part in parts
            for found in vars(part).values()
            if isinstance(found, np.ndarray)
        }
        return sum(array.nbytes for array in arrays.values())

    a_row = (row_bytes(1064) - row_bytes(1000)) / 64
    numbers = 5 + 3 + 3 + ROW_COLUMNS  # pages, slots, sub-pools, and the rest
    assert numbers * 8 - 8 < a_row <= numbers * 8


@pytest.mark.req("CKP-1")
def test_a_storage_knows_what_its_config_says_of_prefixes() -> None:
    """And is sized for it: rows have the places, requests are charged the slots, windows keep what the grid asks."""
    layers = [
        Layer(i, (Part(Mha(kv_heads=1, head_dim=8), kind),)) for i, kind in enumerate((State(), Window(8), Full()))
    ]
    prefix = PrefixConfig(share=True, checkpoint_tokens=32)
    arena = ArenaConfig(memory=1 << 20, context_tokens=256, page_tokens=16)
    storage = build_storage(layers, StorageConfig(arena=arena, backend="host", prefix=prefix))
    assert storage.prefix is prefix
    assert storage.sizing.limits.grid == 32
    plain = build_storage(layers, StorageConfig(arena=arena, backend="host"))
    assert storage.sizing.concurrency < plain.sizing.concurrency
    assert storage.requests.slots.shape[1] == 2
    storage.release()
    plain.release()
