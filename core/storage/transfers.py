"""Transfers: pages that an engine outside every stream sends to a peer, or receives from one."""

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from kvarena.ledger.clearance import NETWORK_RECEIVE, NETWORK_SEND, RECEIVING, SENDING
from kvarena.ledger.uses import Use
from kvarena.storage.copies import checked_ids
from kvarena.storage.forwards import Forwards
from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.lanes import Lanes
from kvarena.storage.under_way import UnderWay
from kvarena.terms.answers import Refused
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Event, IntArray

SEND, RECV = "send", "recv"


@attrs.define(eq=False)
class Transfer:
    """One transfer, of the pages of these ids by sub-pool. ``row``: the one that a receive fills, held by ``holder``.

    ``pages``: where a send's ids were when it was made, in their order: a page that moves since is read where it was.
    ``after``: a send's engine starts behind it.
    """

    number: int
    kind: str
    ids: Mapping[str, IntArray]
    use: Use
    pages: Mapping[str, IntArray] = attrs.field(factory=dict)
    after: Event | None = None
    row: int | None = None
    holder: int = 0
    published: bool = False
    released: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Published(NamedTuple):
    """The pages of a receive, parallel to its ids: the peer may learn them behind ``after``, or at once where None."""

    pages: Mapping[str, IntArray]
    after: Event | None


class Transfers:
    """Network transfers that are not proven over.

    A transfer's life:  1. send, recv  its pages are in use; a receive's are taken for it, and its row does not step.
                        2. publish     a receive's pages are told to the peer; until then nobody writes them.
                        3. release     proven over, by the engine, an acknowledged cancel or a revoked registration.
    A receiving row may be closed at any time: its pages stay reserved until the release.
    Always:  every transfer that is not released has an open use, or a relief has waited for it
    """

    def __init__(self, maps: Maps, growth: Growth, forwards: Forwards, lanes: Lanes) -> None:
        self._maps = maps
        self._growth = growth
        self._forwards = forwards
        self._lanes = lanes
        self._ledger = maps.chain.ledger
        self._under_way: UnderWay[Transfer] = UnderWay()

    def __len__(self) -> int:
        """How many transfers are not released."""
        return len(self._under_way)

    def under_way(self) -> list[Transfer]:
        """The transfers that are not released, the oldest first."""
        return self._under_way.all()

    def send(self, ids: Mapping[str, IntArray]) -> Transfer:
        """An engine reads these pages from here on, once ``after`` has come.

        Raises:
            KvarenaError: a sub-pool that does not exist, or has no bytes.
            InvariantError: an id has no page, a page is being received, or a forward is open that might write one;
                nothing has changed.
        """
        ids = checked_ids(self._maps, ids, "transfers.send")
        self._forwards.check_closed("transfers.send")
        chain, device = self._maps.chain, self._ledger.timeline.device
        pages = {name: chain.pages(name, some) for name, some in ids.items()}
        stream = self._lanes.behind("transfer")
        for name, mine in pages.items():
            self._ledger.clear(chain.bands[name].grid.unit_bytes, mine, (NETWORK_SEND,), stream)
        after = device.record(stream)
        return self._under_way.begin(Transfer(0, SEND, ids, chain.usage.record(SENDING, ids), pages, after))

    def recv(self, row: int, tokens: int) -> Transfer | Refused:
        """Take the pages of an empty row's first tokens for an engine to write, in one scope over all sub-pools.

        Returns:
            The transfer, with the ids by sub-pool; or the refusal, and nothing has changed.

        Raises:
            KvarenaError: a row cannot hold so many tokens; nothing has changed.
        """
        filled = self._growth.fill(row, tokens, NETWORK_RECEIVE)
        if isinstance(filled, Refused):
            return filled
        chain = self._maps.chain
        ids = {name: some for name, some in filled.items() if chain.bands[name].grid.unit_bytes}
        use = chain.usage.record(RECEIVING, ids, held=True)
        holder = self._maps.table.away.hold(row, receives=True)
        return self._under_way.begin(Transfer(0, RECV, ids, use, row=int(row), holder=holder))

    def publish(self, transfer: Transfer) -> Published:
        """The peer learns a receive's pages: where they are now, and what must have come before it writes them.

        Raises:
            InvariantError: it is no receive, is released, was published before, or its row was closed; nothing has
                changed.
        """
        self._check(transfer)
        receives = transfer.kind == RECV and not transfer.published and transfer.row is not None
        invariant("transfers.publish_of_no_receive", receives, transfer=str(transfer), published=transfer.published)
        is_held = self._maps.table.away.is_held_by(int(transfer.row or 0), transfer.holder)
        invariant("transfers.publish_of_closed_row", is_held, transfer=str(transfer), row=transfer.row)
        chain = self._maps.chain
        pages = {name: chain.pages(name, ids) for name, ids in transfer.ids.items()}
        chain.usage.publish(transfer.use)
        transfer.pages, transfer.published = pages, True
        return Published(pages, self._ledger.timeline.tail())

    def release(self, transfer: Transfer) -> None:
        """The transfer is proven over: nobody touches its pages any more.

        Raises:
            InvariantError: it is unknown here, or was released before; nothing has changed.
        """
        self._check(transfer)
        if transfer.use in self._ledger.uses:  # else a relief has waited for it
            self._maps.chain.usage.end(transfer.use)
        if transfer.row is not None:
            self._maps.table.away.let_go(transfer.row, transfer.holder)
        transfer.released = True
        self._under_way.end(transfer)

    def _check(self, transfer: Transfer) -> None:
        known = transfer in self._under_way
        invariant("transfers.unknown_transfer", known, transfer=str(transfer), released=transfer.released)
