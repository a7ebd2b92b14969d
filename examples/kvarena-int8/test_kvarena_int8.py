"""The layout keeps the kit's promises, halves a plan, and serves a model whose tokens are checked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvarena_int8 import Int8Heads

from kvarena import Layout
from kvarena.plugins.cli.main import run
from kvarena.plugins.conformance import LayoutConformance

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 1000, "dtype": "bfloat16",
}  # fmt: skip

SERVE = """
model = "gpt_oss"
memory_requests = 1.5
shared_tokens = 16
kv_layout = { name = "int8-heads", scale_dtype = "float32" }
arena = { page_tokens = 8 }
prefix = { share = true }
serving = { chunk_tokens = 16, output_fraction = 0.25 }
trace = { file = "trace.csv" }
"""


class TestInt8Heads(LayoutConformance):
    """Every promise of a layout, its codec's too."""

    @pytest.fixture(params=["float16", "float32"])
    def layout(self, request: pytest.FixtureRequest) -> Layout:
        return Int8Heads(kv_heads=2, head_dim=16, scale_dtype=request.param)


def answer(capsys: pytest.CaptureFixture[str], *words: Any) -> Any:
    """The JSON that a command prints."""
    assert run([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_holds_twice_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token's 8 heads of 128 take 2,080 bytes a layer, and 4,096 in bfloat16."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    plain = answer(capsys, "plan", config, "--memory", "4GiB")
    coded = answer(capsys, "plan", config, "--memory", "4GiB", "--kv-layout", "int8-heads")

    assert plain["full_bytes_per_token"] == 4 * 4096
    assert coded["full_bytes_per_token"] == 4 * 2080
    assert coded["sizing"]["tokens"] > 1.96 * plain["sizing"]["tokens"]


def test_a_model_is_served_with_equal_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows, shared pages, a small arena: each token is that of transformers' cache behind the same codec."""
    pytest.importorskip("transformers")
    rows = "\n".join(f"2023-11-16 18:15:46.{at}000000,{20 + 7 * at},6" for at in range(5))
    (tmp_path / "trace.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    (tmp_path / "serve.toml").write_text(SERVE)
    served = answer(capsys, "run", tmp_path / "serve.toml")

    assert (served["done"], served["tokens_equal"], served["tokens_compared"]) == (5, True, 30)
    assert served["tokens_reference"] == "transformers' own cache through the codec of 'int8-heads'"


def test_the_layout_needs_no_torch() -> None:
    """Asked for its fields and its codec, it imports none."""
    code = "import sys, kvarena_int8; kvarena_int8.Int8Heads(2, 16).codec; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
