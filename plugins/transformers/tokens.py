"""The token values of the requests that a runner serves: each at its position, prompt first, then what was sampled."""

import attrs
import numpy as np

from kvarena.plugins.serving.port import Request
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


@attrs.define(eq=False)
class Transcript:
    """One request's tokens, int64 (prompt and output tokens,).

    Forwards write and read it in the order of their stream; the host reads what it has the results of. A position
    that is sampled again (its first sample was dropped with the row that gave it) has the newer value.
    """

    prompt: tuple[int, ...]
    values: IntArray
    known: int
    """Positions below this one have a value."""
    end: int | None = None
    """The position of the token that ended the answer; what was forwarded after it counts for nothing."""

    @classmethod
    def of(cls, prompt: tuple[int, ...], output_tokens: int) -> "Transcript":
        """The prompt, and room for what may be generated."""
        values = np.zeros(len(prompt) + output_tokens, dtype=np.int64)
        values[: len(prompt)] = prompt
        return cls(prompt, values, len(prompt))

    def read(self, start: int, stop: int) -> list[int]:
        """The tokens at positions ``[start, stop)``."""
        invariant("tokens.read_before_sampled", 0 <= start <= stop <= self.known, stop=stop, known=self.known)
        values: list[int] = self.values[start:stop].tolist()
        return values

    def sample(self, position: int, token: int, *, ends: bool) -> None:
        """This token stands here; ``ends``: it is one that ends an answer."""
        first = len(self.prompt)
        invariant("tokens.sampled_out_of_place", first <= position <= self.known, at=position, known=self.known)
        invariant("tokens.sampled_beyond_output", position < len(self.values), at=position, most=len(self.values))
        self.values[position] = token
        self.known = position + 1
        if self.end is None or position <= self.end:
            self.end = position if ends else None

    def sampled(self) -> tuple[int, ...]:
        """What was sampled so far, up to the token that ends the answer."""
        stop = self.known if self.end is None else min(self.known, self.end + 1)
        return tuple(self.values[len(self.prompt) : stop].tolist())


class Transcripts:
    """The transcripts of a runner's requests, by request id. They stay until forgotten: reports are checked."""

    def __init__(self) -> None:
        self._known: dict[int, Transcript] = {}

    def of(self, request: Request) -> Transcript | None:
        """The request's transcript, made at the first call; None where only its lengths are known."""
        if request.prompt is None:
            return None
        known = self._known.get(request.id)
        if known is None or not (known.prompt is request.prompt or known.prompt == request.prompt):
            known = self._known[request.id] = Transcript.of(request.prompt, request.output_tokens)
        return known

    def forget(self, request_id: int) -> None:
        """Nobody will ask for this request any more; where it is not known, nothing happens."""
        self._known.pop(request_id, None)

    def sampled(self, request_id: int) -> tuple[int, ...]:
        """What was sampled for a request so far; nothing where it is not known."""
        known = self._known.get(request_id)
        return () if known is None else known.sampled()

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The first ``count`` tokens, read-only: a view of the transcript, not to be kept. None without a prompt."""
        known = self.of(request)
        if known is None:
            return None
        invariant("tokens.keys_before_sampled", 0 <= count <= known.known, asked=count, known=known.known)
        keys = known.values[:count]
        keys.flags.writeable = False
        return keys
