"""How full an arena gets: ``python benchmarks/fill.py [--json] [--quick] [--page-size N] [--seeds N]``.

Requests of random lengths start and grow by random chunks, their windows retiring, until the arena refuses; some end,
others come, and it is filled again: the mix drifts from short requests to long ones over several rounds. At every
refusal of one request's step or slot

    arena - live bytes - bytes asked  <=  sinks + one unit a border        (a border: where two bands meet)

must hold, in bytes. A row gives the worst of all refusals of all seeds, and the bound as its goal; the case names the
share of the arena that was live at the worst. Plans of six real models and made-up chains of three and five bands, on
8 and 60 GiB.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from peers.kvarena_side import model_layers, storage_of
from rows import figure, show

from kvarena.layouts.mha import Mha
from kvarena.layouts.state import Tensors
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import IntArray

Row = dict[str, Any]
GIB = 1 << 30
ARENAS = (8 * GIB, 60 * GIB)
MODELS = (
    "gpt-oss-120b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "falcon-h1-0.5b", "gemma-3-4b-it", "jamba-v0.1",
)  # fmt: skip
CHAINS: dict[str, tuple[tuple[Lifetime, int], ...]] = {
    "three bands": ((State(), 24), (Window(1024), 20), (Full(), 10)),
    "five bands": ((State(), 30), (Window(128), 6), (Chunk(8192), 14), (Window(4096), 9), (Full(), 7)),
}
"""Lifetimes, and how many layers of each."""

BATCH = 16
CHUNK_MAX = 2048
CONTEXT = 32768
RUNNING = 8192
LONGEST = (1024, 8192, CONTEXT, 2048)
"""The longest request of each round: the mix drifts from short to long and back."""


@attrs.define
class Worst:
    """The refusal that left the most bytes unused."""

    unused: int = -(1 << 62)
    live_share: float = 0.0
    refusals: int = 0

    def see(self, storage: Storage, refused: Refused) -> None:
        """One more refusal, for want of memory."""
        shots = storage.chain.snapshot().bands
        live = sum(shot.live * shot.unit_bytes for shot in shots)
        asked = sum(refused.asked[shot.name] * shot.unit_bytes for shot in shots if shot.name in refused.asked)
        arena = storage.sizing.arena_bytes
        self.refusals += 1
        if arena - live - asked > self.unused:
            self.unused, self.live_share = arena - live - asked, live / arena


def bound(storage: Storage) -> int:
    """What the sinks take, and one unit for each band that begins where another ends."""
    units = [pool.unit_bytes for pool in storage.plan.sub_pools if pool.unit_bytes]
    return storage.sizing.sink_bytes + sum(units[1:])


class Crowd:
    """Requests that run: rows, their lengths now, and the lengths at which they end."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self.storage, self.random, self.worst = storage, np.random.default_rng(seed), Worst()
        self.rows = self.lengths = self.ends = np.empty(0, dtype=np.int64)

    def fill(self, longest: int) -> bool:
        """Start requests up to so long and grow them until a batch, then any one of them, gets no more.

        Whether one may still grow: each got to its end where all together did not.
        """
        while self._start(longest) and self._grow(np.flatnonzero(self.lengths < self.ends)[-BATCH:]):
            pass
        growing = np.flatnonzero(self.lengths < self.ends)
        for chunk_max in (CHUNK_MAX, self.storage.plan.page_tokens):
            for place in growing.tolist():
                while self.lengths[place] < self.ends[place] and self._grow(np.array([place]), chunk_max):
                    pass
        return bool((self.lengths < CONTEXT).any())

    def leave(self, share: float) -> None:
        """So many of them end."""
        gone = self.random.random(len(self.rows)) < share
        self.storage.close(self.rows[gone])
        self.rows, self.lengths, self.ends = self.rows[~gone], self.lengths[~gone], self.ends[~gone]

    def _start(self, longest: int) -> bool:
        """New requests, if none is growing any more; out of rows, those that run get longer."""
        if (self.lengths < self.ends).any():
            return True
        rows = self.storage.open_batch(BATCH)
        if isinstance(rows, Refused):
            rows = self.storage.open_batch(1)
        if isinstance(rows, Refused):
            if rows.asked:
                self.worst.see(self.storage, rows)
            else:
                self.ends = np.minimum(2 * self.ends, CONTEXT)
            return bool((self.lengths < self.ends).any())
        count = len(rows)
        ends = self.random.integers(longest // 16, longest, count)
        self.rows, self.ends = np.append(self.rows, rows), np.append(self.ends, ends)
        self.lengths = np.append(self.lengths, np.zeros(count, dtype=np.int64))
        return True

    def _grow(self, places: IntArray, chunk_max: int = CHUNK_MAX) -> bool:
        """A chunk more for each of these."""
        chunk = self.random.integers(1, chunk_max + 1, len(places))
        lengths = np.minimum(self.lengths[places] + chunk, self.ends[places])
        ids = self.storage.step(self.rows[places], lengths)
        if isinstance(ids, Refused):
            if len(places) == 1:
                self.worst.see(self.storage, ids)
            return False
        self.lengths[places] = lengths
        return True


def fill(storage: Storage, seed: int) -> Worst:
    """Several rounds: short requests, longer ones, the longest, short ones again."""
    crowd = Crowd(storage, seed)
    for longest in LONGEST:
        seen = crowd.worst.refusals
        while crowd.fill(longest) and crowd.worst.refusals == seen:
            pass
        assert crowd.worst.refusals > seen, "the arena is not full: there are too few request rows"
        crowd.leave(share=0.5)
    return crowd.worst


def layers_of(kinds: Sequence[tuple[Lifetime, int]]) -> list[Layer]:
    """Layers of these kinds, with heads of usual sizes and a state of 1 MiB."""
    state = Tensors({"matrix": ("float32", (32, 64, 128))})
    lifetimes = [lifetime for lifetime, count in kinds for _ in range(count)]
    return [
        Layer(index, (Part(state if lifetime.own_ids else Mha(4, 128), lifetime, "kept"),))
        for index, lifetime in enumerate(lifetimes)
    ]


def measure(name: str, layers: Sequence[Layer], memory: int, page_tokens: int, seeds: int) -> Row:
    """One plan in one arena, all seeds."""
    worst, limit = Worst(), 0
    for seed in range(seeds):
        storage = storage_of(layers, memory, page_tokens, RUNNING, context=CONTEXT)
        limit, found = bound(storage), fill(storage, seed)
        refusals = worst.refusals + found.refusals
        worst = max(worst, found, key=lambda one: one.unused)
        worst.refusals = refusals
        storage.release()
    case = (
        f"{name}, {memory // GIB} GiB, page {page_tokens}: arena - live - asked, worst of {worst.refusals} refusals "
        f"({100 * worst.live_share:.2f} % live there)"
    )
    return figure(case, worst.unused, "bytes", limit)


def positive(text: str) -> int:
    """A count of at least one, from the command line."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not at least 1")
    return count


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="one model and one chain, 8 GiB, one seed")
    parser.add_argument("--page-size", type=positive, default=16, help="tokens a page")
    parser.add_argument("--seeds", type=positive, default=10, help="so many fills of each plan")
    arguments = parser.parse_args()
    plans = {name: model_layers(name) for name in MODELS} | {name: layers_of(kinds) for name, kinds in CHAINS.items()}
    names = [MODELS[0], "three bands"] if arguments.quick else list(plans)
    arenas, seeds = (ARENAS[:1], 1) if arguments.quick else (ARENAS, arguments.seeds)
    found = [measure(name, plans[name], arena, arguments.page_size, seeds) for name in names for arena in arenas]
    show(found, as_json=arguments.json)


if __name__ == "__main__":
    main()
