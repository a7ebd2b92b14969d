"""The next operation: drawn by a world's weights from what is possible now, and now and then from what is not."""

from bisect import bisect
from collections import deque
from itertools import accumulate

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.actions import DRAWN, state_pair
from kvarena.plugins.stress.swarm.draw import Draw
from kvarena.plugins.stress.swarm.sharing import copied

TRIES = 12
"""So often another action is drawn where one is not possible now."""

IDLE = Op("turn", {"limit": 1})


class Generator:
    """Operations for one run. An action may be several operations: they are given one after another, others in between
    only while the work of a forward is put on its stream.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._planned: deque[Op] = deque()
        weights = {name: weight for name, weight in draw.world.weights.items() if weight > 0}
        self._actions = list(weights)
        self._weights = list(accumulate(weights.values()))

    def next(self) -> Op:
        """One operation."""
        if self._draw.scene.open_forward:
            return self._while_open()
        if self._planned:
            return self._planned.popleft()
        random, total, last = self._draw.rng.random, self._weights[-1], len(self._weights) - 1
        for where in [random() * total for _ in range(TRIES)]:
            found = DRAWN[self._actions[bisect(self._weights, where, 0, last)]](self._draw)
            if found:
                self._planned.extend(found[1:])
                return found[0]
        return IDLE

    def _while_open(self) -> Op:
        """A forward was launched: nothing managed changes hands until it is recorded."""
        draw, scene = self._draw, self._draw.scene
        weights, where = draw.world.weights, draw.rng.random()
        forward = {"forward": scene.open_forward}
        if where < 0.15 and weights.get("turn"):
            return Op("turn", {"limit": draw.rng.randint(1, 4)})
        if not scene.has_run and where < 0.5:
            return Op("run", forward)
        if where < 0.7:
            ops = copied(draw) if draw.chance(0.8) and weights.get("offer") else []
            if not ops and weights.get("checkpoint"):
                ops = state_pair(draw, scene.open_forward)
            if ops:
                return ops[0]
        if 0.7 < where < 0.7 + draw.world.misuse / 4 and draw.world.in_flight:
            return Op("flush", {})  # refused by name: nothing moves between launch and record
        unknown = scene.open_drafts and draw.chance(0.5)
        scene.open_drafts = False
        return Op("record", forward | ({"unknown": True} if unknown else {}))
