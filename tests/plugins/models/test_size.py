"""Estimates of parameters and weight bytes stand beside published totals."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvarena.plugins.models.weights import weights_bytes
from kvarena.terms.errors import ConfigError

PUBLISHED = {
    "llama-3.1-8b": (8.03e9, 7.5e9),
    "llama-3.1-70b": (70.55e9, 69.5e9),
    "gpt-oss-20b": (20.91e9, 3.61e9),
    "gpt-oss-120b": (116.83e9, 5.13e9),
    "deepseek-v3": (671e9, 37e9),
    "deepseek-v3.2": (671e9, 37e9),
    "deepseek-v4-flash": (284e9, 13e9),
    "kimi-linear-48b-a3b": (48e9, 3e9),
    "qwen3-next-80b-a3b": (80e9, None),
    "qwen3.5-35b-a3b": (35e9, 3e9),
    "qwen3.5-27b": (27e9, None),
    "bamba-9b": (9.78e9, None),
    "jamba-v0.1": (51.6e9, 12e9),
    "granite-4.0-tiny-preview": (6.67e9, None),
    "nemotron-3-nano-30b-a3b": (31.6e9, 3.2e9),
    "nemotron-3-super-120b-a12b": (120.6e9, 12e9),
    "mamba-codestral-7b-v0.1": (7.28e9, None),
    "recurrentgemma-2b": (2.68e9, None),
    "minimax-m1-80k": (456e9, 45.9e9),
    "command-r7b-12-2024": (8.03e9, None),
    "mistral-7b-v0.1": (7.24e9, None),
    "lfm2-1.2b": (1.17e9, None),
    "llama-4-scout": (107.8e9, 17e9),
    "step-3.7-flash": (196e9, 11e9),
    "gemma-3-4b-it": (3.88e9, None),
    "gemma-3n-e4b": (6.87e9, None),
}
"""Total parameters (language model alone) and those active per token, from model cards and weight files."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_near_the_published_count(name: str, published: Any, read: Any) -> None:
    """Totals are within 3 % and active counts within 7 % of what the model's authors state."""
    total, active = PUBLISHED[name]
    spec = read(published(name))

    assert spec.parameters == pytest.approx(total, rel=0.03)
    assert spec.active_parameters <= spec.parameters
    if active is not None:
        assert spec.active_parameters == pytest.approx(active, rel=0.07)


def test_a_config_that_does_not_say_enough_has_no_estimate(published: Any, read: Any) -> None:
    """Falcon-H1's file lacks its vocabulary, so nothing is made up; planning does not need it."""
    spec = read(published("falcon-h1-0.5b"))

    assert spec.parameters is None
    assert spec.active_parameters is None


def test_weights_from_the_index(tmp_path: Path, published: Any, read: Any) -> None:
    """The total in the safetensors index is exact, and wins over the files beside it."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1001}}))
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 7)
    spec = read(published("llama-3.1-8b"), tp=2)

    assert weights_bytes(tmp_path, spec).bytes == 501
    assert weights_bytes(tmp_path / "config.json", spec).source == "model.safetensors.index.json"


def test_weights_from_the_files(tmp_path: Path, published: Any, read: Any) -> None:
    """Without an index the safetensors files are summed; other files are not weights."""
    for name, size in (("a.safetensors", 10), ("b.safetensors", 6), ("tokenizer.json", 99)):
        (tmp_path / name).write_bytes(b"x" * size)

    weights = weights_bytes(tmp_path, read(published("llama-3.1-8b"), tp=2))
    assert (weights.bytes, weights.source) == (8, "2 safetensors files")


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama-3.1-8b", 16.06e9),
        ("gpt-oss-20b", 13.76e9),
        ("gpt-oss-120b", 65.25e9),
        ("deepseek-v3", 671e9),
        ("qwen3-next-80b-a3b", 160e9),
    ],
)
def test_weights_estimated_by_how_they_are_stored(
    tmp_path: Path, name: str, total: float, published: Any, read: Any
) -> None:
    """bf16 two bytes, fp8 one, MXFP4 experts half a byte and a scale: within 5 % of the published files."""
    weights = weights_bytes(tmp_path / "config.json", read(published(name)))

    assert weights.bytes == pytest.approx(total, rel=0.05)
    assert weights.source.startswith("estimated")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"metadata": {"total_size": "big"}}', '{"metadata": {"total_size": 0}}', "[]"]
)
def test_a_broken_index_is_refused(tmp_path: Path, text: str, published: Any, read: Any) -> None:
    """An index without a total is named, not skipped in silence."""
    (tmp_path / "model.safetensors.index.json").write_text(text)

    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json"):
        weights_bytes(tmp_path, read(published("llama-3.1-8b")))


def test_no_weights_and_no_size_is_refused(tmp_path: Path, published: Any, read: Any) -> None:
    """Neither files nor enough fields: the user is told to say the bytes."""
    with pytest.raises(ConfigError, match="--weights BYTES"):
        weights_bytes(tmp_path, read(published("falcon-h1-0.5b")))
