"""The version that is installed, as its metadata says; read when ``kvarena.__version__`` is first asked for."""

import importlib_metadata

__version__ = importlib_metadata.version("kvarena")
