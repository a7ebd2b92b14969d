"""What a storage checks by its level: bounds in every step, and what is left when nothing runs."""

import logging
from collections.abc import Callable

import pytest
from storages import FULL, SHORT, STATE, rows_of
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, ChecksConfig, Choice, PoliciesConfig, StorageConfig
from kvarena.chain.describe import describe, stats
from kvarena.storage.checks import check_idle
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Lifetime

CATALOG = Catalog.installed()
KINDS: tuple[tuple[Lifetime, int], ...] = ((STATE, 40), (SHORT, 10), (FULL, 6))


def storage_at(level: int, kinds: tuple[tuple[Lifetime, int], ...] = KINDS, compaction: str = "lazy") -> Storage:
    """A storage at a level of checks: four rows of up to 60 tokens, pages of 4."""
    layers = [Layer(at, (Part(Bytes(size), life, life.name),)) for at, (life, size) in enumerate(kinds)]
    arena = ArenaConfig(memory=4000, page_tokens=4, context_tokens=60, max_running=4, mirrors=False)  # type: ignore[arg-type]
    config = StorageConfig(
        arena=arena,
        backend="host",  # type: ignore[arg-type]
        checks=ChecksConfig(level=level),
        policies=PoliciesConfig(compaction=Choice(compaction)),
    )
    return build_storage(layers, config, CATALOG)


def opened(storage: Storage, tokens: int) -> int:
    """An open row of so many tokens."""
    row = storage.open()
    assert isinstance(row, int)
    assert not isinstance(storage.step(rows_of(row), rows_of(tokens)), Refused)
    return row


# -- levels


@pytest.mark.req("CHK-1")
@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_level_of_the_config_reaches_the_chain_and_stays(level: int) -> None:
    """Also after a resize, which makes the chain anew."""
    storage = storage_at(level)
    assert storage.chain.checks == level
    storage.resize(5000)
    assert storage.chain.checks == level


@pytest.mark.req("CHK-1")
def test_level_1_is_the_default() -> None:
    """A config that says nothing."""
    assert StorageConfig(arena=ArenaConfig(memory=1)).checks.level == 1  # type: ignore[arg-type]


@pytest.mark.req("CHK-1")
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda storage, row: storage.step(rows_of(row, row), rows_of(9, 9)), r"storage\.step_repeats_a_row"),
        (lambda storage, row: storage.step(rows_of(row + 1), rows_of(9)), r"storage\.step_of_free_row"),
        (lambda storage, row: storage.close(rows_of(row, row)), r"storage\.close_repeats_a_row"),
        (lambda storage, row: storage.close(row + 1), r"storage\.close_of_free_row"),
        (lambda storage, row: storage.chain.free("full", rows_of(0, 0)), r"band\.free_of_bound_page"),
        (
            lambda storage, row: storage.chain.free_all({"full": rows_of(0, 99)}),
            r"band\.free_of_(unknown_id|bound_page)",
        ),
        (lambda storage, row: storage.chain.take({"full": rows_of(0)}), r"band\.take_of_bound_id"),
        (lambda storage, row: storage.chain.take({"full": rows_of(50, 50)}), r"band\.take_of_id_twice"),
    ],
)
def test_what_comes_from_outside_is_checked_whole(
    wrong: Callable[[Storage, int], object], name: str, level: int
) -> None:
    """From level 1 on, before anything changes."""
    storage = storage_at(level)
    row = opened(storage, 8)
    before = storage.chain.snapshot()
    with pytest.raises(InvariantError, match=name):
        wrong(storage, row)
    assert storage.chain.snapshot() == before
    storage.verify()


@pytest.mark.req("CHK-2")
@pytest.mark.parametrize("break_it", ["length", "pages"])
def test_a_row_longer_than_its_pages_is_found_in_the_step_at_level_2(break_it: str) -> None:
    """Whichever row it is: every open one is looked at, in every step, also in one that takes nothing."""
    storage = storage_at(2)
    bad, good = opened(storage, 8), opened(storage, 5)
    storage.step(rows_of(bad, good), rows_of(8, 6))
    table = storage.requests
    if break_it == "length":
        table.lengths[bad] = 9
    else:
        table.page_counts[bad] = table.pages_per_row + 1
    with pytest.raises(InvariantError, match=rf"storage\.length_beyond_its_row: rows=\[{bad}\]"):
        storage.step(rows_of(good), rows_of(7))


@pytest.mark.req("CHK-2")
def test_a_step_that_forgets_to_take_is_found_at_once_at_level_2() -> None:
    """A row that is looked at too late writes beyond its pages: level 2 stops it, level 1 does not look."""
    for level in (1, 2):
        storage = storage_at(level)
        row = opened(storage, 8)
        storage.requests.due[row] = 50
        if level == 1:
            assert storage.step(rows_of(row), rows_of(9))
        else:
            with pytest.raises(InvariantError, match=r"storage\.length_beyond_its_row: .*lengths=\[9\] pages=\[2\]"):
                storage.step(rows_of(row), rows_of(9))


@pytest.mark.req("CHK-2")
@pytest.mark.parametrize("kinds", [((STATE, 40),), ((SHORT, 10), (FULL, 6)), KINDS], ids=["state", "tokens", "all"])
def test_ordinary_work_passes_every_check(kinds: tuple[tuple[Lifetime, int], ...]) -> None:
    """Level 2 finds nothing in prompts, decodes, refusals, handed-over pages, and a storage that ran empty."""
    storage = storage_at(2, kinds)
    rows = [opened(storage, tokens) for tokens in (9, 4, 30)]
    for length in range(31, 60):
        storage.step(rows_of(*rows), rows_of(9, length, length))
        storage.flush()
    if FULL in dict(kinds):
        storage.ownership.free_pages(storage.ownership.hand_over(rows[2], 8))
    storage.close(rows_of(*rows))
    assert check_idle(storage) == ()


# -- when nothing runs


def leak_a_page(storage: Storage) -> None:
    """A take that nobody remembers."""
    storage.chain.take_new("full", 2)


def leak_an_id(storage: Storage) -> None:
    """Ids that were minted and never bound."""
    storage.chain.minters["full"].mint(3)


def keep_a_row(storage: Storage) -> None:
    """A request that nobody closed."""
    opened(storage, 5)


def spoil_a_row(storage: Storage) -> None:
    """A free row that holds pages."""
    storage.requests.page_counts[3] = 1


def spoil_the_span(storage: Storage) -> None:
    """A frontier that is off by a page."""
    opened(storage, 8)
    storage.close(storage.requests.open_rows())
    storage.chain.bands["full"].start -= 1  # type: ignore[union-attr]


def forget_a_page(storage: Storage) -> None:
    """A page that a band freed, and a row still counts."""
    storage.chain.free("window-6", storage.requests.pages[opened(storage, 4), :1])


SPOILT: dict[Callable[[Storage], None], tuple[str, ...]] = {
    leak_a_page: (
        "storage.leaked_pages: sub_pool='window-6' leaked=2 live=2 rows_own=0 handed_over=0",
        "storage.leaked_pages: sub_pool='full' leaked=2 live=2 rows_own=0 handed_over=0",
    ),
    leak_an_id: ("storage.leaked_ids: minted_by='full' out=3 bound=0",),
    keep_a_row: ("storage.row_open_at_idle: rows=[0] lengths=[5]",),
    spoil_a_row: ("requests.free_row_holds", "storage.held_is_what_is_bound: "),
    spoil_the_span: ("band.sum: ",),
    forget_a_page: ("storage.row_open_at_idle: rows=[0] lengths=[4]", "storage.held_is_what_is_bound: "),
}


@pytest.mark.req("CHK-2")
@pytest.mark.parametrize(("spoil", "findings"), SPOILT.items(), ids=[spoil.__name__ for spoil in SPOILT])
def test_what_is_left_at_idle_is_told_by_name(
    spoil: Callable[[Storage], None], findings: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Level 1 returns every finding as a sentence and logs it; level 2 raises with all; level 0 does not look."""
    storages = [storage_at(level) for level in (0, 1, 2)]
    for storage in storages:
        spoil(storage)
    off, told, strict = storages

    with caplog.at_level(logging.WARNING, "kvarena"):
        found = check_idle(told)
    assert len(found) == len(findings)
    assert all(sentence.startswith(finding) for sentence, finding in zip(found, findings, strict=True))
    assert [message for message in caplog.messages if "storage.idle_check_failed" in message] == caplog.messages
    assert len(caplog.messages) == len(findings)

    with pytest.raises(InvariantError) as caught:
        check_idle(strict)
    assert all(finding in str(caught.value) for finding in findings)

    caplog.clear()
    assert check_idle(off) == ()
    assert not caplog.messages


@pytest.mark.req("CHK-2")
def test_a_stale_snapshot_is_found_at_idle() -> None:
    """What pricing would have been asked with is compared with the bands as they are."""
    storage = storage_at(1)
    row = opened(storage, 8)
    kept = storage.chain.snapshot()
    storage.close(row)
    bands = (kept.bands[0]._replace(live=1), *storage.chain.snapshot().bands[1:])
    storage.chain._snapshot = storage.chain.snapshot()._replace(bands=bands)

    (finding,) = check_idle(storage)
    assert finding.startswith("chain.stale_snapshot: ")
    assert check_idle(storage) == ()


@pytest.mark.req("CHK-2")
def test_pages_that_were_handed_over_are_no_leak() -> None:
    """A cache keeps them while nothing runs; a leak beside them is counted without them."""
    storage = storage_at(1)
    row = opened(storage, 9)
    handed = storage.ownership.hand_over(row, 8)
    storage.close(row)
    assert check_idle(storage) == ()

    leak_a_page(storage)
    sentences = check_idle(storage)
    assert sentences[-1] == "storage.leaked_pages: sub_pool='full' leaked=2 live=4 rows_own=0 handed_over=2"
    assert len(handed) == 2


# -- stats and describe


@pytest.mark.req("CHK-3")
def test_moves_and_refusals_are_counted_by_sub_pool() -> None:
    """From a storage, without knowing its chain; they are the chain's own counts."""
    storage = storage_at(1, compaction="eager")
    rows = [opened(storage, 12) for _ in range(3)]
    storage.close(rows[0])
    moved = storage.flush()
    asked = storage.chain.take_new("full", storage.chain.minters["full"].pool.free + 1)

    found = storage.stats()
    assert not asked
    assert found == stats(storage.chain)
    assert sum(counts["moves"] for counts in found.values()) == moved > 0
    assert {name: counts["refusals"] for name, counts in found.items()} == {"state": 0, "window-6": 1, "full": 1}


@pytest.mark.req("CHK-3")
def test_a_flush_that_moves_is_an_event_with_its_pages_by_sub_pool(caplog: pytest.LogCaptureFixture) -> None:
    """At debug level, and only when something moved."""
    storage = storage_at(1, compaction="eager")
    rows = [opened(storage, 12) for _ in range(4)]
    storage.close(rows[0])
    assert storage.flush() > 0
    with caplog.at_level(logging.DEBUG, "kvarena"):
        assert storage.flush() == 0
        assert "storage.flushed" not in caplog.text
        storage.close(rows[1])
        before = {name: counts["moves"] for name, counts in storage.stats().items()}
        assert storage.flush() > 0
    moved = {
        name: counts["moves"] - before[name]
        for name, counts in storage.stats().items()
        if counts["moves"] > before[name]
    }
    (line,) = [message for message in caplog.messages if "storage.flushed" in message]
    assert line == f"event='storage.flushed' moved={moved}"


def test_the_flush_is_the_same_when_nobody_listens() -> None:
    """The same pages move with and without the log."""
    quiet, loud = (storage_at(1, compaction="eager") for _ in range(2))
    logger = logging.getLogger("kvarena")
    for storage, level in ((quiet, logging.WARNING), (loud, logging.DEBUG)):
        kept, logger.level = logger.level, level
        try:
            rows = [opened(storage, 12) for _ in range(3)]
            storage.close(rows[1])
            storage.flush()
        finally:
            logger.level = kept
    assert quiet.stats() == loud.stats()


def test_a_storage_draws_its_arena_and_counts_its_rows() -> None:
    """The chain's picture, and one line more."""
    storage = storage_at(1)
    opened(storage, 12)
    assert storage.describe() == describe(storage.chain) + "\nrequests 1 of 4 open"
