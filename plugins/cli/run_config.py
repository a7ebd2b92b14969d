"""What the file of ``kvarena run`` says: a storage's sections, and beside them the model, the trace and the loop."""

from pathlib import Path

import attrs

from kvarena.assembly.config import (
    ArenaConfig,
    Choice,
    PluginsConfig,
    PoliciesConfig,
    StorageConfig,
    at_least,
    known_version,
    read_toml,
    structure,
)
from kvarena.plugins.replay.traces import TraceOptions
from kvarena.plugins.serving.scheduler import ServingConfig


@attrs.frozen(kw_only=True)
class TraceSection:
    """``[trace]``: the file that lengths and arrivals are read from, and what part of it, in what shape.

    ``file`` is sought beside the config. The other settings are those of ``kvarena replay``.
    """

    file: Path
    format: str | None = None
    on_bad: str = "stop"
    limit: int | None = None
    start: float = 0.0
    stop: float | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    prompt_max: int | None = None
    output_max: int | None = None
    seed: int = 0

    def options(self) -> TraceOptions:
        """The part and shape, as the reader takes it."""
        return TraceOptions(**attrs.asdict(self, filter=attrs.filters.exclude(attrs.fields(TraceSection).file)))


@attrs.frozen(kw_only=True)
class ClockSection:
    """``[clock]``: how long a step lasts on the loop's clock, so that a run repeats to the step everywhere.

    A step takes ``step_seconds``, and ``token_seconds`` more for each token that it forwards.
    """

    step_seconds: float = attrs.field(default=0.02, validator=attrs.validators.gt(0))
    token_seconds: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))


@attrs.frozen(kw_only=True)
class RunConfig:
    """A whole run. ``model`` is a name of the table of tiny models, or a folder with weights.

    ``seed`` draws the weights of a tiny model and the tokens of the prompts.
    """

    model: str
    arena: ArenaConfig
    trace: TraceSection
    version: int = attrs.field(default=1, validator=known_version)
    seed: int = attrs.field(default=0, validator=at_least(0, 1 << 32))
    backend: Choice = attrs.field(default="cpu", converter=Choice.of)
    serving: ServingConfig = attrs.field(factory=ServingConfig)
    clock: ClockSection = attrs.field(factory=ClockSection)
    policies: PoliciesConfig = attrs.field(factory=PoliciesConfig)
    plugins: PluginsConfig = attrs.field(factory=PluginsConfig)

    def storage(self) -> StorageConfig:
        """The sections that one storage is built from."""
        return StorageConfig(arena=self.arena, backend=self.backend, policies=self.policies, plugins=self.plugins)


def read_run_config(path: str | Path, model: str | None = None) -> RunConfig:
    """Read a config file; ``model`` takes the place of the one it names.

    Raises:
        ConfigError: with the file, the key and what would do.
    """
    data = read_toml(path)
    if model is not None:
        data["model"] = model
    config = structure(RunConfig, data, Path(path).name)
    file = config.trace.file
    return attrs.evolve(config, trace=attrs.evolve(config.trace, file=Path(path).parent / file))
