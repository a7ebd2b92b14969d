"""Which requests run: seeded, so that every side is asked for the same."""

import attrs
import numpy as np

from kvarena.terms.ports import IntArray

PROMPT, OUTPUT = 512, 128


class Schedule:
    """A steady crowd: every step one token each, and a share of it replaced by new prompts."""

    def __init__(self, running: int = 256, share: float = 0.02, seed: int = 4) -> None:
        self.running = running
        self.replaced = max(1, round(running * share))
        self._random = np.random.default_rng(seed)
        self.lengths: IntArray = self._random.integers(PROMPT, PROMPT + 256, running)

    def leaving(self) -> IntArray:
        """The places whose requests end in this step, drawn anew; their lengths are those of new prompts now."""
        places: IntArray = np.sort(self._random.choice(self.running, self.replaced, replace=False))
        return places

    def advance(self, places: IntArray) -> IntArray:
        """The lengths after this step: new prompts at ``places``, one token more everywhere else."""
        self.lengths = self.lengths + 1
        self.lengths[places] = PROMPT
        return self.lengths


@attrs.frozen
class Turn:
    """One act of the drifting mix: so many requests of so many tokens come; ``shares`` pick among those that live."""

    count: int
    tokens: int
    shares: IntArray


class Drift:
    """Many short requests, then few long ones, and again: the mix that starves one kind and then the other."""

    def __init__(self, turns: int, seed: int = 5) -> None:
        self.turns = turns
        self._random = np.random.default_rng(seed)
        self._now = 0

    def next(self) -> Turn:
        """The next act."""
        is_long = self._now * 6 // self.turns % 2
        self._now += 1
        random = self._random
        tokens = int(random.integers(2048, 8193) if is_long else random.integers(64, 513))
        return Turn(1 if is_long else int(random.integers(1, 9)), tokens, random.integers(0, 1 << 30, 24))

    def looked_at(self, turn: Turn, live: int) -> list[int]:
        """The places of up to eight whose windows are looked at now."""
        return sorted({int(share) % live for share in turn.shares[:8]}) if live else []

    def leaving(self, turn: Turn, live: int, *, refused: bool) -> list[int]:
        """The places, largest first, of those that end now: one to four after a refusal, else up to what came."""
        wanted = 1 + int(turn.shares[8]) % 4 if refused else int(turn.shares[8]) % (turn.count + 1) if live > 64 else 0
        places = {int(share) % live for share in turn.shares[9 : 9 + wanted]} if live > wanted else set()
        return sorted(places, reverse=True)
