"""Arena-backed caches for transformers models: the drop-in, the runner of the loop, and the judge of both.

Owns everything that knows torch modules and transformers' ``Cache``: what a model caches is learned from
what it writes, never from its name. May import the floors below and ``plugins/serving``; needs the extra
``hf``.

Raises:
    MissingExtraError: at import, when torch or transformers is not installed.
"""

from importlib.util import find_spec

from kvarena.terms.errors import MissingExtraError

for _need in ("torch", "transformers"):
    if find_spec(_need) is None:
        raise MissingExtraError(_need, "hf")

from kvarena.plugins.transformers.cache import ArenaCache  # noqa: E402
from kvarena.plugins.transformers.memory import ArenaFullError  # noqa: E402
from kvarena.plugins.transformers.tiny import TINY, build_tiny  # noqa: E402

__all__ = ["TINY", "ArenaCache", "ArenaFullError", "build_tiny"]
