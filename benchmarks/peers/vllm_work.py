"""The works that vLLM's manager can be asked for. Tokens appended and hashed are its engine's work, never timed."""

from collections.abc import Mapping
from typing import Any

from peers.schedule import PROMPT, Schedule
from peers.timing import Reading, Watch
from peers.vllm_side import Vllm

Readings = Mapping[str, Reading]


class ServingStep:
    """Ended requests freed, a token for each that stays, memory for the new prompts."""

    def __init__(self, peer: Vllm, schedule: Schedule) -> None:
        self.peer, self.schedule = peer, schedule
        self.requests = [peer.request(tokens) for tokens in schedule.lengths.tolist()]
        for request in self.requests:
            peer.start(request)

    def __call__(self) -> Readings:
        """One step."""
        peer, places = self.peer, self.schedule.leaving().tolist()
        ended, fresh = [self.requests[place] for place in places], [peer.request(PROMPT) for _ in places]
        staying = [request for place, request in enumerate(self.requests) if place not in set(places)]
        peer.manager.new_step_starts()
        with Watch() as watch:
            peer.free(ended)
            peer.grow(staying)
            for request in fresh:
                peer.start(request)
        peer.sampled(staying)
        for place, request in zip(places, fresh, strict=True):
            self.requests[place] = request
        return {"step": Reading(watch.total)}

    def close(self) -> None:
        """Every request ends."""
        self.peer.free(self.requests)


class DecodeTake:
    """A token for each."""

    def __init__(self, peer: Vllm, lengths: Any) -> None:
        self.peer = peer
        self.requests = [peer.request(tokens) for tokens in lengths.tolist()]
        for request in self.requests:
            peer.start(request)

    def __call__(self) -> Readings:
        """One step of decoding."""
        self.peer.manager.new_step_starts()
        with Watch() as watch:
            self.peer.grow(self.requests)
        self.peer.sampled(self.requests)
        return {"take": Reading(watch.total)}

    def close(self) -> None:
        """Every request ends."""
        self.peer.free(self.requests)


class TakeFree:
    """One request of so many tokens comes and goes."""

    def __init__(self, peer: Vllm, tokens: int) -> None:
        self.peer, self.tokens = peer, tokens

    def __call__(self) -> Readings:
        """Once."""
        request = self.peer.request(self.tokens)
        self.peer.manager.new_step_starts()
        with Watch() as take:
            self.peer.start(request)
        with Watch() as free:
            self.peer.free([request])
        return {"take": Reading(take.total), "free": Reading(free.total)}
