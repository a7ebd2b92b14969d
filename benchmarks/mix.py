"""The shifting mix of ``goodput``: three phases of requests, made from real traces by one rule for every model.

    chats       Azure's conversations, BurstGPT and ServeGen's reasoning client, in turn; nothing is shared
    documents   Mooncake's conversations with prompts of at least 16,384 tokens, in their order, prefixes as they are
    agents      coding sessions, cut into pieces of six requests, taken in turn; a piece shares its prefixes

A row longer than the context, or with an output of more than 2,048 tokens, is left out. A trace that ends begins anew,
with prefixes of its own. Arrivals have the gaps of Azure's conversations, in order, so stretched that the phase lasts
as long as it should. A piece of a session arrives like a request; the gaps inside it are those of the session, at most
4 seconds, whatever the scale of arrivals: who works with an agent is not hurried by others.

How often requests arrive at scale 1 is a model's own: as often as the machine could serve them at all if each ran at
the speed of a lone one, and nothing was shared. That is where the phase's mean demand fills the arena, or where its
prompts alone take all of the machine's compute, whichever comes first (``Load``).
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np

from kvarena.plugins.replay.trace_rows import TraceRow
from kvarena.plugins.replay.traces import TraceOptions, read_trace
from kvarena.plugins.serving.port import Request

CONTEXT_TOKENS = 131072
OUTPUT_MAX = 2048
DOCUMENT_TOKENS = 16384
TURNS = 6
THINK_SECONDS = 4.0
SECONDS = {"chats": 12.0, "documents": 12.0, "agents": 12.0}
"""How long each phase lasts at scale 1."""

FILES = {
    "azure": "azure_llm_2023_conv.csv",
    "burstgpt": "burstgpt_1_head400.csv",
    "servegen": "servegen/reason_deepseek-r1_chunk-0-trace.csv",
    "mooncake": "mooncake_conversation.jsonl",
    "agents": "coding_agent",
}
"""Where the traces lie in a folder of whole ones; the small slices have the same names."""


@attrs.frozen
class Load:
    """What one request of a phase asks for on average: bytes times seconds of memory, and seconds of compute."""

    byte_seconds: float
    compute_seconds: float

    def rate(self, arena_bytes: int) -> float:
        """Requests a second that fill the arena, or take all compute, if each runs as if alone."""
        return min(arena_bytes / self.byte_seconds, 1 / self.compute_seconds)


@attrs.frozen
class Piece:
    """What arrives at once: the rows of a session piece, and the seconds after its arrival at which each comes."""

    rows: tuple[TraceRow, ...]
    delays: tuple[float, ...] = (0.0,)


@attrs.frozen
class Arrival:
    """A request of the mix: at ``start`` seconds of scale 1, and ``delay`` seconds after that at any scale."""

    phase: str
    start: float
    delay: float
    row: TraceRow


class Traces:
    """The pieces of each phase, without end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        azure = self._read("azure")
        self.sources: dict[str, Callable[[], Iterator[Piece]]] = {
            "chats": self._chats,
            "documents": self._documents,
            "agents": self._agents,
        }
        times = np.array([row.arrival for row in azure])
        self._gaps = np.diff(times)
        self._kinds = [_fitting(rows) for rows in (azure, self._read("burstgpt"), self._read("servegen"))]
        self._long = [row for row in _fitting(self._read("mooncake")) if row.prompt_tokens >= DOCUMENT_TOKENS]
        files = sorted((folder / FILES["agents"]).glob("*.json"))
        self._sessions = [_cut(read_trace(file, TraceOptions(on_bad="skip")).rows) for file in files]

    def pieces(self, phase: str, count: int) -> list[Piece]:
        """The first of a phase, with so many requests at least."""
        found: list[Piece] = []
        for piece in self.sources[phase]():
            if count <= 0:
                break
            found.append(piece)
            count -= len(piece.rows)
        return found

    def starts(self, count: int, seconds: float) -> list[float]:
        """When so many pieces arrive in a phase of so many seconds."""
        gaps = np.resize(self._gaps, count)
        return ((np.cumsum(gaps) - gaps[0]) * (seconds / gaps.sum())).tolist()

    def _read(self, name: str) -> tuple[TraceRow, ...]:
        return read_trace(self._folder / FILES[name], TraceOptions(on_bad="skip")).rows

    def _chats(self) -> Iterator[Piece]:
        for rows in zip(*map(itertools.cycle, self._kinds), strict=True):
            yield from (Piece((row,)) for row in rows)

    def _documents(self) -> Iterator[Piece]:
        for lap in itertools.count():
            yield from (Piece((attrs.evolve(row, session=f"documents {lap}"),)) for row in self._long)

    def _agents(self) -> Iterator[Piece]:
        pieces = [piece for turn in itertools.zip_longest(*self._sessions) for piece in turn if piece is not None]
        for number, piece in enumerate(itertools.cycle(pieces)):
            yield attrs.evolve(piece, rows=tuple(attrs.evolve(row, session=f"agent {number}") for row in piece.rows))


class Mix:
    """The requests of all phases, one phase after the other."""

    def __init__(self, traces: Traces, rates: dict[str, float], shorter: float = 1.0) -> None:
        """``rates``: requests a second at scale 1. ``shorter``: divides the time that each phase lasts."""
        self.arrivals: list[Arrival] = []
        begin = 0.0
        for phase, seconds in SECONDS.items():
            lasts = seconds / shorter
            pieces = traces.pieces(phase, max(1, round(rates[phase] * lasts)))
            for start, piece in zip(traces.starts(len(pieces), lasts), pieces, strict=True):
                for row, delay in zip(piece.rows, piece.delays, strict=True):
                    self.arrivals.append(Arrival(phase, begin + start, delay, row))
            begin += lasts
        self._ids: dict[tuple[str, int], int] = {}

    def at(self, scale: float) -> list[Request]:
        """The requests where they arrive so many times as often; request i is arrival i."""
        return [
            Request(
                number,
                arrival.start / scale + arrival.delay,
                arrival.row.prompt_tokens,
                arrival.row.output_tokens,
                prefix_ids=self._global(arrival.row),
                block_tokens=arrival.row.block_tokens,
            )
            for number, arrival in enumerate(self.arrivals)
        ]

    def _global(self, row: TraceRow) -> tuple[int, ...] | None:
        """Ids of the row's blocks that no other session's blocks have."""
        if row.prefix_ids is None:
            return None
        return tuple(self._ids.setdefault((str(row.session), block), len(self._ids)) for block in row.prefix_ids)


def _fitting(rows: tuple[TraceRow, ...]) -> list[TraceRow]:
    """Those that the mix takes."""
    return [
        row
        for row in rows
        if row.output_tokens <= OUTPUT_MAX and row.prompt_tokens + row.output_tokens <= CONTEXT_TOKENS
    ]


def _cut(rows: tuple[TraceRow, ...]) -> list[Piece]:
    """A session in pieces of so many consecutive requests; what is left over at its end is dropped."""
    rows = tuple(_fitting(rows))
    pieces = []
    for first in range(0, len(rows) - TURNS + 1, TURNS):
        part = rows[first : first + TURNS]
        gaps = np.minimum(np.diff([row.arrival for row in part]), THINK_SECONDS)
        pieces.append(Piece(part, (0.0, *np.cumsum(gaps).tolist())))
    return pieces
