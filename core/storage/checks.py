"""What can be checked of a storage from outside a step: what is left when nothing runs, and each row's bounds."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.storage.copies import Copies
from kvarena.storage.ownership import Ownership
from kvarena.storage.requests import RequestTable
from kvarena.storage.transfers import Transfers
from kvarena.terms.errors import InvariantError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import STRICT, broken, invariant

_log = event_log()


class Kept(Protocol):
    """What a storage keeps of its requests: a ``Storage`` is one."""

    chain: Chain
    requests: RequestTable
    ownership: Ownership
    copies: Copies
    transfers: Transfers


def check_idle(storage: Kept) -> tuple[str, ...]:
    """What is wrong with a storage in which nothing runs: no request holds a row, none is about to.

    Looks for rows still open; forwards that were not processed; copies and transfers that are not over (their pages are
    held, not leaked); uses of pages that are nobody's; pages that live and are nobody's; ids that are out and bound
    nowhere; sums and maps that do not hold; a kept snapshot that is stale. Pages and slots that were handed over are
    their new owner's, a cache's say: they are counted beside the leaked ones, and are no leak. Reads whole maps, so
    call it when there is time.

    Returns:
        A sentence for each finding, all of them logged; none at check level 0, where nothing is looked at.

    Raises:
        InvariantError: at check level 2, with every finding.
    """
    level = storage.chain.checks
    found = tuple(_findings(storage)) if level else ()
    if found and level >= STRICT:
        raise InvariantError("; ".join(found))
    for finding in found:
        _log.warning("storage.idle_check_failed", finding=finding)
    return found


def check_lengths(requests: RequestTable, page_tokens: int) -> None:
    """No open row is longer than its pages, and none has more pages than a row can hold.

    Raises:
        InvariantError: one is, or has.
    """
    rows = requests.open_rows()
    lengths, pages = requests.lengths[rows], requests.page_counts[rows]
    long = rows[(lengths > pages * page_tokens) | (pages > requests.pages_per_row) | (lengths < 0)]
    invariant(
        "storage.length_beyond_its_row", not len(long),
        rows=long.tolist(), lengths=requests.lengths[long].tolist(), pages=requests.page_counts[long].tolist(),
        page_tokens=page_tokens, pages_per_row=requests.pages_per_row,
    )  # fmt: skip


def _findings(storage: Kept) -> Iterator[str]:
    chain, requests = storage.chain, storage.requests
    rows = requests.open_rows().tolist()
    if rows:
        yield broken("storage.row_open_at_idle", rows=rows, lengths=requests.lengths[rows].tolist())
    yield from _under_way(storage)
    leaks = [*_leaked_pages(storage), *_leaked_ids(chain)]
    yield from leaks
    sums: list[Callable[[], None]] = [chain.verify, requests.verify]
    if not leaks:  # whose a page is adds up only where none is lost
        sums.append(storage.ownership.verify)
    for verify in sums:
        try:
            verify()
        except InvariantError as error:
            yield str(error)


def _under_way(storage: Kept) -> Iterator[str]:
    """Work that nobody has said is over, and what it holds."""
    ledger = storage.chain.ledger
    if ledger.steps.launched != ledger.steps.processed:
        yield broken("storage.forward_in_flight_at_idle", steps=ledger.steps)
    for copy in storage.copies.under_way():
        yield broken("storage.copy_open_at_idle", copy=str(copy))
    for transfer in storage.transfers.under_way():
        held = {name: len(ids) for name, ids in transfer.ids.items()}
        yield broken("storage.transfer_open_at_idle", transfer=str(transfer), held=held)
    known = [copy.use for copy in storage.copies.under_way()] + [one.use for one in storage.transfers.under_way()]
    for use in ledger.uses:
        if use not in known:
            yield broken("storage.use_open_at_idle", use=str(use))


def _leaked_pages(storage: Kept) -> Iterator[str]:
    """Per sub-pool, the units that live beyond those that rows own and those that were handed over."""
    ownership, slots = storage.ownership, storage.chain.plan.slots
    pages, held = ownership.handed_over(), ownership.held()
    for (name, band), owned in zip(storage.chain.bands.items(), np.add.reduce(held, axis=1).tolist(), strict=True):
        is_slots = slots is not None and name == slots.name
        handed = len(band.ids.bound_among(ownership.slots.ids() if is_slots else pages))
        leaked = band.live - owned - handed
        if leaked > 0:
            yield broken(
                "storage.leaked_pages", sub_pool=name, leaked=leaked, live=band.live, rows_own=owned, handed_over=handed
            )


def _leaked_ids(chain: Chain) -> Iterator[str]:
    """Per minter, the ids that are out and have no page: whoever minted them never bound them, or let go."""
    for name, minter in chain.minters.items():
        out = minter.pool.count - minter.pool.free
        if out != minter.owner.live:
            yield broken("storage.leaked_ids", minted_by=name, out=out, bound=minter.owner.live)
