"""Tiny models, built once each, on one thread: they are too small to share."""

import functools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch
    import transformers

    from kvarena.plugins.transformers.tiny import build_tiny

    _built = functools.cache(build_tiny)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and one thread adds in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Any]:
    """A tiny model by name, the same object for all tests: none may change it."""
    return _built


@pytest.fixture(scope="session")
def prompts() -> Any:
    """Three prompts of 37 tokens."""
    return torch.randint(3, 256, (3, 37), generator=torch.Generator().manual_seed(1))
