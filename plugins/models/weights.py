"""How many bytes a model's weights take on one rank: from the files beside its config, else from its size."""

import json
from pathlib import Path

import attrs

from kvarena.plugins.models.spec import ModelSpec
from kvarena.terms.errors import ConfigError
from kvarena.terms.units import ceil_div


@attrs.frozen
class Weights:
    """Bytes on one rank, and where the figure comes from, for a person."""

    bytes: int
    source: str


def weights_bytes(path: str | Path, spec: ModelSpec) -> Weights:
    """The bytes of a model's weights on one of the spec's ranks.

    ``path`` is the config.json or its folder. A ``model.safetensors.index.json`` there has the total; else
    the ``*.safetensors`` files are summed; else parameters x stored bytes (fp8 one byte, MXFP4 experts 0.53)
    are taken. Divided evenly over the ranks.

    Raises:
        ConfigError: there are no files and the config does not say enough for an estimate.
    """
    folder = Path(path)
    folder = folder if folder.is_dir() else folder.parent
    index = _index_total(folder / "model.safetensors.index.json")
    if index is not None:
        return Weights(ceil_div(index, spec.tp), "model.safetensors.index.json")
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return Weights(ceil_div(sum(file.stat().st_size for file in files), spec.tp), f"{len(files)} safetensors files")
    if spec.parameters is None:
        raise ConfigError(f"{path}: no weights beside it, and its fields do not give its size; say --weights BYTES")
    total = int(spec.parameters * spec.weight_bytes_per_parameter)
    return Weights(
        ceil_div(total, spec.tp),
        f"estimated: {spec.parameters / 1e9:.2f}e9 parameters x {spec.weight_bytes_per_parameter:.2f} bytes",
    )


def _index_total(file: Path) -> int | None:
    try:
        total = json.loads(file.read_text(encoding="utf-8"))["metadata"]["total_size"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: no metadata.total_size can be read from it ({error}); remove or mend it") from error
    if not isinstance(total, (int, float)) or total <= 0:
        raise ConfigError(f"{file}: metadata.total_size is {total!r}; remove or mend the file")
    return int(total)
