"""Plugins of a stranger's distribution that break a promise: each is named, with its distribution and what it said."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, structure
from kvarena.ledger.steps import Forward
from kvarena.plugins.cli.main import run
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.storage.storage import Storage
from kvarena.terms.errors import PluginError

STRANGER = '''
"""Small plugins, each wrong in one place."""

import itertools

import attrs
import numpy as np

from kvarena import Field
from kvarena.backends.cpu import CpuDevice
from kvarena.policies.compaction import Eager
from kvarena.policies.eviction import Lru
from kvarena.policies.hole_order import Nearest

CALLS = itertools.count(8)


@attrs.frozen
class Good:
    """Nothing is wrong here, and every other layout is this one but for its fields."""

    name = "good"

    def fields(self):
        return (Field("k", "float16", (8,)), Field("scale", "float16", (1,)))


class Grows(Good):
    def fields(self):
        return (Field("k", "float16", (8,)), Field("scale", "float16", (next(CALLS),)))


class Turns(Good):
    def fields(self):
        one, other = Field("k", "float16", (8,)), Field("scale", "float16", (1,))
        return (one, other) if next(CALLS) % 2 else (other, one)


class Recasts(Good):
    def fields(self):
        return (Field("k", "float16" if next(CALLS) % 2 else "float32", (8,)),)


class Repeats(Good):
    def fields(self):
        return (Field("k", "float16", (8,)), Field("k", "float16", (1,)))


class Unknown(Good):
    def fields(self):
        return (Field("k", "int4", (8,)),)


class Empty(Good):
    def fields(self):
        return (Field("k", "float16", (8, 0)),)


class Nothing(Good):
    def fields(self):
        return ()


class Loose(Good):
    def fields(self):
        return ("k", "float16")


@attrs.frozen
class Last:
    """The last rows alone; right, but for what a subclass says."""

    rows: int = 20
    name = "last"
    rank = (1, -20)
    own_ids = False

    def entries(self, length):
        return min(length, self.rows)

    def retained(self, length):
        return min(length, self.rows - 1)

    def retired(self, start, stop):
        gone, going = max(0, start - self.rows + 1), max(0, stop - self.rows + 1)
        return (range(gone, going),) if going > gone else ()


class Negative(Last):
    def entries(self, length):
        return min(length, self.rows) if length < 40 else -1


class Hasty(Last):
    def retired(self, start, stop):
        gone, going = max(0, start - self.rows + 2), max(0, stop - self.rows + 2)
        return (range(gone, going),) if going > gone else ()


class Early(Last):
    def retained(self, length):
        return 0

    def retired(self, start, stop):
        return (range(start + 1, stop + 1),)


class Again(Last):
    def retired(self, start, stop):
        return (range(max(0, stop - self.rows + 1)),)


class Jumps(Last):
    def retained(self, length):
        return 0

    def retired(self, start, stop):
        return (range(start, stop),) if start else ()


class Floors(Last):
    def floor(self, lengths):
        return np.maximum(lengths - self.rows, 0)


class Reaches(Floors):
    def floor(self, lengths):
        return np.maximum(lengths - self.rows + 1, 0)

    def reaches(self, rows):
        return rows + self.rows


class Inverse(Last):
    def reaches(self, rows):
        return rows + self.rows - 1


class Scalar(Last):
    def floor(self, lengths):
        return 0


class Blocks(Last):
    """Blocks of 256, right but for what is said to repeat."""

    rank = (1, -256)

    def entries(self, length):
        return length and (length - 1) % 256 + 1

    def retained(self, length):
        return 0

    def retired(self, start, stop):
        gone, going = start // 256 * 256, stop // 256 * 256
        return (range(gone, going),) if going > gone else ()

    def repeats(self):
        return (0, 1)


class Beginning(Blocks):
    """The window is whole at 20, and not at 18."""

    entries, retained, retired = Last.entries, Last.retained, Last.retired

    def repeats(self):
        return (18, 1)


class Lettered(Last):
    def repeats(self):
        return "x"


class Many(Last):
    def entries(self, length):
        return max(1, min(length, self.rows))


class FewLive(Last):
    def entries(self, length):
        return min(length, self.rows - 1)


class Texts(Last):
    def retired(self, start, stop):
        return "none"


class Raises(Last):
    def retained(self, length):
        return min(length, 3) // (length != 17)


class Late(Last):
    """Right where it is tried out, and wrong at one length that no border is near."""

    def retired(self, start, stop):
        gone, going = (max(0, at - self.rows + 1 + 9 * (1600 <= at < 1680)) for at in (start, stop))
        return (range(gone, going),) if going > gone else ()


class Holes:
    """Holes of Nearest, with one answer spoilt."""

    def __init__(self, holes):
        self.holes = holes

    def __len__(self):
        return len(self.holes)

    def __getattr__(self, verb):
        return getattr(self.holes, verb)


class TwiceHoles(Holes):
    def take(self, count):
        pages = self.holes.take(count)
        return np.full(count, pages[0])


class StrangeHoles(Holes):
    def take(self, count):
        self.holes.take(count)
        return np.arange(count)


class FewHoles(Holes):
    def take(self, count):
        return self.holes.take(count)[1:]


class ListHoles(Holes):
    def take(self, count):
        return self.holes.take(count).tolist()


class StuckHoles(Holes):
    def drop_below(self, stop):
        return 0

    drop_above = drop_below


def orders(kind):
    @attrs.frozen
    class Order:
        name = kind.__name__.removesuffix("Holes").lower()

        def open(self, page_count, end):
            return kind(Nearest().open(page_count, end))

    Order.__module__, Order.__qualname__ = __name__, f"{kind.__name__}Order"
    return Order


Twice, Strange, Few, List, Stuck = map(orders, (TwiceHoles, StrangeHoles, FewHoles, ListHoles, StuckHoles))


class RaisesHoles(Holes):
    def take(self, count):
        raise KeyError("x")


Raising = orders(RaisesHoles)


class Leaves(Eager):
    name = "leaves"

    def moves(self, live, holes):
        raise SystemExit(0)


class Backwards(Eager):
    name = "backwards"

    def moves(self, live, holes):
        return -3


class Halves(Eager):
    name = "halves"

    def moves(self, live, holes):
        return 0.5


@attrs.frozen
class Afar:
    name = "afar"

    def start(self, lowest, highest):
        return highest + 1


@attrs.frozen
class Forgets(Lru):
    """Its victims are let go of, and other ones named."""

    name = "forgets"

    def open(self):
        return Victims(super().open())


class Victims(Holes):
    def pop(self, look):
        key = self.holes.pop(look)
        return None if key is None else key + 4096


class Event:
    def __init__(self, event, number):
        self.event, self.number = event, number

    def done(self):
        return self.number % 2 == 0


class Overtakes(CpuDevice):
    """Says of every second event of the forwards that it is done, and of the one before it that it is not."""

    name = "overtakes"
    numbers, wrong = 0, False

    def record(self, stream):
        event = super().record(stream)
        if stream.name != "forward" or not Overtakes.wrong:
            return event
        Overtakes.numbers += 1
        return Event(event, Overtakes.numbers)

    def wait(self, stream, event):
        super().wait(stream, getattr(event, "event", event))

    def synchronize(self, event):
        super().synchronize(getattr(event, "event", event))


class Crashes:
    def __init__(self):
        raise RuntimeError("no such thing here")
'''

NAMES = {
    "layouts": ("Good", "Grows", "Turns", "Recasts", "Repeats", "Unknown", "Empty", "Nothing", "Loose"),
    "lifetimes": (
        "Last", "Negative", "Hasty", "Early", "Again", "Jumps", "Floors", "Texts", "Raises", "Late", "Reaches",
        "Inverse", "Scalar", "Blocks", "Beginning", "Lettered", "Many", "FewLive",
    ),
    "policies": (
        "Twice", "Strange", "Few", "List", "Stuck", "Raising", "Leaves", "Backwards", "Halves", "Afar", "Forgets",
        "Crashes",
    ),
    "backends": ("Overtakes",),
}  # fmt: skip


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a module of bad plugins, installed where Python looks for modules."""
    (tmp_path / "strangers_of_h3.py").write_text(STRANGER, encoding="utf-8")
    info = tmp_path / "kvarena_strange-0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvarena-strange\nVersion: 0.7\n", encoding="utf-8")
    points = "".join(
        f"[kvarena.{kind}]\n" + "".join(f"{name.lower()} = strangers_of_h3:{name}\n" for name in names)
        for kind, names in NAMES.items()
    )
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def storage_with(**sections: Any) -> Storage:
    """A storage by config: two layers, and what a test changes."""
    layers = sections.pop(
        "layers", [{"index": 0, "layout": "good"}, {"index": 1, "layout": "good", "lifetime": "last"}]
    )
    arena = {"memory": "1MiB", "page_tokens": 4, "context_tokens": 2048, "max_running": 8, **sections.pop("arena", {})}
    data = {"arena": arena, "layers": layers, "backend": sections.pop("backend", "host"), **sections}
    return build_storage((), structure(StorageConfig, data, "serve.toml"), Catalog.installed(), source="serve.toml")


def refused(words: str) -> Any:
    """A plugin's error with these words, and the distribution's name in it."""
    return pytest.raises(PluginError, match=rf"\(kvarena-strange 0\.7\): .*{words}")


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("grows", r"field 'scale' changed from \(\d+,\) to \(\d+,\) between two calls \(layout\.fields_change\)"),
        ("turns", r"its fields changed from \['\w+', '\w+'\] to .* \(layout\.fields_change\)"),
        ("recasts", r"field 'k' changed from float\d\d to float\d\d between two calls \(layout\.fields_change\)"),
        ("repeats", r"two of its fields have the name 'k' \(layout\.field_twice\)"),
        ("unknown", r"fields\(\) raised ValueError: unknown dtype 'int4'; known are .* \(layout\.fields_fail\)"),
        ("empty", r"field 'k' has the shape \(8, 0\), which is no bytes; leave the field out \(layout\.zero_shape\)"),
        ("nothing", r"fields\(\) is empty, and an entry has bytes; .* \(layout\.no_fields\)"),
        ("loose", r"fields\(\) returned 'k' where fields are due.* \(layout\.no_fields\)"),
    ],
)
def test_a_layout_that_breaks_a_promise_is_refused(layout: str, words: str) -> None:
    """When it is read from the config, with the table that names it."""
    with refused(words) as caught:
        storage_with(layers=[{"index": 0, "layout": layout}])
    assert str(caught.value).startswith("serve.toml: layers[0]: layout ")


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("lifetime", "words"),
    [
        ("negative", r"entries\(\d+\) is -1; it must be a whole number of units.*\(lifetime\.negative_units\)"),
        ("hasty", r"at length 19 it has retired rows 0, which leaves 18, .* 19 .*\(lifetime\.retires_what_it_needs\)"),
        ("early", r"names rows 1, and rows 0-0 are written \(lifetime\.retires_unwritten_rows\)"),
        ("again", r"retired\(\d+, \d+\) names row 0, which was retired before \(lifetime\.retires_twice\)"),
        ("jumps", r"names rows none, and step by step it was .* \(lifetime\.retired_depends_on_steps\)"),
        ("floors", r"floor says 0 at length 20, .* that retired by then are 0 \(lifetime\.floor_differs\)"),
        (
            "reaches",
            r"reaches says 21 for row 1, and floor is 1 at length 20 and 2 one on; .*\(lifetime\.reaches_differs\)",
        ),
        ("inverse", r"it has reaches, and no floor that .*\(lifetime\.reaches_differs\)"),
        ("scalar", r"floor of \d+ numbers is 0; it must be an int64 array .*\(lifetime\.no_numbers\)"),
        (
            "blocks",
            r"every 1 tokens, and at length 0 rows none are kept, at 1 0, "
            r"where none were due \(lifetime\.repeats_differs\)",
        ),
        ("beginning", r"retained\(18\) is 18, and retained\(19\) 19 \(lifetime\.repeats_differs\)"),
        ("lettered", r"repeats\(\) is 'x'; it must be a pair of whole numbers: .*\(lifetime\.no_period\)"),
        ("many", r"entries\(0\) is 1, more rows than there are \(lifetime\.more_than_there_are\)"),
        ("fewlive", r"entries\(20\) is 19, and 20 rows are alive .*\(lifetime\.more_than_it_says\)"),
        ("texts", r"is 'none'; it must be a tuple of ranges \(lifetime\.no_ranges\)"),
        ("raises", r"retained\(17\) raised ZeroDivisionError: .*\(lifetime\.fails\)"),
    ],
)
def test_a_lifetime_that_breaks_a_promise_is_refused(lifetime: str, words: str) -> None:
    """It is tried out when the storage is planned, before any memory is there."""
    with refused(words):
        storage_with(layers=[{"index": 0, "layout": "good", "lifetime": lifetime}])


@pytest.mark.usefixtures("stranger")
def test_a_lifetime_that_goes_wrong_far_out_is_caught_as_rows_retire() -> None:
    """At a length that was not tried out: the step stops, and frees nothing that is needed."""
    layers = [{"index": 0, "layout": "good"}, {"index": 1, "layout": "good", "lifetime": "late"}]
    storage = storage_with(layers=layers)
    row = storage.open()
    with refused(r"at length 16\d\d rows 0-1\d\d\d have retired, and 19 are needed.*retires_what_it_needs"):
        for length in range(20, 1700, 9):
            assert storage.step(np.array([row]), np.array([length]))
    storage.chain.verify()
    assert length >= 1600


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("twice", r"take\(\d\) returned page \d+ twice \(holes\.page_twice\)"),
        ("strange", r"take\(\d\) returned page \d+, which is no hole \(holes\.no_hole\)"),
        ("few", r"take\(3\) returned 2 pages where 3 were due \(holes\.wrong_count\)"),
        ("raising", r"take\(3\) raised KeyError: 'x' \(holes\.raised\)"),
        ("list", r"take\(3\) returned \[.*\], no int64 array of one dimension \(holes\.no_pages\)"),
    ],
)
def test_a_hole_order_that_breaks_a_promise_is_caught(order: str, words: str) -> None:
    """The take that asked keeps no page and no id: the storage is as it was, and goes on to say so."""
    storage = storage_with(layers=[{"index": 0, "layout": "good"}], policies={"holes": order})
    rows = storage.open_batch(3)
    assert storage.step(rows, np.array([16, 16, 16]))
    storage.close(rows[1:2])
    before = storage.stats(), [band.live for band in storage.chain.bands.values()]
    row = storage.open()
    with refused(words):
        storage.step(np.array([row]), np.array([12]))
    assert (storage.stats(), [band.live for band in storage.chain.bands.values()]) == before
    storage.verify()


@pytest.mark.usefixtures("stranger")
def test_a_hole_order_that_keeps_the_frontier_out_is_caught() -> None:
    """Holes at a frontier go back to the arena; an order that keeps them would starve the others."""
    storage = storage_with(layers=[{"index": 0, "layout": "good"}], policies={"holes": "stuck"})
    rows = storage.open_batch(2)
    assert storage.step(rows, np.array([16, 16]))
    with refused(r"drop_above\(\d+\) dropped 0 pages of a run of \d.*\(holes\.run_is_not_whole\)"):
        storage.close(rows)


@pytest.mark.usefixtures("stranger")
def test_at_check_level_0_answers_are_believed() -> None:
    """Nothing stands between the chain and the policy then; the sums of ``verify`` still find what went wrong."""
    sections: dict[str, Any] = {"policies": {"holes": "twice"}, "checks": {"level": 0}}
    storage = storage_with(layers=[{"index": 0, "layout": "good"}], **sections)
    assert type(storage.chain.bands["full"].holes).__name__ == "TwiceHoles"


def test_what_comes_with_kvarena_is_not_looked_at_twice() -> None:
    """The step path is as it was for the policies that are proved by their own tests."""
    layers = [{"index": 0, "layout": "mha", "kv_heads": 1, "head_dim": 8}]
    storage = storage_with(layers=layers)
    assert {type(band.holes).__name__ for band in storage.chain.bands.values()} == {"NearestHoles"}


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("compaction", "words"),
    [
        ("backwards", r"moves\(\d+, \d+\) answered -3; 0 is for none \(compaction\.fewer_than_none\)"),
        ("leaves", r"moves\(\d+, \d+\) raised SystemExit: 0 \(compaction\.raised\)"),
        ("halves", r"answered 0\.5 where a whole number was asked for \(policy\.no_whole_number\)"),
    ],
)
def test_a_compaction_that_asks_for_nonsense_is_caught(compaction: str, words: str) -> None:
    """Nothing has moved."""
    storage = storage_with(policies={"compaction": compaction})
    rows = storage.open_batch(3)
    assert storage.step(rows, np.array([16, 16, 16]))
    storage.close(rows[:1])
    with refused(words):
        storage.flush()
    storage.verify()


@pytest.mark.usefixtures("stranger")
def test_a_placement_outside_its_reach_is_caught() -> None:
    """Nothing was taken."""
    layers = [
        {"index": 0, "layout": "good"},
        {"index": 1, "layout": "good", "lifetime": "window", "window": 9},
        {"index": 2, "layout": "good", "lifetime": "chunk", "chunk": 8},
    ]
    storage = storage_with(layers=layers, policies={"placement": "afar"})
    row = storage.open()
    with refused(r"start\(\d+, \d+\) answered \d+, which lies outside \(placement\.outside\)"):
        storage.step(np.array([row]), np.array([4]))
    assert not any(band.live for band in storage.chain.bands.values())
    storage.verify()


@pytest.mark.usefixtures("stranger")
def test_an_eviction_policy_that_names_no_piece_is_caught() -> None:
    """What it named stays in the cache, and so does everything else."""
    storage = storage_with(prefix={"share": True, "eviction": "forgets"})
    tree = PrefixTree(storage, Catalog.installed().load("policies", "forgets")())
    rows = storage.open_batch(1)
    assert storage.step(rows, np.array([8]))
    tree.insert(int(rows[0]), np.arange(8), 8)
    storage.close(rows)
    with refused(r"pop\(\) returned piece \d+, which there is not.*\(prefix_tree\.policy_chose_no_piece\)"):
        tree.evict(lambda _: False)
    assert tree.stats().entries == 1


@pytest.mark.usefixtures("stranger")
def test_a_backend_that_completes_forwards_out_of_order_is_caught() -> None:
    """The later event is done and the earlier is not: named before anything is processed."""
    storage, flights = flying_on("overtakes", "wrong")
    words = r"event of forward 2 is done and that of forward 1 is not, .*\(device\.event_out_of_order\)"
    with refused(words) as caught:
        storage.forwards.process(flights[0])
    assert str(caught.value).startswith("backend 'overtakes' ")
    assert storage.chain.ledger.steps.processed == 0


@pytest.mark.usefixtures("stranger")
def test_a_backend_that_comes_back_before_an_event_is_caught() -> None:
    """The host has waited for the staging of a mirror, and its last update still runs."""
    with refused(r"synchronize returned and the event .* is not done \(device\.event_not_done_after_wait\)"):
        flying_on("overtakes", "wrong", count=12)


def flying_on(backend: str, switch: str, count: int = 2) -> tuple[Storage, list[Forward]]:
    """A storage on a backend that is wrong from now on, and forwards that were launched and recorded."""
    storage = storage_with(backend=backend, arena={"forwards_in_flight": count, "mirrors": count > 2})
    setattr(type(storage.device), switch, True)
    row = storage.open()
    flights = []
    for step in range(count):
        ids = storage.step(np.array([row]), np.array([4 * step + 4]))
        assert ids
        flights.append(storage.forwards.launch(ids))
        storage.forwards.record(flights[-1])
    return storage, flights


@pytest.mark.usefixtures("stranger")
def test_a_class_that_cannot_be_made_is_named() -> None:
    """Whatever it raises is one error with the place, the words and the distribution."""
    with pytest.raises(PluginError, match=r"^serve\.toml: policies\.compaction: RuntimeError: no such .*0\.7"):
        storage_with(policies={"compaction": "crashes"})


def test_a_command_says_it_in_one_line(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``kvarena plan`` exits with 2, and shows no traceback."""
    config = stranger / "serve.toml"
    config.write_text('[arena]\nmemory = "1MiB"\n[[layers]]\nindex = 0\nlayout = "repeats"\n', encoding="utf-8")
    assert run(["plan", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(r"layout 'good' \(kvarena-strange 0\.7\): two of its fields have the name 'k'", lines[0])
