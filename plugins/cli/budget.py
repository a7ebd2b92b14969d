"""How many bytes there are to plan with: given, or what the weights leave of a card."""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.cli.plan_source import Source
from kvarena.plugins.models.weights import Weights, weights_bytes
from kvarena.terms.errors import ConfigError
from kvarena.terms.units import format_bytes, parse_bytes


@attrs.frozen
class Budget:
    """Bytes of one rank's device for everything that kvarena keeps there.

    ``terms`` say how they were found, for people; ``weights_bytes`` are one rank's, None where no card is named.
    """

    bytes: int
    terms: str
    gpu_bytes: int | None = None
    weights_bytes: int | None = None
    utilization: float | None = None


def read_budget(source: Source, options: Mapping[str, Any]) -> Budget:
    """The budget by the command line, or by a TOML file's ``arena.memory``.

    Raises:
        ConfigError: none or two budgets are given, or the weights leave nothing; with each term.
    """
    memory, gpu = options["memory"], options["gpu_memory"]
    if memory is not None and gpu is not None:
        raise ConfigError("--memory and --gpu-memory are two budgets; give one of them")
    if gpu is not None:
        return _beside_weights(source, gpu, options["weights"], options["utilization"])
    if memory is None and source.declared:
        memory = source.declared.arena.memory
    if memory is None:
        raise ConfigError("no budget is given: --memory 80GiB, or --gpu-memory 80GiB to take the weights off a card")
    return Budget(memory, format_bytes(memory))


def _beside_weights(source: Source, gpu: int, weights: str, utilization: float) -> Budget:
    if not 0 < utilization <= 1:
        raise ConfigError(f"--utilization {utilization}: it is the usable share of the card, above 0 and at most 1")
    taken = _weights(source, weights)
    left = math.floor(gpu * utilization) - taken.bytes
    terms = (
        f"{format_bytes(gpu)} x {utilization:g} - {format_bytes(taken.bytes)} of weights ({taken.source}) "
        f"= {format_bytes(left)}"
    )
    if left <= 0:
        raise ConfigError(f"the weights leave nothing of the card: {terms}; more ranks (--tp) or a larger card would")
    return Budget(left, terms, gpu, taken.bytes, utilization)


def _weights(source: Source, weights: str) -> Weights:
    """One rank's weights: as given; else from the files beside the config, or estimated from its sizes."""
    if weights != "auto":
        try:
            return Weights(parse_bytes(weights), "given")
        except ValueError as error:
            raise ConfigError(f"--weights: {error}, or auto") from None
    if source.spec is None:
        raise ConfigError(f"{source.name}: declared layers do not say how large the weights are; give --weights BYTES")
    return weights_bytes(source.name, source.spec)
