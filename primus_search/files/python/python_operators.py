"""Operators and functions of Python's own over plain values, bounded: no result grows with what a file writes.

operated(ast.Mult(), 8, 4096)       # 32768
of_function("max", [1, 2])          # 2
"""

import ast
import operator
import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

from primus_search.files.python.python_values import Name, Unknown
from primus_search.files.source import plain as scalar

LONGEST, MOST_BITS, LARGEST = 20_000, 64, 1 << 62
NOTHING = object()
"""What is given where an operator or a function has no result that is followed."""


def _plus(left: Any, right: Any) -> Any:
    """A sum; lists and texts up to the longest that is read."""
    if isinstance(left, list | str) and isinstance(right, list | str) and len(left) + len(right) > LONGEST:
        raise OverflowError
    return left + right


def _times(left: Any, right: Any) -> Any:
    """A product; lists and texts are repeated up to the longest that is read."""
    for parts, count in ((left, right), (right, left)):
        if isinstance(parts, list | str) and isinstance(count, int) and len(parts) * count > LONGEST:
            raise OverflowError
    return left * right


def _over(left: Any, right: Any) -> Any:
    """A quotient; of texts a path (`Path("conf") / "train.yaml"`)."""
    if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) <= LONGEST:
        return str(PurePosixPath(left, right))
    return left / right


def _power(base: Any, by: Any) -> Any:
    if not 0 <= by <= MOST_BITS or abs(base) > MOST_BITS:
        raise OverflowError
    return base**by


_OPERATORS: Mapping[type[ast.AST], Any] = {
    ast.Add: _plus, ast.Sub: operator.sub, ast.Mult: _times, ast.Div: _over,
    ast.Pow: _power, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.eq,
    ast.IsNot: operator.ne, ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip


def operated(op: ast.AST, left: Any, right: Any) -> Any:
    """The result of an operator; `NOTHING` where Python would end, or it would grow without bound."""
    plain = (bool, int, float, str, list, type(None))
    if type(op) not in _OPERATORS or not isinstance(left, plain) or not isinstance(right, plain):
        return NOTHING
    nests = any(isinstance(part, list) for one in (left, right) if isinstance(one, list) for part in one)
    if nests and not isinstance(op, ast.Add | ast.Mult):  # lists of lists of one another compare without end
        return NOTHING
    try:
        found = _OPERATORS[type(op)](left, right)
    except (TypeError, ZeroDivisionError, OverflowError):
        return NOTHING
    return NOTHING if isinstance(found, int) and abs(found) >= LARGEST else found


# --- functions --------------------------------------------------------------------------------------------------------

LARGEST_OF: Mapping[str, Any] = {"max": max, "min": min}
METHODS = ("lower", "upper", "strip", "split")
"""Methods of texts that are followed."""


def of_function(name: str, arguments: Sequence[Any]) -> Any:
    """What a function of Python's own returns; `NOTHING` for another, and where its arguments are open."""
    first = arguments[0] if arguments else NOTHING
    if name in LARGEST_OF and arguments and all(isinstance(one, int | float) for one in arguments):
        return LARGEST_OF[name](arguments)
    if name == "isinstance" and isinstance(first, str | bool | int | float | list | dict | None):
        kinds = arguments[1] if isinstance(arguments[1], list) else arguments[1:]
        return type(first).__name__ in [one.name for one in kinds if isinstance(one, Name)]
    if name in ("list", "tuple") and isinstance(first, list):
        return list(first)
    if name in ("int", "float", "str") and isinstance(first, int | float | str):
        given = first if isinstance(first, int | float) else scalar(first)
        return int(given) if name == "int" and isinstance(given, float) else given
    if name in ("os.environ.get", "os.getenv") and arguments:
        return os.environ.get(*map(str, arguments)) if arguments[1:] else Unknown(f"${first}")
    return NOTHING


def of_method(owner: Any, name: str, arguments: Sequence[Any]) -> Any:
    """What a method of a list, a text or a mapping returns, lists changed in place; `NOTHING` for another."""
    if isinstance(owner, list) and name in ("append", "extend", "insert"):
        owner += arguments[-1] if name == "extend" and isinstance(arguments[-1], list) else arguments[-1:]
        return None
    if isinstance(owner, str) and name in METHODS and all(isinstance(one, str) for one in arguments):
        return getattr(owner, name)(*arguments)
    if isinstance(owner, dict):
        return _of_mapping(owner, name, arguments)
    return NOTHING


def _of_mapping(owner: dict[Any, Any], name: str, arguments: Sequence[Any]) -> Any:
    """What a method of a mapping returns, changed in place."""
    match name, arguments:
        case "get" | "pop", [str(key), *other]:
            return owner.get(key, *other[:1])
        case "setdefault", [str(key), value]:
            return owner.setdefault(key, value)
        case "items", []:
            return [[key, value] for key, value in owner.items()]
        case "keys" | "values" | "copy", []:
            return {"keys": [*owner], "values": [*owner.values()], "copy": dict(owner)}[name]
    return NOTHING


# --- nodes ------------------------------------------------------------------------------------------------------------


def as_tests(subject: ast.expr, cases: Sequence[ast.match_case]) -> list[ast.stmt]:
    """The branches of a `match` as those of tests one after the other; patterns that no test says have no answer."""
    left: list[ast.stmt] = []
    for one in reversed(cases):
        match one.pattern:
            case ast.MatchAs(None):
                test: ast.expr = ast.Constant(True)
            case ast.MatchValue(value):
                test = ast.Compare(subject, [ast.Eq()], [value])
            case ast.MatchOr(patterns) if all(isinstance(part, ast.MatchValue) for part in patterns):
                words = [part.value for part in patterns if isinstance(part, ast.MatchValue)]
                test = ast.Compare(subject, [ast.In()], [ast.List(words)])
            case _:
                test = ast.Name("match")
        left = [ast.If(ast.BoolOp(ast.And(), [test, one.guard]) if one.guard else test, one.body, left)]
    return left


def unknown(node: ast.AST, end: str = "") -> Unknown:
    """A value that only a run has, as its node is written, and the end of it that is known."""
    return Unknown(ast.unparse(node)[:80], end=end)


def known_end(parts: Sequence[Any], between: str) -> str:
    """The whole names at the end of a path behind the last part that only a run has; empty where there are none."""
    ends = [*takewhile(lambda one: isinstance(one, str), reversed(parts))][::-1]
    text = between.join(ends)[:LONGEST]
    return text if between or not ends else text.partition("/")[2]
