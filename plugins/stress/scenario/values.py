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

RANGE_MAX = 1 << 20
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda one, many: one in many,
}  # fmt: skip
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_HOLE = re.compile(r"\{([A-Za-z_]\w*)\}")


def _ranged(*ends: int) -> list[int]:
    found = range(*ends)
    if len(found) > RANGE_MAX:
        raise ConfigError(f"a range of {len(found):,} is absurd; at most {RANGE_MAX:,}")
    return list(found)


def _distinct(values: Iterable[Any]) -> int:
    return len({str(value) for value in values})


def _names(start: str, numbers: Iterable[int]) -> list[str]:
    return [f"{start}{number}" for number in numbers]


_CALLS: Mapping[str, Callable[..., Any]] = {
    "min": min, "max": max, "range": _ranged, "len": len, "sum": sum, "distinct": _distinct, "names": _names,
}  # fmt: skip


def resolved(value: Any, variables: Variables) -> Any:
    """A value of the file with its variables filled in, lists and tables included.

    Raises:
        ConfigError: a sum that is none, or a variable that is not there.
    """
    if isinstance(value, str):
        if value.startswith("="):
            return _sum(value[1:].strip(), variables)
        return _HOLE.sub(lambda found: str(_variable(found[1], variables)), value)
    if isinstance(value, Mapping):
        return {resolved(key, variables): resolved(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [resolved(each, variables) for each in value]
    return value


def several(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def _sum(text: str, variables: Variables) -> Any:
    try:
        return _worked_out(ast.parse(text, mode="eval").body, variables)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise ConfigError(f"'= {text[:80]}' is no sum: {error}") from None


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
        return _BINARY[type(node.op)](_worked_out(node.left, variables), _worked_out(node.right, variables))
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
