"""From a model's config.json to the layers that planning takes, with every byte accounted for.

``read_config`` reads the file, ``read_model`` finds the reader of its model type among the plugins of
kind ``models``. A reader maps ``Fields`` to an ``Outline``: whole-model geometry, which is cut for one
tensor-parallel rank afterwards. No weights, no torch.
"""

from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.read import read_config, read_model
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.models.summary import summarize

__all__ = ["Fields", "LayerOutline", "ModelSpec", "Outline", "Piece", "read_config", "read_model", "summarize"]
