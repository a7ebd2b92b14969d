"""How many bytes there are to plan with: given, or what the weights leave of a card."""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.cli.plan_source import Source
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
    taken = _weights_bytes(source, weights)
    left = math.floor(gpu * utilization) - taken
    terms = (
        f"{format_bytes(gpu)} x {utilization:g} - {format_bytes(taken)} of weights"
        f"{' (estimated)' if weights == 'auto' else ''} = {format_bytes(left)}"
    )
    if left <= 0:
        raise ConfigError(f"the weights leave nothing of the card: {terms}; more ranks (--tp) or a larger card would")
    return Budget(left, terms, gpu, taken, utilization)


def _weights_bytes(source: Source, weights: str) -> int:
    """One rank's weights: as given, or estimated from the config's sizes and cut evenly."""
    if weights != "auto":
        try:
            return parse_bytes(int(weights) if weights.isdigit() else weights)
        except ValueError as error:
            raise ConfigError(f"--weights: {error}, or auto") from None
    if source.spec is None or source.spec.parameters is None:
        raise ConfigError(f"{source.name}: does not say enough to estimate the weights; give --weights BYTES")
    return math.ceil(source.spec.parameters * source.spec.weight_bytes_per_parameter / source.spec.tp)
