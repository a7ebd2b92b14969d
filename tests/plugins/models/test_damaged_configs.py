"""Whatever one field of a published config is damaged to, the model is read or refused; nothing crashes."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_config, read_model, summarize
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.terms.errors import ConfigError

FILES = [
    path for path in sorted((Path(__file__).parents[2] / "data" / "models").glob("*.json")) if path.stem != "expected"
]
CONFIGS = {path.stem: read_config(path) for path in FILES}
DAMAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.just(10**12),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from([[], {}, [None], [1.5], ["full_attention"], [[1]], {"text": 3}, "full_attention"]),
)


def places(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value, nested ones too."""
    for name, value in config.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from places(value, (*above, name))


PLACES = [(model, place) for model, config in CONFIGS.items() for place in places(config)]


@settings(max_examples=150)
@given(where=st.sampled_from(PLACES), value=DAMAGE)
def test_any_one_damaged_field_is_read_or_refused(where: tuple[str, tuple[str, ...]], value: Any, catalog: Any) -> None:
    """One value of any type in any place: a spec whose figures can be made, or a ConfigError that names the file."""
    model, place = where
    config = copy.deepcopy(CONFIGS[model])
    holder = config
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value

    try:
        spec = read_model(config, source=f"{model}.json", catalog=catalog)
        summarize(spec, plan_storage(spec.layers))
        if spec.parameters and spec.active_parameters:
            model_cost(spec)
    except ConfigError as refusal:
        message = str(refusal)
        assert message.startswith(f"{model}.json: ") or "keeps any memory" in message
