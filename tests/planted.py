"""Faults planted in kvarena, each a small patch: what the harness must find, and which cells of CLEARANCE each breaks.

A cell that says *wait* forgets it; a cell that says *none* loses the order that it relies on; a page that a cell
excludes is offered.
"""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.span import Span
from kvarena.bands.still import Still
from kvarena.bands.unit_ids import IdPool, UnitIds
from kvarena.chain import relief
from kvarena.chain.chain import Chain
from kvarena.chain.usage import Usage
from kvarena.ledger.batches import NO_PAGES, Batches
from kvarena.ledger.clearance import CLEARANCE, ZERO, Answer, Cell, Clearance
from kvarena.ledger.ledger import Ledger
from kvarena.ledger.steps import ForwardSteps
from kvarena.ledger.timeline import Timeline
from kvarena.ledger.uses import Uses
from kvarena.ledger.writes import Writes
from kvarena.planning.snapshot import BandShot
from kvarena.storage.advance import Retirement
from kvarena.storage.away import Away
from kvarena.storage.copies import Copies
from kvarena.storage.forwards import Forwards
from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.lanes import Lanes
from kvarena.storage.mirrors import Mirrors
from kvarena.storage.transfers import Transfers
from kvarena.terms.ports import HIGH, LOW

Patch = pytest.MonkeyPatch
Cells = tuple[tuple[str, str], ...]


@attrs.frozen
class Fault:
    """One fault. ``within``: operations in which the harness finds it; ``cells``: those of the table that it breaks."""

    name: str
    plant: Callable[[Patch], None]
    within: int = 20_000
    cells: Cells = ()

    def __str__(self) -> str:
        return self.name


FAULTS: list[Fault] = []


def fault(
    name: str, *, within: int = 20_000, cells: Cells = ()
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Add a fault to the list."""

    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS.append(Fault(name, plant, within, cells))
        return plant

    return add


def before(patch: Patch, owner: Any, name: str, first: Callable[..., None]) -> None:
    """Do something else first."""
    original = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return original(*args, **kwargs)

    patch.setattr(owner, name, both)


def instead(patch: Patch, owner: Any, name: str, other: Callable[..., Any]) -> None:
    """``other`` is called with the original in front."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: other(original, *args, **kwargs))


# -- the table


def relaxed(patch: Patch, *pairs: tuple[str, str]) -> None:
    """These cells answer: nothing."""
    cells = {**CLEARANCE.cells, **{pair: Cell(Answer.NONE, "planted") for pair in pairs}}
    table = Clearance(CLEARANCE.actors, CLEARANCE.hazards, cells)
    original = Ledger.__init__
    patch.setattr(
        Ledger,
        "__init__",
        lambda self, device, in_flight=0, clearance=table, **more: original(self, device, in_flight, table, **more),
    )


FORGOTTEN: dict[str, Cells] = {
    "a page taken for a forward, zeroed, does not wait a copy that reads it": (
        ("ZERO", "COPY_READ"), ("FORWARD", "COPY_READ"),
    ),
    "a page taken for a forward, zeroed, does not wait a copy that writes it": (
        ("ZERO", "COPY_WRITE"), ("FORWARD", "COPY_WRITE"), ("FORWARD_READ", "COPY_WRITE"),
    ),
    "a forward writes a page that a backup reads": (("FORWARD", "COPY_READ"),),
    "a forward reads a page that a load writes": (("FORWARD_READ", "COPY_WRITE"),),
    "a vacated page is zeroed under its last reader": (("ZERO", "FORWARD"),),
    "a move or a state copy overwrites what a backup reads": (("SCHEDULE_COPY", "COPY_READ"),),
    "a move or a state copy overwrites, or reads, what a load writes": (
        ("SCHEDULE_COPY", "COPY_WRITE"), ("SCHEDULE_READ", "COPY_WRITE"),
    ),
    "a move or a state copy reads what a load writes": (("SCHEDULE_READ", "COPY_WRITE"),),
    "a load overwrites what a backup reads": (("HOST_LOAD", "COPY_READ"),),
    "a backup reads what a load writes": (("HOST_SAVE", "COPY_WRITE"),),
    "a receive is handed a page that a backup reads": (("ZERO", "COPY_READ"), ("NETWORK_RECEIVE", "COPY_READ")),
    "a receive is handed a page that a load writes": (("ZERO", "COPY_WRITE"), ("NETWORK_RECEIVE", "COPY_WRITE")),
    "a receive is handed a vacated page": (("ZERO", "FORWARD"), ("NETWORK_RECEIVE", "FORWARD")),
    "a send reads what a load writes": (("NETWORK_SEND", "COPY_WRITE"),),
}  # fmt: skip

for _name, _pairs in FORGOTTEN.items():
    FAULTS.append(Fault(_name, lambda patch, pairs=_pairs: relaxed(patch, *pairs), 60_000, _pairs))


@fault("forwards run on two streams in turn", cells=(("FORWARD", "FORWARD"), ("FORWARD_READ", "FORWARD")))
def two_forward_streams(patch: Patch) -> None:
    """The order that FORWARD and FORWARD_READ rely on is gone."""

    def turn(forwards: Forwards, *args: Any, **kwargs: Any) -> None:
        timeline = forwards._timeline
        if timeline.overlaps:
            streams = timeline.__dict__.setdefault("planted", [timeline.forward, timeline.device.stream("forward 2")])
            streams.reverse()
            timeline.forward = streams[0]

    before(patch, Forwards, "launch", turn)


def unordered_lane(patch: Patch, lane: str) -> None:
    """A copy's stream waits the allocator's and not the forwards'."""

    def behind(original: Any, lanes: Lanes, name: str) -> Any:
        timeline = lanes._ledger.timeline
        if name != lane or not timeline.overlaps:
            return original(lanes, name)
        stream = lanes._streams.setdefault(name, None) or timeline.device.stream(name)
        lanes._streams[name] = stream
        timeline.hand(stream)
        return stream

    instead(patch, Lanes, "behind", behind)


@fault("the stream of loads does not wait the forwards", within=60_000, cells=(("HOST_LOAD", "FORWARD"),))
def loads_beside_forwards(patch: Patch) -> None:
    """HOST_LOAD relies on it."""
    unordered_lane(patch, "load")


@fault(
    "a load overwrites what another load writes, on a stream of its own",
    within=60_000,
    cells=(("HOST_LOAD", "COPY_WRITE"),),
)
def loads_beside_loads(patch: Patch) -> None:
    """One stream orders all loads, so the wait is also forgotten only where there are more."""
    relaxed(patch, ("HOST_LOAD", "COPY_WRITE"))
    numbers = itertools.count()

    def behind(original: Any, lanes: Lanes, name: str) -> Any:
        if name == "load":
            lanes._streams[name] = lanes._ledger.timeline.device.stream(f"load {next(numbers)}")
        return original(lanes, name)

    instead(patch, Lanes, "behind", behind)


@fault("the stream of backups does not wait the forwards", cells=(("HOST_SAVE", "FORWARD"),))
def saves_beside_forwards(patch: Patch) -> None:
    """HOST_SAVE relies on it."""
    unordered_lane(patch, "save")


@fault("a send's engine does not start behind the forwards", cells=(("NETWORK_SEND", "FORWARD"),))
def sends_beside_forwards(patch: Patch) -> None:
    """NETWORK_SEND starts after retire."""
    unordered_lane(patch, "transfer")


@fault(
    "a state copy does not wait the forwards that write",
    cells=(("SCHEDULE_READ", "FORWARD"), ("SCHEDULE_COPY", "FORWARD")),
)
def state_copies_beside_forwards(patch: Patch) -> None:
    """SCHEDULE_READ and SCHEDULE_COPY rely on recorded writes."""
    patch.setattr(Writes, "newest", lambda self, name, pages: 0)


def offered(patch: Patch, hazard: str, actor: str) -> None:
    """Pages under this hazard that lost their owner are had in place of others by this actor, and it does not ask."""
    relaxed(patch, (actor, hazard), ("ZERO", hazard), ("FORWARD", hazard))

    def take(original: Any, band: Span, ids: Any, start: int, stop: int, actors: Any = ()) -> Any:
        pages = original(band, ids, start, stop, actors)
        return swapped(band, ids, pages, actors)

    def reuse(original: Any, band: Span, ids: Any, actors: Any = ()) -> Any:
        pages = original(band, ids, actors)
        return swapped(band, ids, pages, actors)

    def swapped(band: Span, ids: Any, pages: Any, actors: Any) -> Any:
        if actor not in [one.name for one in actors]:
            return pages
        uses = [use for use in band.ledger.uses if use.hazard.name == hazard and band.grid.name in use.pages]
        under = [use.pages[band.grid.name].pages for use in uses]
        kept = band.still.reserved
        there = kept[np.isin(kept, np.concatenate([NO_PAGES, *under]))][: len(pages)]
        if len(there):
            pages = pages.copy()
            given, pages[: len(there)] = pages[: len(there)].copy(), there
            band.ids.unbind(ids[: len(there)])
            band.ids.bind(ids[: len(there)], there)
            band.still.reserved = np.sort(np.concatenate((np.setdiff1d(band.still.reserved, there), given)))
        return pages

    instead(patch, Span, "take", take)
    instead(patch, Span, "reuse", reuse)


for _hazard in ("NETWORK_SEND", "NETWORK_RECEIVE"):
    for _actor in ("FORWARD", "ZERO", "HOST_LOAD", "NETWORK_RECEIVE"):
        FAULTS.append(
            Fault(
                f"{_actor} is offered a page under {_hazard}",
                lambda patch, hazard=_hazard, actor=_actor: offered(patch, hazard, actor),
                60_000,
                ((_actor, _hazard),),
            )
        )


@fault(
    "a compaction moves onto a page under a transfer",
    cells=(
        ("SCHEDULE_COPY", "NETWORK_SEND"),
        ("SCHEDULE_COPY", "NETWORK_RECEIVE"),
        ("SCHEDULE_READ", "NETWORK_RECEIVE"),
    ),
)
def moves_under_transfers(patch: Patch) -> None:
    """What a use keeps in place is not kept."""
    relaxed(
        patch,
        ("SCHEDULE_COPY", "NETWORK_SEND"),
        ("SCHEDULE_COPY", "NETWORK_RECEIVE"),
        ("SCHEDULE_READ", "NETWORK_RECEIVE"),
    )
    patch.setattr(Still, "pin", lambda self, use, pages: self._pins.__setitem__(use, NO_PAGES))


@fault("a fixed page is moved", within=60_000, cells=(("SCHEDULE_COPY", "FIXED"), ("SCHEDULE_READ", "FIXED")))
def fixed_pages_move(patch: Patch) -> None:
    """A load's reservation keeps nothing in place, and its copy goes where the pages were."""

    def fix(still: Still, pages: Any) -> None:
        still.fixed = np.sort(np.concatenate((still.fixed, pages)))

    patch.setattr(Still, "fix", fix)
    patch.setattr(Still, "unfix", lambda self, pages: setattr(self, "fixed", self.fixed[:0]))
    known: dict[int, dict[str, Any]] = {}

    def load(original: Any, copies: Copies, *args: Any) -> Any:
        copy = original(copies, *args)
        if copy:
            bands = copies._maps.chain.bands
            known[id(copy)] = {name: bands[name].ids.pages_of(ids).copy() for name, ids in copy.ids.items()}
        return copy

    def submit(original: Any, copies: Copies, copy: Any, hosts: Any) -> Any:
        stale = known.pop(id(copy), None)
        if stale is None:
            return original(copies, copy, hosts)
        kind = type(copies._ledger.timeline.device)
        with pytest.MonkeyPatch.context() as inner:
            instead(
                inner, kind, "load",
                lambda to, device, stream, host, places, pages: to(
                    device, stream, host, places, pages._replace(pages=stale[pages.kind])
                ),
            )  # fmt: skip
            return original(copies, copy, hosts)

    instead(patch, Copies, "load", load)
    instead(patch, Copies, "submit", submit)


@fault(
    "a page of a load is offered while it is reserved",
    within=60_000,
    cells=(("FORWARD", "FIXED"), ("ZERO", "FIXED"), ("HOST_LOAD", "FIXED"), ("NETWORK_RECEIVE", "FIXED")),
)
def fixed_pages_are_offered(patch: Patch) -> None:
    """What is fixed goes on the list of holes as well, whoever asks."""

    def fix(original: Any, usage: Usage, name: str, ids: Any) -> None:
        original(usage, name, ids)
        band = usage._bands[name]
        band.holes.add(band.ids.pages_of(ids[:1]))

    instead(patch, Usage, "fix", fix)


@fault("a forward runs on rows that are still to be loaded", within=60_000, cells=(("FORWARD_READ", "FIXED"),))
def launch_before_submit(patch: Patch) -> None:
    """Who holds a fixed page reads it as it is: a row that is away must not run."""
    patch.setattr(Away, "check_none", lambda self, rows, **words: None)
    instead(patch, Forwards, "launch", _with_rows_at_home)


def _with_rows_at_home(original: Any, forwards: Forwards, ids: Any = None) -> Any:
    away = forwards._maps.table.away
    holds, away.holds = away.holds, np.zeros_like(away.holds)
    try:
        return original(forwards, ids)
    finally:
        away.holds = holds


# -- pages and their lives


@fault("a page freed under a forward is a hole at once")
def nothing_pends(patch: Patch) -> None:
    """Nothing pends."""
    patch.setattr(ForwardSteps, "keying", property(lambda self: 0))


@fault("a vacated page is a hole at once")
def nothing_is_vacated(patch: Patch) -> None:
    """A move's source is free although a forward reads it."""
    patch.setattr(ForwardSteps, "reading", property(lambda self: 0))


@fault("a frontier retreats over pending pages")
def retreat_over_pending(patch: Patch) -> None:
    """The batch is dropped from the span with the holes."""

    def let_go(original: Any, band: Span, pages_freed: Any) -> None:
        original(band, pages_freed)
        if not isinstance(band, Band):
            return
        pages = set(band.pending.pages().tolist())
        step, edge = (-1, band.stop - 1) if band.grid.end is LOW else (1, band.start)
        gone = []
        while edge in pages:
            gone.append(edge)
            edge += step
        if gone:
            left = [(key, np.setdiff1d(np.concatenate(parts), gone)) for key, parts in band.pending._batches]
            band.pending.__init__()  # type: ignore[misc]
            for key, some in left:
                band.pending.add(key, some)
            if band.grid.end is LOW:
                band.stop = edge + 1
            else:
                band.start = edge
            band.absorb()

    instead(patch, Span, "let_go", let_go)


def shifted(patch: Patch, pick: Callable[[BandShot], bool], **shift: int) -> None:
    """A band's snapshot says another frontier."""

    def shot(original: Any, span: Span, **which: bool) -> BandShot:
        found: BandShot = original(span, **which)
        if not pick(found) or not found.live:
            return found
        return found._replace(**{name: getattr(found, name) + by for name, by in shift.items()})

    instead(patch, Span, "shot", shot)


@fault("the frontier of the low end is one page short")
def low_frontier(patch: Patch) -> None:
    """Off by one."""
    shifted(patch, lambda shot: shot.end is LOW, stop=-1)


@fault("the frontier of the high end is one page short")
def high_frontier(patch: Patch) -> None:
    """Off by one."""
    shifted(patch, lambda shot: shot.end is HIGH, start=1)


@fault("a float's lower frontier is one page short")
def float_start(patch: Patch) -> None:
    """Off by one."""
    shifted(patch, lambda shot: shot.end is None, start=1)


@fault("a float's upper frontier is one page short")
def float_stop(patch: Patch) -> None:
    """Off by one."""
    shifted(patch, lambda shot: shot.end is None, stop=-1)


@fault("of two batches with one key the second is dropped")
def batch_dropped(patch: Patch) -> None:
    """Its pages are never holes again."""

    def add(original: Any, self: Batches, forward: int, pages: Any) -> None:
        if not self._batches or self._batches[-1][0] != forward:
            original(self, forward, pages)

    instead(patch, Batches, "add", add)


@fault("processing releases one batch too many")
def one_batch_too_many(patch: Patch) -> None:
    """Pages of the next forward too."""
    instead(patch, Batches, "through", lambda original, self, forward: original(self, forward + 1))


@fault("what pends is decided by an event")
def event_decides(patch: Patch) -> None:
    """A forward that has landed keys nothing: ranks see that at different times."""

    def keying(steps: ForwardSteps) -> int:
        number = steps.recorded if steps.recorded > steps.processed else 0
        return 0 if number and steps.event_of(number).done() else number

    patch.setattr(ForwardSteps, "keying", property(keying))


@fault("a settled forward is not waited for")
def settle_without_wait(patch: Patch) -> None:
    """The pages are taken, the stream does not wait."""
    patch.setattr(Ledger, "settle", lambda self, forward: self.steps.settle(forward))


@fault("recovery leaves a band's pending pages as they are")
def recovery_forgets(patch: Patch) -> None:
    """Moves go over them."""
    patch.setattr(Chain, "_recover", lambda self: self.ledger.settle(self.ledger.steps.recorded))


@fault("compaction moves pages that a forward writes")
def moves_written_pages(patch: Patch) -> None:
    """The write goes to where the page was."""
    patch.setattr(Writes, "pages", lambda self, name: NO_PAGES)


@fault("compaction does not stop at unknown writes", within=200_000)
def moves_unknown_writes(patch: Patch) -> None:
    """Only the rows that nobody can take back are said to be written, and that is taken for all."""

    def record(original: Any, forwards: Forwards, forward: Any, *, unknown: bool = False, **given: Any) -> None:
        ids, maps = forwards._ids, forwards._maps
        if unknown and ids is not None:
            known = maps.table.lengths[ids.rows]
            given["may_write"] = IterationIds(maps, ids.rows, np.minimum(ids.starts, known), known)
        original(forwards, forward, **given)

    instead(patch, Forwards, "record", record)


@fault("an abort frees the pages of a transfer")
def abort_frees_transfers(patch: Patch) -> None:
    """Nothing is reserved."""
    patch.setattr(Still, "reserve", lambda self, pages: pages)


@fault("a float is moved last page first, in place of first")
def relocation_mixed_up(patch: Patch) -> None:
    """Sources go to each other's targets."""

    def copy(original: Any, band: Any, sources: Any, targets: Any) -> None:
        original(band, sources, targets[::-1] if isinstance(band, FloatBand) else targets)

    instead(patch, relief, "_copy", copy)


@fault("ids follow a move before their time: a copy's targets are mixed up")
def moves_mixed_up(patch: Patch) -> None:
    """Two pages of a compaction change places."""

    def copy(original: Any, band: Any, sources: Any, targets: Any) -> None:
        original(band, sources, targets[::-1] if isinstance(band, Band) else targets)

    instead(patch, relief, "_copy", copy)


@fault("pages are not zeroed on hand-out")
def never_zeroed(patch: Patch) -> None:
    """Foreign bytes reach whoever takes them."""
    patch.setattr(Timeline, "zero_pages", lambda self, unit_bytes, pages: None)


@fault("pages are zeroed before the wait")
def zero_before_wait(patch: Patch) -> None:
    """Zeroing runs beside what it should follow."""

    def hand_out(original: Any, band: Any, pages: Any, actors: Any) -> None:
        if actors and actors[0] is ZERO and band.grid.unit_bytes:
            band.ledger.timeline.zero_pages(band.grid.unit_bytes, pages)
        original(band, pages, actors)

    instead(patch, relief, "hand_out", hand_out)


# -- ids and questions


@fault("feasible says yes")
def feasible_lies(patch: Patch) -> None:
    """Always."""
    patch.setattr(Chain, "feasible", lambda self, demand: True)


@fault("feasible says no to the last unit")
def feasible_shy(patch: Patch) -> None:
    """It asks for one more."""
    instead(patch, Chain, "feasible", lambda original, self, demand: original(self, tuple(n + (n > 0) for n in demand)))


@fault("an id is minted twice")
def minted_twice(patch: Patch) -> None:
    """What came back goes out to two."""

    def accept(original: Any, pool: IdPool, ids: Any) -> None:
        original(pool, ids)
        if len(ids) > 1:
            pool._returned[pool._top - 1] = ids[0]

    instead(patch, IdPool, "accept", accept)


@fault("a map is stale after a move")
def stale_map(patch: Patch) -> None:
    """One id of a move keeps its old page."""

    def rebind(original: Any, ids: UnitIds, sources: Any, targets: Any) -> None:
        kept = ids.owners_of(sources[:1]).copy()
        original(ids, sources, targets)
        if len(sources) > 2:
            ids._pages[kept] = sources[:1]

    instead(patch, UnitIds, "rebind", rebind)


@fault("a window lets go of one page too many")
def retires_too_much(patch: Patch) -> None:
    """Its floor is a page too high."""
    instead(patch, Retirement, "_floor_of" if hasattr(Retirement, "_floor_of") else "newly_retired", _one_more)


def _one_more(original: Any, self: Retirement, table: Any, rows: Any, lengths: Any) -> Any:
    return original(self, table, rows, lengths + self.paging.tokens * (self.name != "full"))


@fault("a commit frees a page that it keeps")
def commit_cuts_too_much(patch: Patch) -> None:
    """One page less."""

    def cut(original: Any, growth: Growth, rows: Any, lengths: Any) -> Any:
        return original(growth, rows, np.maximum(lengths - growth._maps.paging.tokens, 0))

    instead(patch, Growth, "cut", cut)


# -- the ledger and the streams


@fault("a copy's record is left in the ledger")
def record_is_left(patch: Patch) -> None:
    """Its end ends nothing."""
    patch.setattr(Uses, "end", lambda self, use: None)


@fault("the tail of the allocator is not handed over at launch")
def no_tail_at_launch(patch: Patch) -> None:
    """A forward runs beside zeroing and moves."""
    instead(
        patch,
        Timeline,
        "hand",
        lambda original, self, stream: None if stream is self.forward else original(self, stream),
    )


@fault("the tail of the allocator is not handed over to copies")
def no_tail_at_submit(patch: Patch) -> None:
    """A copy runs beside zeroing and moves."""
    instead(
        patch,
        Timeline,
        "hand",
        lambda original, self, stream: original(self, stream) if stream is self.forward else None,
    )


@fault("a receive is published at once")
def published_early(patch: Patch) -> None:
    """The peer writes before the pages are clear."""
    instead(patch, Transfers, "publish", lambda original, self, transfer: original(self, transfer)._replace(after=None))


@fault("the host does not wait for transfers before it moves their pages")
def no_host_wait(patch: Patch) -> None:
    """They are over because it says so."""

    def wait_for_all(usage: Usage) -> None:
        for use in [use for use in usage._pinning if use not in usage._held]:
            usage.end(use)

    patch.setattr(Usage, "wait_for_all", wait_for_all)


@fault("the host waits for transfers behind a stream wait", within=60_000)
def host_wait_after_stream_wait(patch: Patch) -> None:
    """Forwards are settled first."""
    patch.setattr(Timeline, "read_on_host", lambda self, event=None: None)
    before(patch, Usage, "wait_for_all", lambda self: self._ledger.settle(self._ledger.steps.recorded))


@fault("an ended copy is not waited for by later writers", within=60_000)
def ended_is_forgotten(patch: Patch) -> None:
    """The call came before the copy's end."""

    def end(original: Any, usage: Usage, use: Any) -> None:
        timeline = usage._ledger.timeline
        wait, timeline.wait = timeline.wait, lambda event: None  # type: ignore[method-assign]
        try:
            original(usage, use)
        finally:
            timeline.wait = wait  # type: ignore[method-assign]

    instead(patch, Usage, "end", end)


@fault("a mirror's staging is filled while an update reads it")
def staging_reused(patch: Patch) -> None:
    """The ring has one slot, and nobody waits for it."""

    def apply(original: Any, mirrors: Mirrors, *args: Any) -> None:
        mirrors._next, mirrors._ring[0].event = 0, None
        original(mirrors, *args)

    instead(patch, Mirrors, "_apply", apply)


@fault("a mirror's update leaves out its last entry")
def update_cut_short(patch: Patch) -> None:
    """One place keeps what it had."""
    instead(patch, Mirrors, "_gather", lambda original, self: original(self)[:-1])


@fault("a checkpoint's copy is not among the writes of its forward", within=100_000)
def checkpoint_unrecorded(patch: Patch) -> None:
    """A state copy from there does not wait."""
    patch.setattr(Forwards, "also_writes", lambda self, slots: None)


@fault("what a forward writes is recorded without its last page")
def writes_cut_short(patch: Patch) -> None:
    """A page that it writes may move."""
    instead(
        patch, Forwards, "_written",
        lambda original, self, ids: {name: pages[:-1] for name, pages in original(self, ids).items()},
    )  # fmt: skip
