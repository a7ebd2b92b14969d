"""One request in an arena that is just large enough for it: whether its price is enough for all its life."""

import attrs
import numpy as np

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.planning.demand import RequestShape, request_demand
from kvarena.planning.sizing import least_budget
from kvarena.plugins.stress.swarm.world import installed
from kvarena.terms.answers import Refused
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime

CONTEXT_TOKENS = 150
"""Longer than what is tried of a lifetime by itself: what is charged may count on rows that retire late."""
PAGE_SIZES = (1, 4)
CHUNKS = (1, 7)


@attrs.frozen
class Opaque:
    """An entry of so many bytes."""

    size: int
    name = "opaque"

    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("bytes", "uint8", (self.size,)),)


def shortage(lifetime: Lifetime) -> str:
    """What a request lacks at some length, or has beyond its demand; empty where its demand is enough."""
    for tokens in PAGE_SIZES:
        for chunk in CHUNKS:
            found = _grown(lifetime, tokens, chunk)
            if found:
                return f"in pages of {tokens} tokens, {chunk} tokens a step: {found}"
    return ""


def _grown(lifetime: Lifetime, page_tokens: int, chunk: int) -> str:
    lifetimes = (lifetime,) if lifetime.own_ids else (lifetime, Full())
    kinds = {one.name: one for one in lifetimes}.values()
    layers = [Layer(at, (Part(Opaque(8), one, role=one.name),)) for at, one in enumerate(kinds)]
    arena = ArenaConfig(memory=1, page_tokens=page_tokens, context_tokens=CONTEXT_TOKENS, max_running=1, mirrors=False)
    plan = plan_arena(layers, arena)
    shape = RequestShape(CONTEXT_TOKENS, 1)
    demand = request_demand(plan, shape, chunk_tokens=chunk)
    arena = attrs.evolve(arena, memory=least_budget(plan, demand, limits_of(arena)))
    storage = build_storage(layers, StorageConfig(arena=arena, backend="host"), installed())
    try:
        row = storage.open()
        if isinstance(row, Refused):
            return f"its demand is {demand}, and it cannot begin: {row}"
        for length in (*range(chunk, CONTEXT_TOKENS, chunk), CONTEXT_TOKENS):
            stepped = storage.step(np.array([row]), np.array([length]))
            if isinstance(stepped, Refused):
                return f"its demand is {demand}, and at length {length} it is refused more: {stepped}"
            live = {name: counts["live"] for name, counts in storage.stats().items()}
            for name, units in zip(plan.names, demand, strict=True):
                if live[name] > units:
                    return f"its demand of {name!r} is {units}, and at length {length} it holds {live[name]}"
    finally:
        storage.release()
    return ""
