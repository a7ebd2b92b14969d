"""How any run comes to rest, whatever was left out of it: everybody lets go of all that they hold."""

from collections.abc import Iterator

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.plugins.stress.swarm.scene import Scene


def rest(stage: Stage, scene: Scene) -> Iterator[Op]:
    """One operation after another, each after the one before it was played. What turns out impossible is let be."""
    if scene.open_forward:
        yield Op("record", {"forward": scene.open_forward})
    yield from _copies_and_forwards(stage)
    for name, passage in tuple(stage.transfers.passages.items()):
        if not passage.transfer.released:
            yield Op("release", {"transfer": name})
    for guest in scene.ready():
        if not guest.reserved and guest.name in stage.props.requests:
            yield Op("read", {"request": guest.name})
    for name in tuple(stage.props.requests):
        yield Op("finish", {"request": name})
    for name in tuple(stage.props.units):
        yield Op("free", {"request": name})
    for name in tuple(stage.entries.wishes.known):
        yield Op("abort", {"request": name})
    for name, entry in tuple(stage.entries.known.items()):
        yield from [Op("unlock", {"entry": name})] * entry.locks
    if stage.entries.is_open:
        yield Op("evict", {"pieces": 0})


def _copies_and_forwards(stage: Stage) -> Iterator[Op]:
    steps = stage.storage.chain.ledger.steps
    copies = tuple(stage.copies.under_way.items())
    for name, transport in copies:
        if transport.copy.state == "made":
            yield Op("submit", {"copy": name})
            if transport.copy.state == "made":  # a load of more than its source has
                yield Op("cancel", {"copy": name})
    for name, flight in tuple(stage.forwards.flights.items()):
        if flight.forward.event is not None and flight.forward.number > steps.processed:
            yield Op("process", {"forward": name})
    for name, transport in copies:
        if transport.copy.state == "submitted":
            yield Op("end", {"copy": name})
