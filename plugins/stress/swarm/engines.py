"""Who waits, on the host, for transfers: it proves them over by landing their work, and their peers write no more."""

from collections.abc import Sequence

from kvarena.ledger.uses import Use
from kvarena.plugins.stress.stage.stage import Stage


class Engines:
    """The engines of one stage, as the chain waits for them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def wait(self, uses: Sequence[Use]) -> None:
        """Every transfer under way, published or sending, is over: what its engine was given lands."""
        for passage in self._stage.transfers.passages.values():
            if passage.transfer.released or (passage.is_receive and passage.engine is None):
                continue
            passage.engine = None
            if passage.event is not None:
                self._stage.device.synchronize(passage.event)
