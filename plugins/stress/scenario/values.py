"""What a scenario file may say in a value: names and sums of variables, and what an answer is expected to be.

A text that begins with ``=`` is a sum: ``"= range(max(0, n - 4), n)"``. In any other text ``{n}`` is the variable's
value. Sums know whole numbers, ``+ - * // %``, comparisons, ``and``, ``or``, ``not``, ``[...]``, ``min``, ``max``,
``range``, ``len``, ``sum``, ``distinct`` (how many are different) and ``names`` (``names('A', [0, 2])``: A0 and A2).
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvarena.terms.errors import ConfigError, nearest

Variables = Mapping[str, Any]

SIZE_MAX = 1 << 20
"""A value has no more items, of lists in it too, and characters."""
NUMBER_MAX = 10**18
NESTED_MAX = 64
_Sized = (str, bytes, list, tuple)
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda one, many: one in many,
}  # fmt: skip
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_HOLE = re.compile(r"\{([A-Za-z_]\w*)\}")


def _ranged(*ends: int) -> list[int]:
    found = range(*ends)
    if any(abs(end) > NUMBER_MAX for end in ends):
        raise _too_large()
    _check_count(len(found))
    return list(found)


def _summed(numbers: Iterable[int]) -> int:
    return sum(numbers)


def _distinct(values: Iterable[Any]) -> int:
    return len({str(value) for value in values})


def _names(start: str, numbers: Sequence[int]) -> list[str]:
    _check_count(len(start) * len(numbers))
    return [f"{start}{number}" for number in numbers]


_CALLS: Mapping[str, Callable[..., Any]] = {
    "min": min, "max": max, "range": _ranged, "len": len, "sum": _summed, "distinct": _distinct,
    "names": _names,
}  # fmt: skip


def resolved(value: Any, variables: Variables) -> Any:
    """A value of the file with its variables filled in, lists and tables included.

    Raises:
        ConfigError: a sum that is none, a variable that is not there, or a value that is absurdly large.
    """
    found = _resolved(value, variables)
    if found is not value:
        check_size(found)
    return found


def check_size(value: Any) -> None:
    """Whether a value is one that a file may mean; looks at lists in lists, level by level.

    Raises:
        ConfigError: it is absurdly large, or nested absurdly deep.
    """
    level, count = [value], 0
    for _ in range(NESTED_MAX):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, int) and abs(each) > NUMBER_MAX:
                raise _too_large()
            if isinstance(each, (*_Sized, Mapping)):
                count += len(each)
                _check_count(count)
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list | tuple):
                inner += each
        if not inner:
            return
        level = inner
    raise ConfigError(f"lists more than {NESTED_MAX} deep are absurd")


def _check_count(count: int) -> None:
    if count > SIZE_MAX:
        raise ConfigError(f"a value of {count:,} items or characters is absurd; at most {SIZE_MAX:,}")


def _too_large() -> ConfigError:
    return ConfigError(f"a number beyond {NUMBER_MAX:,} is absurd")


def _resolved(value: Any, variables: Variables) -> Any:
    if isinstance(value, str):
        return _sum(value[1:].strip(), variables) if value.startswith("=") else _filled(value, variables)
    if isinstance(value, Mapping):
        return {_resolved(key, variables): _resolved(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, variables) for each in value]
    return value


def _filled(text: str, variables: Variables) -> str:
    """A text with its holes filled."""
    count = len(text)

    def fill(found: re.Match[str]) -> str:
        nonlocal count
        filling = str(_variable(found[1], variables))
        count += len(filling)
        _check_count(count)
        return filling

    return _HOLE.sub(fill, text)


def several(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def _sum(text: str, variables: Variables) -> Any:
    try:
        return _worked_out(ast.parse(text, mode="eval").body, variables)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError) as error:
        raise ConfigError(f"'= {text[:80]}' is no sum: {str(error) or 'it is too long'}") from None


def _worked_out(node: ast.expr, variables: Variables) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _variable(node.id, variables)
    if isinstance(node, ast.List):
        return [_worked_out(each, variables) for each in node.elts]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_worked_out(node.operand, variables))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _joined(node.op, _worked_out(node.left, variables), _worked_out(node.right, variables))
    if isinstance(node, ast.BoolOp):
        parts = (bool(_worked_out(each, variables)) for each in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare) and all(type(op) in _BINARY for op in node.ops):
        values = [_worked_out(each, variables) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        return all(_BINARY[type(op)](left, right) for op, left, right in pairs)
    if isinstance(node, ast.Subscript):
        return _worked_out(node.value, variables)[_worked_out(node.slice, variables)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return _CALLS[node.func.id](*(_worked_out(each, variables) for each in node.args))
    raise ConfigError(f"'{ast.unparse(node)[:80]}' may not stand in a sum; it knows numbers, variables and {_known()}")


def _joined(op: ast.operator, left: Any, right: Any) -> Any:
    """Two values and what is between them. What would be absurdly large is not made first."""
    if isinstance(op, ast.Mod) and isinstance(left, str | bytes):
        raise ConfigError("% divides numbers, and fills in no text")
    if isinstance(op, ast.Mult):
        for many, times in ((left, right), (right, left)):
            if isinstance(many, _Sized) and isinstance(times, int):
                _check_count(len(many) * times)
    found = _BINARY[type(op)](left, right)
    check_size(found)
    return found


def _known() -> str:
    return f"+ - * // %, comparisons, {', '.join(_CALLS)}"


def _variable(name: str, variables: Variables) -> Any:
    if name not in variables:
        raise ConfigError(f"there is no variable {name!r} here; {nearest(name, variables)}")
    return variables[name]


_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda found, bound: found >= bound,
    "at_most": lambda found, bound: found <= bound,
    "length": lambda found, count: len(found) == count,
    "distinct": lambda found, count: _distinct(found) == count,
    "contains": lambda found, item: item in found,
    "is_not": lambda found, other: not matches(found, other),
}
_WORDS: Mapping[str, Any] = {"yes": True, "no": False}


def matches(found: Any, expected: Any) -> bool:
    """Whether an answer is what was expected.

    A table of bounds (``at_least``, ``at_most``, ``length``, ``distinct``, ``contains``, ``is_not``) holds all of them;
    ``{any = [...]}`` one of several; any other table names what it expects of an answer that is a table, the rest is
    free. ``yes`` and ``no`` are an answer of admission too.
    """
    if isinstance(expected, Mapping):
        if set(expected) == {"any"}:
            return any(matches(found, each) for each in expected["any"])
        if expected and set(expected) <= set(_CHECKS):
            try:
                return all(_CHECKS[name](found, bound) for name, bound in expected.items())
            except TypeError:
                return False
        if not isinstance(found, Mapping):
            return False
        return all(name in found and matches(found[name], each) for name, each in expected.items())
    if isinstance(expected, str) and isinstance(found, Mapping) and "answer" in found:
        return bool(found["answer"] == expected)
    if isinstance(expected, str) and expected in _WORDS and isinstance(found, bool):
        return found is _WORDS[expected]
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(expected, list) and isinstance(found, Sequence) and not isinstance(found, str):
        return len(found) == len(expected) and all(map(matches, found, expected))
    return bool(found == expected)


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """Where an answer that is a table is not what was expected: for people."""
    is_bound = isinstance(expected, Mapping) and (set(expected) == {"any"} or set(expected) <= set(_CHECKS))
    if not isinstance(expected, Mapping) or is_bound or not isinstance(found, Mapping):
        return [] if matches(found, expected) else [f"{at or 'the answer'} is {found!r}, not {spelled(expected)}"]
    words = []
    for name, each in expected.items():
        place = f"{at}.{name}" if at else str(name)
        words += differences(found[name], each, place) if name in found else [f"there is no {place}"]
    return words


def spelled(expected: Any) -> str:
    """An expectation in words."""
    if isinstance(expected, Mapping) and set(expected) == {"any"}:
        return " or ".join(spelled(each) for each in expected["any"])
    if isinstance(expected, Mapping) and expected and set(expected) <= set(_CHECKS):
        return " and ".join(f"{name.replace('_', ' ')} {bound!r}" for name, bound in expected.items())
    return repr(expected)
