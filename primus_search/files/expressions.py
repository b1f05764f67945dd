"""Expressions over settings of a job, in the tables of a framework's refusals (`spaces/keys/refusals/*.yaml`).

    value_of(parsed("world_size % (tp * pp) == 0"), {"world_size": 16, "tp": 4, "pp": 2}.get)      # True

Python's syntax, walked and never executed: comparisons, `and or not in is`, arithmetic of whole numbers, lists, a
choice, `x is list`, and the functions of `FUNCTIONS`. A name that is no setting has the value None.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Names = Callable[[str], Any]

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in (b or ()),
    ast.NotIn: lambda a, b: a not in (b or ()),
}  # fmt: skip
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len, "int": int, "bool": bool, "max": max, "min": min, "any": any, "all": all, "product": math.prod,
    "parts": str.split, "is_list": lambda value: isinstance(value, list), "is_int": lambda value: type(value) is int,
}  # fmt: skip
_TYPE = re.compile(r"(?<![\w.])([\w.]{1,80}+) is (not )?(list|int)\b(?!\()")
_TEXT = re.compile(r"\{([^{}]{1,200})\}")


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The tree of an expression. Raises ValueError for one that is none."""
    try:
        return ast.parse(_TYPE.sub(_type_test, str(text).strip()), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no expression: {error.msg}") from error


def _type_test(found: re.Match[str]) -> str:
    return f"({'not ' * bool(found[2])}is_{found[3]}({found[1]}))"


def value_of(node: ast.expr, names: Names) -> Any:
    """The value of an expression. Raises ValueError for what the language does not have, and what its operations do."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id=name):
            return names(name)
        case ast.Attribute():
            return names(ast.unparse(node))
        case ast.BoolOp():
            return _joined(isinstance(node.op, ast.And), node.values, names)
        case ast.UnaryOp():
            return _UNARY[type(node.op)](value_of(node.operand, names))
        case ast.BinOp():
            return _BINARY[type(node.op)](value_of(node.left, names), value_of(node.right, names))
        case ast.Compare():
            values = [value_of(one, names) for one in (node.left, *node.comparators)]
            pairs = zip(node.ops, values, values[1:], strict=False)
            return all(_BINARY[type(op)](left, right) for op, left, right in pairs)
        case ast.List() | ast.Tuple():
            return [value_of(one, names) for one in node.elts]
        case ast.IfExp():
            return value_of(node.body if value_of(node.test, names) else node.orelse, names)
        case ast.Subscript():
            return value_of(node.value, names)[value_of(node.slice, names)]
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            return FUNCTIONS[name](*(value_of(one, names) for one in arguments))
        case ast.GeneratorExp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), ifs=[]) as each]):
            many = value_of(each.iter, names)
            return [value_of(element, lambda text, one=one: one if text == name else names(text)) for one in many]  # type: ignore[misc]
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not part of the language")


def _joined(is_and: bool, parts: list[ast.expr], names: Names) -> Any:
    value: Any = is_and
    for part in parts:
        value = value_of(part, names)
        if bool(value) is not is_and:
            return value
    return value


def filled_in(text: str, names: Names) -> str:
    """A text with the value of each `{expression}` in it; what cannot be computed stays as it is written."""

    def value(found: re.Match[str]) -> str:
        try:
            return str(value_of(parsed(found[1]), names))
        except (ValueError, TypeError, ZeroDivisionError, KeyError, IndexError):
            return found[1]

    return _TEXT.sub(value, text)
