"""Chance with a seed: the small choices that every action is made of."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.scene import READY, Guest, Scene
from kvarena.plugins.stress.swarm.world import World


class Draw:
    """Choices by the seed and the scene alone, and by nothing that a rank sees earlier or later than another."""

    def __init__(self, world: World, scene: Scene, units: Sequence[tuple[str, int]], limits: tuple[int, int]) -> None:
        """``units``: sub-pools, and how many units the arena has of each; ``limits``: requests, and tokens of one."""
        self.world = world
        self.scene = scene
        self.units = units
        self.guests_max, self.length_max = limits
        self.has_state = any(table.get("lifetime") == "state" for table in world.storage["layers"])
        self.page = int(world.storage["arena"].get("page_tokens") or 16)
        self.few = 3 * self.page
        self.reach = max((int(table.get(table.get("lifetime"), 0)) for table in world.storage["layers"]), default=0)
        """The longest window: what lies further back is needed by nobody but a cache."""
        prefix = world.storage.get("prefix") or {}
        self.grid = self._grid_of(prefix) if self.has_state and prefix.get("share") else 0
        self.rng = random.Random(world.seed + 1)
        self._count = 0

    def _grid_of(self, prefix: Mapping[str, Any]) -> int:
        """Tokens between two checkpoints; 0 where a state is kept at the end of a request alone."""
        if prefix.get("strategy") == "no_buffer":
            return 0
        return int(prefix.get("checkpoint_tokens") or -(-64 // self.page) * self.page)

    def at_grid(self, length: int) -> int:
        """The last point of the grid up to a length; the length itself where there is no grid."""
        return length // self.grid * self.grid if self.grid else length

    def name(self, letter: str) -> str:
        """A name that nobody had."""
        self._count += 1
        return f"{letter}{self._count}"

    def chance(self, share: float) -> bool:
        """True so often."""
        return self.rng.random() < share

    def size(self, most: int) -> int:
        """From 1 to ``most``: small, or under pressure anything."""
        if most <= 1:
            return 1
        return self.rng.randint(1, most if self.chance(self.world.pressure) else min(most, self.few))

    def patient(self) -> bool:
        """Whether the outside world lets others wait a little more."""
        return self.chance(self.world.patience * 0.8)

    def pick(self, guests: Sequence[Guest]) -> Guest | None:
        """One of these."""
        return self.rng.choice(guests) if guests else None

    def batch(self) -> list[Guest]:
        """Some requests that may run."""
        scene = self.scene
        ready = [guest for guest in scene.ready() if not (guest.reserved or guest.sending or guest.saving)]
        batch = self.rng.sample(ready, self.rng.randint(1, len(ready))) if ready else []
        if self.chance(self.world.misuse):  # one that is still to be loaded or received: refused by name
            batch += [guest for guest in scene.guests.values() if guest.state != READY][:1]
        return batch

    def growth(self) -> int:
        """Mostly a token, at times a chunk of a prompt."""
        return 1 if self.chance(0.7) else self.size(self.world.prompt_max)

    def some_units(self) -> dict[str, int]:
        """Few units of some sub-pools, or many of one."""
        chosen = self.rng.sample(self.units, self.rng.randint(1, min(2, len(self.units))))
        share = 1 if len(chosen) == 1 else 3
        return {name: self.rng.randint(1, max(1, count // share)) for name, count in chosen}

    def room_for_a_forward(self) -> list[Op]:
        """What must be processed before another forward may begin."""
        over = len(self.scene.flying) - max(1, self.world.in_flight) + 1
        return [Op("process", {"forward": name}) for name in list(self.scene.flying)[: max(0, over)]]
