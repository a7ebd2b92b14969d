"""How tensor parallelism cuts a model: heads shared, then repeated; latents whole; states cut or refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.planning.plan import plan_storage
from kvarena.plugins.models.outline import cut, cut_or_repeat
from kvarena.plugins.models.states import KdaState, Mamba2State
from kvarena.terms.errors import ConfigError


@given(count=st.integers(1, 256), tp=st.integers(1, 256))
def test_every_head_has_a_place(count: int, tp: int) -> None:
    """Shares cover all heads, once where they divide, else each head on equally many ranks; or it is refused."""
    if count % tp and tp % count:
        with pytest.raises(ConfigError, match=f"{count} heads"):
            cut_or_repeat(count, tp, "heads")
    else:
        assert cut_or_repeat(count, tp, "heads") * tp == max(count, tp)


@given(count=st.integers(1, 256), tp=st.integers(1, 64))
def test_a_cut_is_even_or_refused(count: int, tp: int) -> None:
    """What is cut adds up to the whole, and what does not divide is refused with both numbers."""
    if count % tp:
        with pytest.raises(ConfigError, match=f"{count} heads .* tp = {tp} ranks"):
            cut(count, tp, "heads")
    else:
        assert cut(count, tp, "heads") * tp == count


@given(heads=st.integers(1, 16), groups=st.sampled_from([1, 2, 4, 8]), tp=st.sampled_from([1, 2, 4, 8, 16]))
def test_groups_of_a_mamba_are_repeated_beyond_their_count(heads: int, groups: int, tp: int) -> None:
    """A rank has its heads' share and at least one group of B and C."""
    state = Mamba2State(heads * tp, 64, groups, 128, 3, "bfloat16", "float32")

    share = state.share(tp)
    assert share["heads"] == heads
    assert share["channels"] == heads * 64 + 2 * max(1, groups // tp) * 128


def test_states_that_do_not_divide_are_refused_by_number(published: Any, read: Any) -> None:
    """Falcon-H1's 24 heads fit 8 ranks, not 16; RecurrentGemma's states fit one rank only."""
    assert read(published("falcon-h1-0.5b"), tp=8).tp == 8
    with pytest.raises(ConfigError, match=r"config\.json: 24 Mamba heads cannot be split evenly over tp = 16"):
        read(published("falcon-h1-0.5b"), tp=16)
    with pytest.raises(ConfigError, match=r"RG-LRU states of 2560 channels .* tp = 2"):
        read(published("recurrentgemma-2b"), tp=2)
    with pytest.raises(ConfigError, match="32 KDA heads"):
        KdaState(32, 128, 3, "bfloat16", "float32").share(3)


def test_kv_heads_that_do_not_divide_are_refused(published: Any, read: Any) -> None:
    """Ten KV heads over four ranks would leave some ranks with more than others."""
    with pytest.raises(ConfigError, match="10 KV heads cannot be split evenly over tp = 4"):
        read(published("llama-3.1-8b", num_attention_heads=40, num_key_value_heads=10, hidden_size=5120), tp=4)


def test_latents_and_indexer_keys_are_whole_on_every_rank(published: Any, read: Any) -> None:
    """A rank of DeepSeek-V3.2 keeps all that one GPU would."""
    one, sixteen = (plan_storage(read(published("deepseek-v3.2"), tp=tp).layers) for tp in (1, 16))

    assert one == sixteen
