"""Answering a prompt with a model folder."""

import json
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvarena.plugins.transformers.folder import load_folder
from kvarena.plugins.transformers.memory import ArenaFullError
from kvarena.plugins.transformers.text import load_local
from kvarena.plugins.transformers.tiny import build_tiny, load_model
from kvarena.terms.errors import ConfigError

WORDS = [f"w{number}" for number in range(253)]
PROMPT = " ".join(WORDS[7:60:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny lfm3 and a tokenizer of 253 words, saved as any model is."""
    path = tmp_path_factory.mktemp("models") / "tiny-lfm3"
    build_tiny("lfm3").save_pretrained(path)
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(path)
    return path


def test_the_answer_is_that_of_plain_generate(folder):
    """Weights and tokenizer from disk, greedy, through an arena: the words that transformers alone gives."""
    local = load_local(folder)
    inputs = local.tokenizer(PROMPT, return_tensors="pt")
    plain = local.model.generate(input_ids=inputs["input_ids"], max_new_tokens=24, do_sample=False)
    length = inputs["input_ids"].shape[1]
    found = local.answer(PROMPT, memory="4MiB", max_new_tokens=24)

    assert found.prompt_tokens == length == 27
    assert found.tokens == tuple(plain[0, length:].tolist())
    assert found.text == local.tokenizer.decode(plain[0, length:], skip_special_tokens=True)
    assert found.text.startswith("w")
    wide = {"name": "mha", "dtype": "float64"}
    assert local.answer(PROMPT, memory="4MiB", max_new_tokens=24, kv_layout=wide) == found


def test_a_chat_template_gets_the_prompt_as_a_turn(folder):
    """An instruct model is asked in its own form."""
    local = load_local(folder)
    plain = local.answer("w3 w4", memory="4MiB", max_new_tokens=2)
    local.tokenizer.chat_template = "w1 {% for message in messages %}{{ message.content }}{% endfor %} w2"

    assert local.answer("w3 w4", memory="4MiB", max_new_tokens=2).prompt_tokens == plain.prompt_tokens + 2


def test_a_full_arena_and_an_empty_prompt_are_told(folder):
    """One clear error each."""
    local = load_local(folder)
    with pytest.raises(ArenaFullError, match="the arena is full"):
        local.answer(PROMPT, memory="60KiB", max_new_tokens=200)
    with pytest.raises(ConfigError, match="prompt is empty"):
        local.answer("", memory="4MiB")


def test_a_folder_serves_as_a_model_too(folder):
    """``load_model`` takes a tiny name or a folder; the weights are those that were saved."""
    loaded = load_model(str(folder))

    assert torch.equal(loaded.lm_head.weight, build_tiny("lfm3").lm_head.weight)
    assert not loaded.training


def test_each_missing_piece_is_named(folder, tmp_path):
    """No folder, no config, no weights, no tokenizer, nonsense in the config."""
    with pytest.raises(ConfigError, match="no such folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"no weights.*safetensors"):
        load_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"no tokenizer files.*tokenizer\.json"):
        load_local(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="the model cannot be loaded"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(ConfigError, match=r"cannot be loaded.*no_such_model"):
        load_folder(tmp_path)


def test_a_missing_extra_has_the_command():
    """Without transformers the room does not open, and says what to install."""
    program = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'transformers' else find(name, *rest)\n"
        "from kvarena.terms.errors import MissingExtraError\n"
        "try:\n"
        "    import kvarena.plugins.transformers\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "transformers is needed here" in found.stdout
    assert "pip install 'kvarena[hf]'" in found.stdout
