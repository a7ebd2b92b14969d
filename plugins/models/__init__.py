"""From a model's config.json to the layers that planning takes, with every byte accounted for.

``read_config`` reads the file, ``read_model`` finds the reader of its model type among the plugins of
kind ``models``. A reader maps ``Fields`` to an ``Outline``: whole-model geometry, which is cut for one
tensor-parallel rank afterwards. No weights, no torch.

For a reader of one's own: ``layer_count``, ``listed_words`` (one word per layer from ``layer_types``), ``heads_of`` and
``attention_layer`` read what most configs have in common.
"""

from kvarena.plugins.models.attention import attention_layer
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.patterns import layer_count, listed_words
from kvarena.plugins.models.read import read_config, read_model
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.models.summary import summarize
from kvarena.plugins.models.tokens import Heads, heads_of

__all__ = [
    "Fields",
    "Heads",
    "LayerOutline",
    "ModelSpec",
    "Outline",
    "Piece",
    "attention_layer",
    "heads_of",
    "layer_count",
    "listed_words",
    "read_config",
    "read_model",
    "summarize",
]
