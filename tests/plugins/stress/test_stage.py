"""A stage plays operations on one rank, on any device; what its bytes show to be wrong is a finding, in words."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, PoolSpec, open_stage
from kvarena.plugins.stress.stage.kinds import REQUIRED, Kind
from kvarena.plugins.stress.stage.operations import VERBS, Op, read_operation
from kvarena.plugins.stress.stage.stage import Outcome, Stage
from kvarena.terms.errors import ConfigError

CATALOG = Catalog.installed()
SPEC = ChainSpec(
    unit=64,
    arena=40,
    page_tokens=2,
    requests=3,
    context=12,
    forwards_in_flight=2,
    mirrors=True,
    sub_pools={
        "S": PoolSpec(lifetime="state", units=2),
        "W": PoolSpec(lifetime={"name": "window", "window": 4}),
        "F": PoolSpec(lifetime="full", units=2),
    },
)
DEVICES = {
    "simulated, early": Choice("simulated", {"timing": "early"}),
    "simulated, late": Choice("simulated", {"timing": "late"}),
    "simulated, random": Choice("simulated", {"timing": "random", "seed": 7}),
    "cpu": Choice("cpu"),
    "host": Choice("host"),
}


@pytest.fixture(params=DEVICES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = open_stage(SPEC, DEVICES[request.param], CATALOG, "")
    yield made
    made.storage.release()


def open_late() -> Stage:
    return open_stage(SPEC, DEVICES["simulated, late"], CATALOG, "")


def play(stage: Stage, verb: str, **arguments: Any) -> Any:
    """Play an operation that must go through; its value."""
    outcome = stage.apply(Op(verb, arguments))
    stage.turn()
    assert outcome.kind == "value", f"{verb} {arguments}: {outcome}"
    return outcome.value


def whole_day(stage: Stage) -> list[int]:
    """Every kind of work once, two steps overlapped; the digests on the way."""
    digests = []

    def then(verb: str, **arguments: Any) -> Any:
        value = play(stage, verb, **arguments)
        digests.append(stage.digest())
        return value

    then("take", request="A", rows=5)
    then("step", forward="f1", requests=["A"], rows=2)
    then("take", request="B", rows=3, write=True)
    then("step", forward="f2", requests=["A", "B"])
    then("process", forward="f1")
    then("reserve", to={"A": 11})
    then("launch", forward="f3", requests=["A"])
    then("record", forward="f3", unknown=True)
    then("process", forward="f2")
    then("commit", to={"A": 9})
    then("backup", copy="c1", request="B")
    then("process", forward="f3")
    then("submit", copy="c1")
    then("send", transfer="t1", request="A")
    then("finish", request="B")
    then("end", copy="c1")
    then("load", copy="c0", request="C", rows=2)
    then("cancel", copy="c0")
    then("load", copy="c2", request="C", rows=4, source="c1")
    then("name", copy="c2", sub_pool="window-4")
    then("flush")
    then("submit", copy="c2")
    then("step", forward="f4", requests=["C"])
    then("release", transfer="t1")
    then("end", copy="c2")
    then("finish", request="A", entry="E", tokens=8)
    then("process", forward="f4")
    assert then("read", request="C") == "ok"
    assert then("read", request="E") == "ok"
    then("recv", transfer="t2", request="D", rows=4)
    then("publish", transfer="t2")
    then("peer_write", transfer="t2")
    then("release", transfer="t2")
    then("copy_state", source="C", target="D")
    then("flush")
    assert then("read", request="D") == "ok"
    then("relief", units={"full": 3})
    for name in ("C", "D"):
        then("finish", request=name)
    then("evict", entry="E")
    assert then("quiet") == []
    return digests


@pytest.mark.req("HAR-1")
def test_a_day_on_any_device_loses_no_write(stage: Stage) -> None:
    """Forwards, drafts, copies, transfers, a cache: the device and the bytes find nothing, and it ends quiet."""
    whole_day(stage)
    assert stage.findings == []
    assert not getattr(stage.device, "violations", [])


@pytest.mark.req("LED-4")
def test_how_work_lands_decides_nothing() -> None:
    """The digest after each operation is the same on every device, whatever its timing."""
    stages = {name: open_stage(SPEC, device, CATALOG, "") for name, device in DEVICES.items() if name != "host"}
    days = {name: whole_day(stage) for name, stage in stages.items()}
    for stage in stages.values():
        stage.storage.release()
    first, *others = days.values()
    assert all(other == first for other in others)


@pytest.mark.req("HAR-2")
def test_bytes_that_change_under_a_forward_are_a_finding_in_words() -> None:
    """Who read what, where, what it expected and what it found."""
    stage = open_late()
    play(stage, "take", request="A", rows=3, write=True)
    pages = play(stage, "pages", request="A", sub_pool="full")["full"]
    play(stage, "step", forward="f1", requests=["A"])
    stage.props.tags.pools["full"].bytes[pages[0], 1] = 0
    play(stage, "land", name="f1")
    words = [finding.words for finding in stage.findings]
    assert len(words) == 1
    assert words[0].startswith(f"forward f1 read full row 1 of A (page {pages[0]}, place 1): expected tag ")
    assert words[0].endswith("found zeros") or words[0].endswith("found tag 0")
    stage.storage.release()


def test_rows_that_nobody_wrote_read_as_zeros() -> None:
    """A page that is handed out holds nothing of its last owner's, past the length too."""
    stage = open_late()
    play(stage, "take", request="A", rows=12, write=True)
    play(stage, "finish", request="A")
    play(stage, "take", request="B", rows=12)
    assert play(stage, "read", request="B") == "ok"
    stage.storage.release()


def test_a_refusal_an_error_and_what_is_awaited_are_outcomes() -> None:
    """Nothing is raised: a take that does not fit, a broken promise by its name, bad input, a capability to come."""
    stage = open_late()
    play(stage, "take", request="A", rows=2)
    assert stage.apply(Op("take", {"request": "B", "units": {"full": 100}})).kind == "refused"
    play(stage, "step", forward="f1", requests=["A"])
    play(stage, "step", forward="f2", requests=["A"])
    assert stage.apply(Op("process", {"forward": "f1", "wait": False})).name == "forwards.process_before_its_end"
    assert stage.apply(Op("process", {"forward": "f2"})).name == "forwards.process_out_of_order"
    unknown = stage.apply(Op("finish", {"request": "Z"}))
    assert (unknown.kind, unknown.name, unknown.words) == (
        "error",
        "ConfigError",
        "there is no request 'Z' now; choose one of: A",
    )
    awaited = stage.apply(Op("stages", {}))
    assert awaited == Outcome("awaits", None, "pipeline stages", "awaits pipeline stages")
    assert "request A is open" in play(stage, "quiet")
    stage.storage.release()


NAMES = ("A", "B", "f", "c", "t", "E")
NUMBERS = (-1, 0, 1, 2, 3, 5, 9, 40, 1 << 40)


def any_value(rng: random.Random, kind: Kind) -> Any:
    """Something of a kind; now and then what makes no sense."""
    if kind.types == (str,) or kind.types == (int, str):
        return rng.choice(NAMES)
    if kind.types == (bool,):
        return rng.random() < 0.5
    if kind.each is None:
        return rng.choice([number for number in NUMBERS if kind.least <= number <= kind.most])
    if kind.types == (Mapping,):
        keys = ("full", "window-4", "state", "A", "B", "X")
        return {rng.choice(keys): any_value(rng, kind.each) for _ in range(rng.randint(0, 3))}
    return [any_value(rng, kind.each) for _ in range(kind.size or rng.randint(0, 3))]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_played_is_an_outcome(seed: int) -> None:
    """Nonsense is a named error, or goes through; nothing is raised, and no byte is lost."""
    rng, stage = random.Random(seed), open_stage(SPEC, Choice("simulated", {"seed": seed}), CATALOG, "")
    verbs = [verb for name, verb in VERBS.items() if name not in ("plan", "size", "resize", "repeat")]
    for _ in range(400):
        verb = rng.choice(verbs)
        free = [one for one in verb.arguments if (verb.name, one.name) != ("release", "wait")]  # a deadline is no proof
        given = [one for one in free if one.default is REQUIRED or rng.random() < 0.4]
        op = read_operation(verb.name, {one.name: any_value(rng, one.kind) for one in given}, "here")
        assert stage.apply(op).kind in ("value", "refused", "error", "awaits"), op
        stage.turn()
    assert stage.findings == []
    assert stage.device.violations == []
    stage.storage.release()


@pytest.mark.parametrize("sub_pool", ["full", ""])
def test_a_loads_pages_move_once_they_are_named(sub_pool: str) -> None:
    """A flush leaves them where they are before, and brings them in after; the load fills them where they are then."""
    stage = open_late()
    play(stage, "take", request="X", units={"full": 4})
    play(stage, "load", copy="c1", request="A", rows=8)
    play(stage, "free", request="X")
    assert play(stage, "flush") == 0
    before = play(stage, "pages", request="A", sub_pool="full")

    assert play(stage, "name", copy="c1", sub_pool=sub_pool) == (4 if sub_pool else 7)
    assert play(stage, "flush") == 4
    assert play(stage, "pages", request="A", sub_pool="full") != before
    assert play(stage, "name", copy="c1") == (3 if sub_pool else 0)
    again = stage.apply(Op("name", {"copy": "c1", "sub_pool": "full"}))
    assert again.name == "copies.name_of_unreserved_sub_pool"
    play(stage, "submit", copy="c1")
    play(stage, "end", copy="c1")
    assert play(stage, "read", request="A") == "ok"
    stage.storage.release()


def test_a_cancelled_load_leaves_its_request_without_rows() -> None:
    """Its pages come back, another load may fill the request, and what was submitted is not cancelled any more."""
    stage = open_late()
    play(stage, "take", request="A")
    play(stage, "load", copy="c1", request="A", rows=8)
    play(stage, "cancel", copy="c1")
    assert play(stage, "counts", sub_pool="full")["live"] == 0
    assert stage.apply(Op("submit", {"copy": "c1"})).name == "ConfigError"

    play(stage, "load", copy="c2", request="A", rows=5)
    play(stage, "submit", copy="c2")
    assert stage.apply(Op("cancel", {"copy": "c2"})).name == "copies.unknown_copy"
    play(stage, "end", copy="c2")
    play(stage, "step", forward="f1", requests=["A"])
    play(stage, "process", forward="f1")
    assert play(stage, "read", request="A") == "ok"
    play(stage, "finish", request="A")
    assert play(stage, "quiet") == []
    assert stage.findings == []
    stage.storage.release()


def test_a_cancelled_backup_changes_nothing() -> None:
    """Its request goes on, and may end."""
    stage = open_late()
    play(stage, "take", request="A", rows=3, write=True)
    play(stage, "backup", copy="c1", request="A")
    assert stage.apply(Op("name", {"copy": "c1", "sub_pool": "full"})).name == "copies.name_of_unreserved_sub_pool"
    assert play(stage, "name", copy="c1") == 0
    play(stage, "cancel", copy="c1")
    assert play(stage, "read", request="A") == "ok"
    play(stage, "finish", request="A")
    assert play(stage, "quiet") == []
    stage.storage.release()


def test_an_open_that_cannot_take_its_rows_leaves_no_request() -> None:
    """A take that opens a request and is refused has changed nothing."""
    stage = open_late()
    play(stage, "take", request="X", units={"full": 14})
    before = stage.storage.requests.free_count, stage.storage.stats()["state"]["live"]
    assert stage.apply(Op("take", {"request": "A", "rows": 12})).kind == "refused"
    assert (stage.storage.requests.free_count, stage.storage.stats()["state"]["live"]) == before
    assert "A" not in stage.props.requests
    stage.storage.release()


def test_the_arena_shares_exactly_the_units_asked_for() -> None:
    """Sinks are beside them, and so are the device's copies of the maps."""
    stage = open_late()
    assert len(stage.storage.chain.usable) == 40 * 64
    stage.storage.release()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requests": 40}, r"chain\.requests: 40 rows are asked for, and the arena starts \d+ at once"),
        ({"page_tokens": 3}, "are no whole number for each of 3 rows"),
        (
            {"sub_pools": {"A": PoolSpec(lifetime="full"), "B": PoolSpec(lifetime="full")}},
            "has the lifetime 'full' too",
        ),
        ({"arena": 2}, "cannot hold one request"),
    ],
)
def test_a_chain_that_cannot_be_built_is_refused(changes: dict[str, Any], words: str) -> None:
    """The message names the key."""
    settings = {"unit": 64, "arena": 8, "page_tokens": 2, "context": 4, "sub_pools": SPEC.sub_pools, **changes}
    with pytest.raises(ConfigError, match=words):
        open_stage(ChainSpec(**settings), Choice("simulated"), CATALOG, "x.toml")
