"""What may happen: each action draws the operations it is made of, or none where it is not possible now."""

from collections.abc import Callable, Mapping

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.draw import Draw
from kvarena.plugins.stress.swarm.scene import LOADING, HostCopy
from kvarena.plugins.stress.swarm.sharing import BETWEEN

UNDER_WAY_MAX = 3
"""So many copies, and as many transfers, are begun before one must end."""


def advance(draw: Draw) -> list[Op]:
    """Rows for the next tokens of a batch, and their forward: as one operation or as several."""
    batch = draw.batch()
    if not batch:
        return []
    before, forward = draw.room_for_a_forward(), draw.name("f")
    names = [guest.name for guest in batch]
    if draw.chance(0.4) and all(guest.length < draw.length_max for guest in batch):
        return [*before, Op("step", {"forward": forward, "requests": names, "rows": 1})]
    grow = {
        guest.name: min(draw.length_max, guest.length + (0 if guest.length > guest.written else draw.growth()))
        for guest in batch
    }
    launch = Op("launch", {"forward": forward, "requests": names})
    return [*before, Op("extend", {"to": grow}), launch]


def process(draw: Draw) -> list[Op]:
    """The oldest forward's result is processed; now and then somebody tries it out of turn."""
    flying = draw.scene.flying
    if not flying or (len(flying) < draw.world.in_flight and draw.patient()):
        return []
    if len(flying) > 1 and draw.chance(draw.world.misuse):
        return [Op("process", {"forward": flying[-1]})]
    return [Op("process", {"forward": flying[0]})]


def start(draw: Draw) -> list[Op]:
    """A new request takes the rows of its prompt."""
    if len(draw.scene.guests) >= draw.guests_max and not draw.chance(0.1):
        return []
    rows = min(draw.size(draw.world.prompt_max), draw.length_max)
    name = draw.name("r")
    asked = [Op("admit", {"request": name, "prompt": rows, "output": draw.size(8)})] if draw.chance(0.2) else []
    return [*asked, Op("take", {"request": name, "rows": rows})]


def finish(draw: Draw) -> list[Op]:
    """A request ends, whatever runs on its pages; its first pages may go to the cache."""
    guest = draw.pick([guest for guest in draw.scene.ready() if not guest.saving])
    if guest is None:
        return []
    if guest.written >= guest.length and not guest.reserved and draw.chance(0.4) and draw.world.weights["cache"]:
        at_end = draw.has_state and not guest.length % draw.page and draw.chance(0.7)
        return [Op("finish", {"request": guest.name, "entry": draw.name("e")} | ({"state": True} if at_end else {}))]
    return [Op("finish", {"request": guest.name})]


def abort(draw: Draw) -> list[Op]:
    """A request ends at once; the transfer that fills it goes on."""
    guests = draw.scene.guests.values()
    guest = draw.pick([guest for guest in guests if not guest.saving and guest.state != LOADING])
    return [Op("abort", {"request": guest.name})] if guest else []


def retract(draw: Draw) -> list[Op]:
    """A running request gives back all that it holds."""
    guest = draw.pick([guest for guest in draw.scene.ready() if not guest.saving])
    return [Op("retract", {"request": guest.name})] if guest else []


def free(draw: Draw) -> list[Op]:
    """A request gives back its last rows."""
    guest = draw.pick([g for g in draw.scene.ready() if g.length > 1 and not (g.saving or g.reserved)])
    if guest is None:
        return []
    first = guest.length - draw.size(min(4, guest.length - 1))
    return [Op("free", {"request": guest.name, "pieces": [[first, guest.length]]})]


def draft(draw: Draw) -> list[Op]:
    """Rows for drafts are reserved, and a forward writes them."""
    written = [guest for guest in draw.batch() if guest.written >= guest.length]
    batch = [guest for guest in written if guest.length + 1 < draw.length_max]
    if not batch:
        return []
    to = {guest.name: min(draw.length_max, guest.length + draw.rng.randint(1, 5)) for guest in batch}
    draw.scene.open_drafts = True
    launch = Op("launch", {"forward": draw.name("f"), "requests": list(to)})
    return [*draw.room_for_a_forward(), Op("reserve", {"to": to}), launch]


def commit(draw: Draw) -> list[Op]:
    """Some of the drafts are kept, the pages beyond them come back."""
    drafted = [guest for guest in draw.scene.guests.values() if guest.reserved]
    if not drafted:
        return []
    chosen = draw.rng.sample(drafted, draw.rng.randint(1, len(drafted)))
    kept = {guest.name: draw.rng.randint(guest.length, max(guest.length, guest.reserved)) for guest in chosen}
    return [Op("commit", {"to": kept})]


def cache(draw: Draw) -> list[Op]:
    """A request's first pages go to the cache; it goes on reading them. Where there are states, one is needed too."""
    if draw.has_state and not draw.chance(draw.world.misuse):
        return []
    written = [guest for guest in draw.scene.ready() if guest.length and guest.written >= guest.length]
    guest = draw.pick([guest for guest in written if not (guest.reserved or guest.saving)])
    return [Op("cache", {"request": guest.name, "entry": draw.name("e")})] if guest else []


def evict(draw: Draw) -> list[Op]:
    """An entry is locked, let go or given back; it may be one that a request reads, and stays then."""
    scene = draw.scene
    entries = [name for name in scene.entries if not scene.saving_entry.get(name)]
    if not entries:
        return []
    name = draw.rng.choice(entries)
    if draw.scene.entries[name]:
        return [Op("unlock", {"entry": name})]
    return [Op("lock" if draw.chance(0.2) else "evict", {"entry": name})]


def backup(draw: Draw) -> list[Op]:
    """A host copy of a request's or an entry's pages."""
    if len(draw.scene.copies) >= UNDER_WAY_MAX:
        return []
    copy = {"copy": draw.name("c")}
    if draw.scene.entries and draw.chance(0.4):
        return [Op("backup", copy | {"entry": draw.rng.choice(list(draw.scene.entries))})]
    written = [guest for guest in draw.scene.ready() if guest.length and guest.written >= guest.length]
    guest = draw.pick([guest for guest in written if not guest.reserved])
    return [Op("backup", copy | {"request": guest.name})] if guest else []


def load(draw: Draw) -> list[Op]:
    """A request without rows gets those of a backup, or of a host copy that somebody else made."""
    if len(draw.scene.guests) >= draw.guests_max or len(draw.scene.copies) >= UNDER_WAY_MAX:
        return []
    sources = [name for name, rows in draw.scene.saved.items() if rows]
    name = draw.name("r")
    load: dict[str, str | int] = {"copy": draw.name("c"), "request": name}
    if sources and draw.chance(0.5):
        source = draw.rng.choice(sources)
        load |= {"rows": draw.scene.saved[source], "source": source}
    else:
        load |= {"rows": draw.rng.randint(1, draw.length_max)}
    return [Op("take", {"request": name}), Op("load", load)]


def load_at_once(draw: Draw) -> list[Op]:
    """The same, and the copy goes on its stream."""
    ops = load(draw)
    return [*ops, Op("submit", {"copy": ops[-1].arguments["copy"]})] if ops else []


def name(draw: Draw) -> list[Op]:
    """A load that is not submitted lets its pages move, and somebody may want them moved; a backup has none to name."""
    made = [copy for copy in draw.scene.copies.values() if not (copy.is_submitted or copy.is_named)]
    made = made if draw.chance(draw.world.misuse) else [copy for copy in made if copy.is_load]
    if not made:
        return []
    given = {"copy": draw.rng.choice(made).name}
    if draw.chance(0.3):
        given["sub_pool"] = draw.rng.choice(draw.units)[0]
    behind = draw.rng.choice(([], [Op("flush", {})], [Op("relief", {"units": draw.some_units()})], crowd(draw)))
    return [Op("name", given), *behind]


def submit(draw: Draw) -> list[Op]:
    """A copy that is ready goes on its stream; now and then somebody wants its pages before it has ended."""
    ready = [copy for copy in draw.scene.copies.values() if not copy.is_submitted]
    if not ready or draw.patient():
        return []
    copy = draw.rng.choice(ready)
    return [Op("submit", {"copy": copy.name}), *(_right_behind(draw, copy) if draw.chance(0.5) else [])]


def _right_behind(draw: Draw, copy: HostCopy) -> list[Op]:
    """Another reader of what a load writes, or another writer of what it or a backup touches."""
    if not copy.request:
        return crowd(draw)
    if copy.is_load and draw.chance(0.5):
        again, moved = draw.name("c"), draw.name("t")
        choices = [
            [Op("backup", {"copy": again, "request": copy.request}), Op("submit", {"copy": again})],
            [Op("flush", {})],
            [Op("relief", {"units": draw.some_units()})],
        ]
        if draw.world.weights["send"]:
            choices.append([Op("send", {"transfer": moved, "request": copy.request})])
        return draw.rng.choice(choices)
    return [Op("abort", {"request": copy.request}), *(load_at_once(draw) if draw.chance(0.3) else crowd(draw))]


def end(draw: Draw) -> list[Op]:
    """A submitted copy is over, says the integration; of a load it may say so before it has ended."""
    running = [copy for copy in draw.scene.copies.values() if copy.is_submitted]
    if not running or draw.patient():
        return []
    copy = draw.rng.choice(running)
    return [Op("end", {"copy": copy.name, "wait": not copy.is_load or draw.chance(0.5)})]


def cancel(draw: Draw) -> list[Op]:
    """A copy that is not submitted is given up; now and then somebody tries it later than that."""
    late = draw.chance(draw.world.misuse)
    copies = [copy for copy in draw.scene.copies.values() if copy.is_submitted == late]
    return [Op("cancel", {"copy": draw.rng.choice(copies).name})] if copies else []


def copy_state(draw: Draw) -> list[Op]:
    """A match's state: one request's slots to another's, on the allocator's stream."""
    return state_pair(draw, "")


def checkpoint(draw: Draw) -> list[Op]:
    """Only while a forward is open: its state is copied behind its kernels."""
    return []


def state_pair(draw: Draw, forward: str) -> list[Op]:
    """Two requests, the first of which has a state; behind the kernels of this forward, if one is named."""
    scene = draw.scene
    if not draw.has_state:
        return []
    ran = [guest for guest in scene.ready() if guest.has_run]
    if forward:
        ran = [guest for guest in ran if guest.name in scene.open_batch]
    source = draw.pick(ran)
    others = [guest for guest in scene.ready() if guest is not source and not guest.sending]
    targets = [guest for guest in others if guest.name not in scene.open_batch]
    target = draw.pick(targets)
    if source is None or target is None:
        return []
    pair = {"source": source.name, "target": target.name}
    return [Op("copy_state", pair | ({"forward": forward} if forward else {}))]


def send(draw: Draw) -> list[Op]:
    """An engine reads a request's pages."""
    if len(draw.scene.transfers) >= UNDER_WAY_MAX:
        return []
    written = [guest for guest in draw.scene.ready() if guest.length and guest.written >= guest.length]
    guest = draw.pick([guest for guest in written if not guest.reserved])
    return [Op("send", {"transfer": draw.name("t"), "request": guest.name})] if guest else []


def receive(draw: Draw) -> list[Op]:
    """A new request's rows come from a peer."""
    if len(draw.scene.guests) >= draw.guests_max or len(draw.scene.transfers) >= UNDER_WAY_MAX:
        return []
    name, rows = draw.name("r"), min(draw.size(draw.world.prompt_max), draw.length_max)
    return [Op("take", {"request": name}), Op("recv", {"transfer": draw.name("t"), "request": name, "rows": rows})]


def publish(draw: Draw) -> list[Op]:
    """The peer learns the pages of a receive."""
    held = [one for one in draw.scene.transfers.values() if one.is_receive and not one.is_published]
    held = [one for one in held if one.request in draw.scene.guests]
    return [] if not held or draw.patient() else [Op("publish", {"transfer": draw.rng.choice(held).name})]


def peer_write(draw: Draw) -> list[Op]:
    """The peer writes what it was told of."""
    told = [one for one in draw.scene.transfers.values() if one.is_published and not one.is_written]
    return [Op("peer_write", {"transfer": draw.rng.choice(told).name})] if told else []


def release(draw: Draw) -> list[Op]:
    """A transfer is proven over."""
    guests = draw.scene.guests
    over = [
        one
        for one in draw.scene.transfers.values()
        if one.is_written or not one.is_receive or one.request not in guests
    ]
    return [] if not over or draw.patient() else [Op("release", {"transfer": draw.rng.choice(over).name})]


def flush(draw: Draw) -> list[Op]:
    """Holes are closed, as far as nobody waits for it. Now and then holes are made that a forward leaves behind,
    and a crowd comes right after the flush: it finds what was moved from still read.
    """
    ops = [Op("flush", {})]
    batch = [guest for guest in draw.batch() if guest.length < draw.length_max]
    leaving = [guest for guest in draw.scene.ready() if guest not in batch and not guest.saving]
    if batch and leaving and draw.chance(0.6):
        done = [Op("process", {"forward": name}) for name in draw.scene.flying]
        gone = [Op("finish", {"request": guest.name}) for guest in leaving[:2]]
        running = draft(draw) if draw.chance(0.3) and draw.world.weights["draft"] else []
        step = Op("step", {"forward": draw.name("f"), "requests": [guest.name for guest in batch]})
        ops = [*done, *gone, *(running or [step]), *ops]
    return [*ops, *crowd(draw)] if draw.chance(0.6) else ops


def crowd(draw: Draw) -> list[Op]:
    """Several who want pages, one right after another."""
    received = receive(draw) if draw.world.weights["receive"] else []
    some = [start(draw), advance(draw), received, load_at_once(draw)]
    draw.rng.shuffle(some)
    return [op for ops in some[:2] for op in ops]


def relief(draw: Draw) -> list[Op]:
    """A take so large that pages must move for it, if it fits at all."""
    return [Op("relief", {"units": draw.some_units()})]


def ask(draw: Draw) -> list[Op]:
    """A question that changes nothing, or a look at everything a request reads."""
    if draw.chance(0.3):
        guest = draw.pick([guest for guest in draw.scene.ready() if not guest.reserved])
        if guest is not None:
            return [Op("read", {"request": guest.name})]
    return [Op("fits", {"units": draw.some_units()})]


def turn(draw: Draw) -> list[Op]:
    """Work lands, as the device's adversary likes."""
    if draw.chance(0.1):
        return [Op("barrier", {})]
    return [Op("turn", {"limit": draw.rng.randint(0, 6)})]


DRAWN: Mapping[str, Callable[[Draw], list[Op]]] = {
    action.__name__: action
    for action in (
        start, advance, finish, abort, retract, free, process, flush, draft, commit, cache, evict, backup, load, name,
        submit, end, cancel, copy_state, checkpoint, send, receive, publish, peer_write, release, relief, ask, turn,
        *BETWEEN,
    )
}  # fmt: skip
"""By the names of ``world.ACTIONS`` and ``world.SHARING``."""
