"""Whose a plugin's value is: the distribution that brought its class, for messages.

Metadata is read when something went wrong and is told, never on the way of a step.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import importlib_metadata

from kvarena.terms.errors import PluginError
from kvarena.terms.offers import offers


def owner_of(value: Any) -> str:
    """The distribution and version that a value's class, or a class or function itself, came with.

    Such as ``"kvarena-rowscale 0.1"``: the one whose entry point names it, or any part of its module or package; else
    the one that installed its package. Empty where none is known, as for a class of the program itself.
    """
    made = _made(value)
    module, name = getattr(made, "__module__", None) or "", getattr(made, "__qualname__", "")
    best: tuple[int, str] = (0, "")
    for likeness, owner in _alike(module, name):
        if likeness > best[0]:
            best = (likeness, owner)
    return best[1] or _installed_with(module.partition(".")[0])


def described(kind: str, value: Any) -> str:
    """A plugin's value for a message: ``layout 'rowscaled-int8' (kvarena-rowscale 0.1)``.

    Where no distribution is known, its class stands in the brackets: ``(my_module.RowScaledLayout)``.
    """
    made = _made(value)
    path = f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', repr(made))}".lstrip(".")
    return f"{kind} {_name_of(value)!r} ({owner_of(value) or path})"


def _made(value: Any) -> Any:
    """What has a module: a class, a function or a module as it is, of any other value its class."""
    return value if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) else type(value)


def _name_of(value: Any) -> str:
    """The name that the value gives itself, or that of its class: a broken value may not even have one."""
    try:
        name = value.name
    except Exception:
        name = None
    return name if isinstance(name, str) else str(getattr(_made(value), "__name__", "without a name"))


def _alike(module: str, name: str) -> Iterator[tuple[int, str]]:
    """Entry points of plugins that are like this: the same thing 3, of its module 2, of its package 1."""
    top = module.partition(".")[0]
    for offer in offers():
        target, _, attribute = offer.target.partition(":")
        if target.partition(".")[0] == top:
            likeness = 1 if target != module else 3 if attribute == name else 2
            yield likeness, f"{offer.distribution} {offer.version}"


def _installed_with(package: str) -> str:
    """The distribution that installed a top-level package; of several, the first by name."""
    if package in sys.stdlib_module_names or package == "__main__":
        return ""
    for name in sorted(_packages(tuple(sys.path)).get(package, ())):
        return f"{name} {importlib_metadata.version(name)}"
    return ""


@lru_cache(maxsize=4)
def _packages(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Distributions by the packages that they brought; finding them reads every list of files on the path."""
    return importlib_metadata.packages_distributions()


MISHAPS = (Exception, SystemExit)
"""What a plugin's code may raise and is told as its fault: one that leaves must not take the command along."""


def raising(asked: str, error: BaseException) -> str:
    """What a plugin did that raised, in one line, such as ``take(2) raised KeyError: 'x'``."""
    words = " ".join(str(error).split())
    return f"{asked} raised {type(error).__name__}" + (f": {words}" if words else "")


def misbehaves(name: str, kind: str, value: Any, finding: str) -> PluginError:
    """The error for a plugin that broke a promise: who it is, what it did, and the promise by its name.

    ``name`` is the promise's, as docs/checks.md lists it; ``kind`` the word for what ``value`` is.
    """
    return PluginError(f"{described(kind, value)}: {finding} ({name})")
