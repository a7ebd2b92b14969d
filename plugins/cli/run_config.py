"""What the file of ``kvarena run`` says: a storage's sections, and beside them the model, the trace and the loop."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.config import (
    ArenaConfig,
    ChecksConfig,
    Choice,
    LogsConfig,
    PluginsConfig,
    PoliciesConfig,
    PrefixConfig,
    SettingError,
    StorageConfig,
    at_least,
    known_version,
    read_toml,
    structure,
)
from kvarena.assembly.places import Places
from kvarena.planning.demand import RequestShape, request_demand
from kvarena.planning.sizing import least_budget
from kvarena.plugins.replay.traces import TraceOptions
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.port import Request
from kvarena.terms.layers import Layer


@attrs.frozen(kw_only=True)
class TraceSection(TraceOptions):
    """``[trace]``: the file that lengths and arrivals are read from, and what part of it, in what shape.

    ``file`` is sought beside the config. The other settings are those of ``kvarena replay``.
    """

    file: Path


@attrs.frozen(kw_only=True)
class ClockSection:
    """``[clock]``: how long a step lasts on the loop's clock, so that a run repeats to the step everywhere.

    A step takes ``step_seconds``, and ``token_seconds`` more for each token that it forwards.
    """

    step_seconds: float = attrs.field(default=0.02, validator=[attrs.validators.gt(0), attrs.validators.le(1e6)])
    token_seconds: float = attrs.field(default=0.0, validator=[attrs.validators.ge(0), attrs.validators.le(1e6)])


@attrs.frozen(kw_only=True)
class RunConfig:
    """A whole run. ``model`` is a name of the table of tiny models, or a folder with weights.

    ``seed`` draws the weights of a tiny model and the tokens of the prompts. ``memory_requests`` stands in
    for ``arena.memory``: room for so many requests as long as the longest of the trace, whatever the model.
    ``shared_tokens``: every prompt begins with the same so many tokens, as after one system prompt. ``kv_layout`` is
    the layout that keeps keys and values, its settings beside its name; None keeps them as the model writes them.
    """

    model: str
    trace: TraceSection
    arena: Mapping[str, Any] = attrs.field(factory=dict)
    memory_requests: float | None = attrs.field(default=None, metadata={"schema": {"minimum": 1, "maximum": 1e6}})
    version: int = attrs.field(default=1, validator=known_version, metadata={"schema": {"const": 1}})
    seed: int = attrs.field(default=0, validator=at_least(0, 1 << 32))
    shared_tokens: int = attrs.field(default=0, validator=at_least(0, 1 << 31))
    kv_layout: Choice | None = None
    backend: Choice = attrs.field(factory=lambda: Choice("cpu"))
    serving: ServingConfig = attrs.field(factory=ServingConfig)
    clock: ClockSection = attrs.field(factory=ClockSection)
    prefix: PrefixConfig = attrs.field(factory=PrefixConfig)
    policies: PoliciesConfig = attrs.field(factory=PoliciesConfig)
    checks: ChecksConfig = attrs.field(factory=ChecksConfig)
    logs: LogsConfig = attrs.field(factory=LogsConfig)
    plugins: PluginsConfig = attrs.field(factory=PluginsConfig)

    @memory_requests.validator
    def _one_of_two(self, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
        if value is not None and not 1 <= value <= 1e6:
            raise SettingError("memory_requests", f"must be at least 1, so that one request fits; not {value!r}")
        if (value is None) == ("memory" not in self.arena):
            raise SettingError("memory_requests", "give either this or arena.memory")

    def storage(self, layers: Sequence[Layer], requests: Sequence[Request], source: str | Places = "") -> StorageConfig:
        """The sections that one storage is built from, its memory found where it is counted in requests.

        ``source`` names the file in messages, or its places.
        """
        table = dict(self.arena)
        if self.memory_requests is not None:
            with Places.of(source).planning():
                table["memory"] = self._memory(layers, requests, self.memory_requests, source)
        arena = structure(ArenaConfig, table, source, at="arena")
        return StorageConfig(
            arena=arena,
            backend=self.backend,
            prefix=self.prefix,
            policies=self.policies,
            checks=self.checks,
            plugins=self.plugins,
        )

    def _memory(self, layers: Sequence[Layer], requests: Sequence[Request], count: float, source: str | Places) -> int:
        arena = structure(ArenaConfig, {**self.arena, "memory": 1}, source, at="arena")
        plan = plan_arena(layers, arena)
        limits = limits_of(arena, self.prefix, plan, source=source)
        longest = max(requests, key=lambda request: request.rows)
        demand = request_demand(
            plan,
            RequestShape(longest.prompt_tokens, longest.output_tokens),
            chunk_tokens=self.serving.chunk_tokens,
            slots_per_request=limits.slots_per_request,
            grid=limits.grid,
        )
        return least_budget(plan, tuple(math.ceil(units * count) for units in demand), limits)


def read_run_config(path: str | Path, **given: Any) -> RunConfig:
    """Read a config file; ``given`` values (a ``model``, say) take the place of those it has, where they are not None.

    Raises:
        ConfigError: with the file, the key and what would do.
    """
    data = read_toml(path)
    data.update({key: value for key, value in given.items() if value is not None})
    source = Places.in_file(path, name=Path(path).name)
    config = structure(RunConfig, data, source)
    structure(ArenaConfig, {"memory": 1, **config.arena}, source, at="arena")
    file = config.trace.file
    return attrs.evolve(config, trace=attrs.evolve(config.trace, file=Path(path).parent / file))
