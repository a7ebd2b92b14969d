"""A slice of the stress harness around one plugin: random worlds that use it, and what they break, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.harness import SIMULATED, run_seed, shrink_case
from kvarena.plugins.stress.swarm.lent import LentCatalog, Makers
from kvarena.plugins.stress.swarm.world import ANYTHING, Wanted, draw_world
from kvarena.terms.errors import KvarenaError

MINE = "under-test"
"""The name of what is tested, in the worlds' configs."""
SEEDS = 4
OPERATIONS = 250
SHRINK_TRIES = 100


@attrs.frozen(kw_only=True)
class Slice:
    """So many worlds, and what they are made of. ``makers``: what is lent; ``device``: the backend they are on."""

    makers: Makers
    wanted: tuple[Wanted, ...] = (ANYTHING,)
    device: str = SIMULATED
    seeds: int = SEEDS
    operations: int = OPERATIONS


def broken_in(part: Slice) -> str | None:
    """What the harness finds, in words: the promise, the seed and the shortest operations; None where all is well."""
    catalog = LentCatalog(part.makers)
    for seed in range(part.seeds):
        wanted = part.wanted[seed % len(part.wanted)]
        try:
            world = draw_world(seed, catalog=catalog, wanted=wanted)
            case = run_seed(world, part.operations, part.device, catalog=catalog).case
        except KvarenaError as error:
            return f"world {seed} of the stress harness cannot be built with it: {error}"
        if case is None:
            continue
        case = shrink_case(case, tries_max=SHRINK_TRIES, catalog=catalog)
        played = "".join(f"\n    {_spelled(op)}" for op in case.operations)
        return f"the stress harness found {case.check}: {case.words}; seed {seed}, {_config(world.storage)}:{played}"
    return None


def _spelled(op: Op) -> str:
    return f"{op.verb} {' '.join(f'{name}={value}' for name, value in op.arguments.items())}".rstrip()


def _config(storage: Mapping[str, Any]) -> str:
    """What of a world's config tells it from others."""
    layers: Sequence[Mapping[str, Any]] = storage["layers"]
    kinds = ", ".join(str(layer["lifetime"]) for layer in layers)
    return f"pages of {storage['arena']['page_tokens']} tokens, {kinds}, policies {dict(storage['policies'])}"
