"""Answering a prompt with a model folder on this disk: config, weights and tokenizer, through an ``ArenaCache``."""

from pathlib import Path
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from kvarena.plugins.transformers.cache import ArenaCache
from kvarena.plugins.transformers.folder import load_folder, load_tokenizer
from kvarena.plugins.transformers.geometry import CACHE_ARGUMENT
from kvarena.terms.errors import ConfigError


@attrs.frozen
class Answer:
    """What the model said: the new text, its tokens, and how many tokens the prompt had."""

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int


@attrs.frozen(eq=False)
class LocalModel:
    """A model and its tokenizer, loaded from a folder."""

    model: PreTrainedModel
    tokenizer: Any

    def answer(self, prompt: str, *, memory: str | int = "2GiB", max_new_tokens: int = 128, **settings: Any) -> Answer:
        """Answer one prompt greedily, the cache in an arena of ``memory`` that is gone afterwards.

        ``settings`` are further ones of ``ArenaCache``, such as ``page_tokens`` and ``kv_layout``. A tokenizer with a
        chat template is given the prompt as a user's turn.

        Raises:
            ConfigError: the prompt is empty.
            ArenaFullError: the answer does not fit the arena; the message has the sum.
        """
        inputs = self._encode(prompt)
        length = inputs["input_ids"].shape[1]
        if not length:
            raise ConfigError("the prompt is empty: the tokenizer makes no token of it")
        with ArenaCache(self.model.config, memory=memory, **settings) as cache, torch.inference_mode():
            found = self.model.generate(
                **inputs, **{CACHE_ARGUMENT: cache}, max_new_tokens=max_new_tokens, do_sample=False
            )
        tokens = found[0, length:].tolist()
        return Answer(self.tokenizer.decode(tokens, skip_special_tokens=True), tuple(tokens), length)

    def _encode(self, prompt: str) -> dict[str, torch.Tensor]:
        if getattr(self.tokenizer, "chat_template", None):
            turns = [{"role": "user", "content": prompt}]
            encoded = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            encoded = self.tokenizer(prompt, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}


def load_local(path: str | Path) -> LocalModel:
    """Load a model and its tokenizer from a folder.

    Raises:
        ConfigError: there is no such folder, or it lacks its config, weights or tokenizer, or they cannot be read.
    """
    model = load_folder(path)
    return LocalModel(model, load_tokenizer(path))
