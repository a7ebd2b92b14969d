"""Model folders on this disk: config.json, weights, tokenizer files. Nothing is ever fetched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from kvarena.terms.errors import ConfigError

CONFIG_FILE = "config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def load_folder(path: str | Path) -> PreTrainedModel:
    """The causal model of a folder, in the dtype of its weights, ready to answer.

    Raises:
        ConfigError: there is no such folder, or its config or weights are missing or cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give one with {CONFIG_FILE} and weights")
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"{folder}: there is no {CONFIG_FILE} in it; this is no model folder")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ConfigError(f"{folder}: there are no weights in it ({', '.join(WEIGHTS)})")
    model = _load(
        folder, "the model", lambda: AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
    )
    return model.eval()


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        ConfigError: its files are missing or cannot be read.
    """
    folder = Path(path)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(f"{folder}: there are no tokenizer files in it ({', '.join(TOKENIZER_FILES)})")
    return _load(folder, "the tokenizer", lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _load(folder: Path, what: str, load: Callable[[], Any]) -> Any:
    """Load one thing; whatever a library says about the folder's files becomes one clear error."""
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"{folder}: {what} cannot be loaded: {first.strip()}") from error
