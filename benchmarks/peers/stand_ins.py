"""Stand-ins for packages that a peer imports and that its allocator never calls.

A serving engine imports GPU kernels, web servers and tokenizers long before its memory manager. The names listed by
the caller, where they are not installed, become modules whose every attribute is an inert class: it can be called,
subclassed, subscripted and used as a decorator. Packages that are installed always win.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class _Inert(type):
    """A class of which everything can be asked, and nothing happens."""

    def __getattr__(cls, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        return _inert(name)

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _Module(types.ModuleType):
    """A module of inert classes."""

    def __getattr__(self, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        made = _inert(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the listed packages; asked last, so that installed ones are found first."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def stand_in(names: Iterable[str]) -> None:
    """From now on, those of these packages that are not installed can be imported."""
    sys.meta_path.append(_Finder(names))


def is_installed(package: str) -> bool:
    """Whether Python finds the package itself."""
    return importlib.util.find_spec(package) is not None


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _inert(name: str) -> Any:
    def call(self: object, *arguments: Any, **named: Any) -> Any:
        """A decorator gives back what it decorates."""
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else self

    def nothing(self: object, *arguments: Any, **named: Any) -> None:
        """Anything may be passed."""

    def attribute(self: object, asked: str) -> Any:
        if _is_special(asked):
            raise AttributeError(asked)
        return _inert(asked)

    return _Inert(name, (), {"__init__": nothing, "__call__": call, "__getattr__": attribute})
