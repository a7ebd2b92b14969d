"""What may happen where requests share prefixes: they start from what others computed, and leave theirs for others."""

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.draw import Draw
from kvarena.plugins.stress.swarm.scene import Guest

WISHES_MAX = 2
"""So many requests are matched and not started before one of them starts or is given up."""


def begin(draw: Draw) -> list[Op]:
    """A request that begins like another, or like what the cache has, starts from what is found; at once or later."""
    wishes, found = draw.scene.wishes, _shared(draw)
    if wishes and (len(wishes) >= WISHES_MAX or not found or draw.chance(0.4)):
        name = draw.rng.choice(wishes)
        return [Op("abort" if draw.chance(0.2) else "start", {"request": name})]
    if not found or len(draw.scene.guests) >= draw.guests_max:
        return []
    name, (source, rows) = draw.name("r"), found
    prompt = min(draw.length_max, rows + draw.size(draw.world.prompt_max))
    if prompt <= rows:
        prompt, rows = rows, rows - 1
    given = {"request": name, "shares": {source: rows}, "prompt": prompt, "lock": draw.chance(0.4)}
    match = Op("match", given | ({"namespace": draw.rng.choice(("", "other"))} if draw.chance(0.15) else {}))
    asked = [Op("admit", {"request": name, "prompt": prompt, "output": draw.size(8)})] if draw.chance(0.3) else []
    starts = [Op("start", {"request": name})] if draw.chance(0.7) else []
    return [match, *asked, *starts]


def twin(draw: Draw) -> list[Op]:
    """A request has the tokens of another, and computes them once more: the cache will want one of the two."""
    found = _shared(draw)
    if not found or len(draw.scene.guests) >= draw.guests_max:
        return []
    source, rows = found
    name, length = draw.name("r"), min(draw.length_max, rows + draw.size(2) - 1)
    forward = Op("launch", {"forward": draw.name("f"), "requests": [name]})
    take = Op("take", {"request": name, "rows": length, "shares": {source: rows}})
    if draw.chance(0.3):
        return [take]
    given = {"request": name, "entry": draw.name("e")}
    behind = [] if draw.chance(0.4) else [Op("evict", {"pieces": draw.rng.randint(1, 2)})]
    if not draw.has_state and length >= draw.page:
        behind.append(Op("cache", given | {"tokens": min(length, rows) // draw.page * draw.page}))
    elif draw.grid and not length % draw.grid:
        behind.append(Op("checkpoint", given))
    return [*draw.room_for_a_forward(), take, forward, *behind]


def insert(draw: Draw) -> list[Op]:
    """A request's rows up to some page go to the cache, as soon as they are written; or with its state, at a point."""
    guest = draw.pick([guest for guest in _settled(draw) if guest.length >= draw.page])
    if guest is None:
        return []
    entry = {"request": guest.name, "entry": draw.name("e")}
    if not draw.has_state:
        pages = draw.rng.randint(max(1, guest.length // draw.page - 1), guest.length // draw.page)
        return [Op("cache", entry | {"tokens": pages * draw.page})]
    if draw.grid and not guest.length % draw.grid:
        return [Op("checkpoint", entry)]
    return []


def offer(draw: Draw) -> list[Op]:
    """A request comes to a point of the grid, with a slot to keep its state in if one is to be had."""
    if not draw.grid:
        return []
    near = [guest for guest in _settled(draw) if (guest.length // draw.grid + 1) * draw.grid <= draw.length_max]
    guest = draw.pick([guest for guest in near if not guest.sending])
    if guest is None:
        return []
    point = (guest.length // draw.grid + 1) * draw.grid
    others = [one for one in draw.batch() if one is not guest and one.length > 0 and draw.chance(0.3)]
    launch = Op("launch", {"forward": draw.name("f"), "requests": [guest.name, *(one.name for one in others)]})
    spare = [Op("spare", {"request": guest.name})] if draw.chance(0.9) else []
    ahead = _ahead(draw, guest.name, point) if draw.chance(0.4) else []
    return [*draw.room_for_a_forward(), *spare, Op("extend", {"to": {guest.name: point}}), launch, *ahead]


def _ahead(draw: Draw, name: str, point: int) -> list[Op]:
    """The request goes on while the forward that came to the point is not processed."""
    more = min(draw.world.in_flight - 1, draw.length_max - point - 1)
    if more < 1:
        return []
    steps = [Op("step", {"forward": draw.name("f"), "requests": [name]}) for _ in range(more)]
    return [*steps, Op("extend", {"to": {name: point + more + 1}})]


def copied(draw: Draw) -> list[Op]:
    """While a forward is open: the state of one of its requests, at a point of the grid, behind its kernels."""
    guests = [draw.scene.guests[name] for name in draw.scene.open_batch if name in draw.scene.guests]
    guest = draw.pick([guest for guest in guests if draw.grid and guest.length and not guest.length % draw.grid])
    if guest is None:
        return []
    return [Op("checkpoint", {"request": guest.name, "entry": draw.name("e"), "forward": draw.scene.open_forward})]


def narrow(draw: Draw) -> list[Op]:
    """A request has moved on, and lets go of what it has passed of what it reads."""
    guest = draw.pick([guest for guest in draw.scene.ready() if guest.reads and guest.length > guest.reads])
    behind = [Op("evict", {"pieces": draw.rng.randint(1, 3)})] if draw.chance(0.5) else []
    return [Op("narrow", {"request": guest.name}), *behind] if guest else []


def relax(draw: Draw) -> list[Op]:
    """A request moves past what it started from and says so, or says so too early."""
    reading = [guest for guest in _settled(draw) if guest.reads and not guest.sending]
    past = [guest for guest in reading if draw.at_grid(guest.length) >= guest.reads + draw.reach]
    guest = draw.pick(past or reading)
    if guest is None:
        return []
    says = Op("relax", {"request": guest.name})
    length = guest.reads + draw.reach
    length = -(-length // draw.grid) * draw.grid if draw.grid else length
    if guest in past or length > draw.length_max or draw.chance(draw.world.misuse):
        return [says]
    forward = Op("launch", {"forward": draw.name("f"), "requests": [guest.name]})
    return [*draw.room_for_a_forward(), Op("extend", {"to": {guest.name: max(length, guest.length)}}), forward, says]


def shed(draw: Draw) -> list[Op]:
    """The cache gives back some pieces, or all that nobody reads; somebody wants them at once."""
    if not draw.scene.entries:
        return []
    pieces = draw.rng.choice((1, 1, 2, 3, 0))
    behind = [Op("flush", {})] if draw.chance(0.3) else []
    return [Op("evict", {"pieces": pieces}), *behind]


def _settled(draw: Draw) -> list[Guest]:
    """Requests whose rows are all written, and whose pages nobody has named."""
    ready = [guest for guest in draw.scene.ready() if guest.length and guest.written >= guest.length]
    return [guest for guest in ready if not (guest.reserved or guest.saving)]


def _shared(draw: Draw) -> tuple[str, int] | None:
    """A request or an entry that another begins like, and for how many tokens: all of its pages, or fewer."""
    scene = draw.scene
    sources = [(guest.name, guest.length) for guest in scene.guests.values() if guest.length >= draw.page]
    sources += [(name, rows) for name, rows in scene.entry_rows.items() if rows >= draw.page] * 2
    if not sources:
        return None
    source, rows = draw.rng.choice(sources)
    if draw.chance(0.4):
        rows = draw.rng.randint(1, rows)
    return source, min(rows, draw.length_max)


BETWEEN = (begin, twin, insert, offer, narrow, relax, shed)
"""By the names of ``world.SHARING``."""
