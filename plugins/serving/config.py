"""The settings of the loop: ``[serving]``."""

import attrs

from kvarena.assembly.config import SettingError, at_least
from kvarena.planning.demand import LENGTH_MAX
from kvarena.terms.doors import is_share


@attrs.frozen
class ServingConfig:
    """How the loop batches. ``chunk_tokens``: the prefill chunk of one request in a step; ``step_tokens``:
    what all prefills of a step share, at least one chunk; ``output_fraction``: the share of its maximal
    output that a request is charged at admission (1.0: it never runs dry); ``keep_forwards``: keep each
    request's forwards in the report, to repeat them elsewhere.
    """

    chunk_tokens: int = attrs.field(default=512, validator=at_least(1, LENGTH_MAX))
    step_tokens: int = attrs.field(default=2048, validator=at_least(1, LENGTH_MAX))
    output_fraction: float = attrs.field(default=1.0, metadata={"schema": {"exclusiveMinimum": 0, "maximum": 1}})
    keep_forwards: bool = False

    @step_tokens.validator
    def _holds_a_chunk(self, _: object, step_tokens: int) -> None:
        if step_tokens < self.chunk_tokens:
            cure = f"raise it, or lower chunk_tokens, which is {self.chunk_tokens}"
            raise SettingError("step_tokens", f"is {step_tokens}, less than one chunk; {cure}")

    @output_fraction.validator
    def _is_a_share(self, _: object, output_fraction: float) -> None:
        if not is_share(output_fraction):
            raise SettingError("output_fraction", f"is {output_fraction!r}; it must be above 0 and at most 1")
