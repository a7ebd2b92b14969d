"""A state of Python objects that can be put back: what a search over operations returns to before its next try.

Objects keep their identity: their contents are written back in place, so views of arrays stay views of the same bytes.
"""

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Put = tuple[Callable[[Any, Any], None], Any, Any]
"""How to put one object back: the function, the object, and what it had."""

_STILL = (
    str, bytes, int, float, complex, bool, type(None), type, range, slice, np.generic, np.dtype, type(Ellipsis),
    types.ModuleType, types.CodeType, types.BuiltinFunctionType,
)  # fmt: skip
"""Values, and what no operation changes."""
_OUTSIDE = ("pluggy", "random", "functools", "re", "fractions", "importlib", "pathlib", "enum", "_thread", "threading")
"""Packages whose objects are passed by: nothing of theirs that a storage holds is changed by an operation."""


class Memory:
    """The contents of everything that can be reached from some roots.

    ``still``: objects that nothing changes, and that are not looked into.
    """

    def __init__(self, roots: Iterable[Any], still: Iterable[Any] = ()) -> None:
        self._seen: set[int] = {id(one) for one in still}
        self._puts: list[Put] = []
        self._kept: list[Any] = []
        """Temporary objects, so that no other gets their number while the walk goes on."""
        stack = list(roots)
        while stack:
            self._look(stack.pop(), stack)
        self._kept.clear()

    def __len__(self) -> int:
        """How many objects can be put back."""
        return len(self._puts)

    def put_back(self) -> None:
        """Everything has the contents that it had when this was made; what was made since is let go."""
        for put, one, had in self._puts:
            put(one, had)

    def _look(self, one: Any, stack: list[Any]) -> None:
        kind = type(one)
        if kind in _STILL_TYPES or id(one) in self._seen:
            return
        self._seen.add(id(one))
        look = _LOOKS.get(kind)
        if look is None:
            look = _LOOKS[kind] = _look_for(kind)
        look(self, one, stack)

    # -- by kind

    def _dict(self, one: dict[Any, Any], stack: list[Any]) -> None:
        self._puts.append((_put_dict, one, one.copy()))
        stack += one.keys()
        stack += one.values()

    def _list(self, one: list[Any], stack: list[Any]) -> None:
        self._puts.append((_put_list, one, one[:]))
        stack += one

    def _deque(self, one: "deque[Any]", stack: list[Any]) -> None:
        self._puts.append((_put_deque, one, list(one)))
        stack += one

    def _set(self, one: set[Any], stack: list[Any]) -> None:
        self._puts.append((_put_set, one, one.copy()))
        stack += one

    def _items(self, one: Iterable[Any], stack: list[Any]) -> None:
        stack += one

    def _bytes(self, one: bytearray, stack: list[Any]) -> None:
        self._puts.append((_put_list, one, bytes(one)))

    def _array(self, one: Any, stack: list[Any]) -> None:
        base = one.base
        if base is not None:  # a view: whoever has the bytes is put back
            stack.append(base)
            self._kept.append(base)
        elif one.size and one.flags.writeable:
            self._puts.append((np.copyto, one, one.copy()))

    def _memoryview(self, one: memoryview, stack: list[Any]) -> None:
        stack.append(one.obj)

    def _function(self, one: types.FunctionType, stack: list[Any]) -> None:
        for cell in one.__closure__ or ():
            stack.append(cell.cell_contents)
        stack += one.__defaults__ or ()

    def _method(self, one: types.MethodType, stack: list[Any]) -> None:
        stack.append(one.__self__)

    def _partial(self, one: "functools.partial[Any]", stack: list[Any]) -> None:
        stack.append(one.func)
        stack += one.args
        stack += one.keywords.values()

    def _nothing(self, one: Any, stack: list[Any]) -> None:
        """Passed by."""


def _look_for(kind: type) -> Callable[[Memory, Any, list[Any]], None]:
    """How to look at objects of a class that is met for the first time."""
    if issubclass(kind, _STILL) or kind.__module__.partition(".")[0] in _OUTSIDE:
        return Memory._nothing
    for base, look in tuple(_LOOKS.items()):
        if issubclass(kind, base) and base is not object:
            return look if base is tuple else _both(kind, look)
    return _fields(kind)


def _fields(kind: type) -> Callable[[Memory, Any, list[Any]], None]:
    """For a class with attributes: those in its ``__dict__``, and those in slots."""
    slots = slots_of(kind)
    has_dict = bool(getattr(kind, "__dictoffset__", 0))
    is_frozen = "_frozen" in getattr(kind.__setattr__, "__name__", "")  # attrs: only what it holds can change
    if not slots and not has_dict and "__slots__" not in vars(kind):
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be put back: nothing is known of its inside")

    def look(memory: Memory, one: Any, stack: list[Any]) -> None:
        if has_dict:
            had = vars(one).copy()
            if not is_frozen:
                memory._puts.append((_put_vars, one, had))
            stack += had.values()
        if slots:
            held = [(name, getattr(one, name)) for name in slots if hasattr(one, name)]
            if not is_frozen:
                memory._puts.append((_put_slots, one, held))
            stack += [value for _, value in held]

    return look


def _both(kind: type, inside: Callable[[Memory, Any, list[Any]], None]) -> Callable[[Memory, Any, list[Any]], None]:
    """For a container's subclass with attributes of its own."""
    has_fields = bool(slots_of(kind) or getattr(kind, "__dictoffset__", 0))
    fields = _fields(kind) if has_fields else None

    def look(memory: Memory, one: Any, stack: list[Any]) -> None:
        inside(memory, one, stack)
        if fields is not None:
            fields(memory, one, stack)

    return look


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of all slots of a class, its bases' first."""
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        own = base.__dict__.get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            if name not in ("__weakref__", "__dict__"):
                mangled = name.startswith("__") and not name.endswith("__")
                names[f"_{base.__name__.lstrip('_')}{name}" if mangled else name] = None
    return tuple(names)


def _put_dict(one: dict[Any, Any], had: dict[Any, Any]) -> None:
    one.clear()
    one.update(had)


def _put_list(one: Any, had: Any) -> None:
    one[:] = had


def _put_deque(one: "deque[Any]", had: list[Any]) -> None:
    one.clear()
    one.extend(had)


def _put_set(one: set[Any], had: set[Any]) -> None:
    one.clear()
    one.update(had)


def _put_vars(one: Any, had: dict[str, Any]) -> None:
    now = vars(one)
    if len(now) != len(had):
        now.clear()
    now.update(had)


def _put_slots(one: Any, had: list[tuple[str, Any]]) -> None:
    for name, value in had:
        object.__setattr__(one, name, value)


_STILL_TYPES = frozenset(_STILL)
_LOOKS: dict[type, Callable[[Memory, Any, list[Any]], None]] = {
    dict: Memory._dict,
    list: Memory._list,
    deque: Memory._deque,
    set: Memory._set,
    frozenset: Memory._items,
    tuple: Memory._items,
    bytearray: Memory._bytes,
    np.ndarray: Memory._array,
    memoryview: Memory._memoryview,
    types.FunctionType: Memory._function,
    types.MethodType: Memory._method,
    functools.partial: Memory._partial,
    types.MappingProxyType: lambda memory, one, stack: stack.extend((*one.keys(), *one.values())),
}
