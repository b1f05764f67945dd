"""User constraints: `tp * ep <= 16`, `not (fp8 == 'hybrid' and micro_batch_size == 1)`, `schedule in ['1f1b', 'zbv']`.

The language is a subset of Python's expressions: Python's own parser reads the text, and a list of allowed nodes turns
the tree into vectorised predicates. Nothing is ever `eval`ed.

    condition = and/or/not of comparisons; comparisons chain (1 < tp <= 8); `in [...]` and `not in [...]`
    numbers   = + - * / // % and brackets over axes, derived columns (dp, edp, microbatches, ...) and literals
    words     = quoted names compared with an axis of words: schedule, fp8, recompute, sharding, ...
    switches  = axes that are true or false stand alone, or compare with true and false
    modules   = 'layernorm' in recompute: whether that module is recomputed
    facts     = has_experts, is_tied, ...: switches of the model
"""

import ast
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

import numpy as np

from primus_search.base.errors import ScheduleError, did_you_mean
from primus_search.schedule import algorithm
from primus_search.space.context import DERIVED, FACTS, Cells, GridJob
from primus_search.space.types import AXES
from primus_search.values.candidates import Bools, Ints
from primus_search.values.knobs import KNOB, WORDED, Kind

MAX_LENGTH = 2000
"""A constraint longer than this is a mistake (or an attack), not a constraint."""
MAX_DEPTH = 64
"""Levels of brackets and operators inside each other."""

Sort = Literal["number", "switch", "words", "literal"]
Evaluate = Callable[[GridJob, Cells], Any]
NAMES = (*AXES, *DERIVED, *FACTS)
_WORDS = frozenset(["none", *(word for knob in KNOB.values() for word in knob.members)]) - set(NAMES)
"""Words of values, which a constraint quotes."""
MODULES = frozenset(name for name, knob in KNOB.items() if knob.kind is Kind.MODULES)


class ConstraintError(ValueError):
    """A constraint that cannot be read: what is wrong, and at which character (from 1)."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.message, self.position = message, position

    def __reduce__(self) -> tuple[type["ConstraintError"], tuple[str, int]]:
        return (type(self), (self.message, self.position))


@dataclass(frozen=True, slots=True)
class Predicate:
    """A constraint ready to be applied: the columns it reads, and the mask of rows that satisfy it."""

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate

    def __call__(self, job: GridJob, cells: Cells) -> Bools:
        return np.broadcast_to(np.asarray(self.evaluate(job, cells), dtype=np.bool_), (len(cells),))


@dataclass(frozen=True, slots=True)
class _Value:
    """A sub-expression: what sort of value, how to compute it, from where to where it stands.

    `word` is the text of a quoted literal, or the axis of a column of words.
    """

    sort: Sort
    evaluate: Evaluate
    start: int
    end: int
    word: str = ""


@lru_cache(maxsize=256)
def parse(text: str) -> Predicate:
    """The predicate of a constraint. Raises ConstraintError with the position and, for a name, the nearest known."""
    reader = _Reader(text)
    condition = reader.of_sort("switch", _tree(text), 0)
    return Predicate(text=text, names=tuple(dict.fromkeys(reader.names)), evaluate=condition.evaluate)


def _tree(text: str) -> ast.expr:
    """The expression, with the positions of the text."""
    if len(text) > MAX_LENGTH:
        raise ConstraintError(f"a constraint has at most {MAX_LENGTH} characters, this one has {len(text)}", MAX_LENGTH)
    if "#" in text:
        raise ConstraintError("cannot read '#'", text.index("#"))
    line = re.sub(r"\s", " ", text)
    indent = len(line) - len(line.lstrip())
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(line[indent:], mode="eval").body
    except SyntaxError as error:
        raise _unreadable(line, indent + error.offset - 1 if error.offset else len(line), error.msg) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(f"cannot be read: {error}", 0) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            node.col_offset, node.end_col_offset = (
                indent + len(line[indent:].encode()[:at].decode()) for at in (node.col_offset, node.end_col_offset or 0)
            )
    return tree


def _unreadable(line: str, position: int, message: str) -> ConstraintError:
    """What Python's parser says, or what it stumbled over where it only says `invalid syntax`."""
    position = min(position, len(line))
    found = re.match(r"\w+|.", line[position:])
    if message == "invalid syntax":
        message = f"cannot read {found.group()!r}" if found else "ends where a name or a number should follow"
        message += "; did you mean '=='?" if found and found.group() == "=" else ""
    return ConstraintError(message, position)


class _Reader:
    """Turns the nodes of a tree into values; `names` collects the columns it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []

    def value(self, node: ast.expr, depth: int) -> _Value:
        """What a node stands for; raises ConstraintError for a node that constraints do not have."""
        if depth > MAX_DEPTH:
            raise ConstraintError(f"nests deeper than {MAX_DEPTH}", node.col_offset)
        match node:
            case ast.BoolOp():
                operation = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                parts = [self.of_sort("switch", one, depth + 1) for one in node.values]
                return reduce(lambda left, right: _both(operation, left, right, "switch"), parts)
            case ast.UnaryOp(op=ast.Not()):
                return _not(self.of_sort("switch", node.operand, depth + 1), node.col_offset)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
                number = self.of_sort("number", node.operand, depth + 1)
                evaluate = number.evaluate
                return _Value("number", lambda job, c: sign * evaluate(job, c), node.col_offset, number.end)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = (
                    self.of_sort("number", node.left, depth + 1),
                    self.of_sort("number", node.right, depth + 1),
                )
                return _both(_ARITHMETIC[type(node.op)], left, right, "number")
            case ast.Compare():
                return self.comparison(node, depth)
            case ast.Name():
                return self.name(node)
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return _constant(node, value)
        raise ConstraintError(
            f"cannot use {self.text[node.col_offset : node.end_col_offset]!r}; a constraint has names, numbers, quoted "
            "words, + - * / // %, comparisons, in, and, or, not",
            node.col_offset,
        )

    def of_sort(self, sort: Sort, node: ast.expr, depth: int) -> _Value:
        """A condition (`switch`), or a number to calculate with."""
        value = self.value(node, depth)
        if value.sort != sort:
            raise ConstraintError(_OTHER_SORT[sort], value.start)
        return value

    def comparison(self, node: ast.Compare, depth: int) -> _Value:
        """Every pair of neighbours in a chain of comparisons."""
        left, steps = self.value(node.left, depth + 1), []
        for sign, operand in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.In | ast.NotIn):
                right, found = left, self.membership(left, operand, depth + 1)
                steps.append(_not(found, left.start) if isinstance(sign, ast.NotIn) else found)
            else:
                right = self.value(operand, depth + 1)
                steps.append(self.compared(type(sign), left, right))
            left = right
        return reduce(lambda one, other: _both(np.logical_and, one, other, "switch"), steps)

    def membership(self, left: _Value, operand: ast.expr, depth: int) -> _Value:
        """Whether a value is one of a list, or a module one of those recomputed."""
        if left.sort == "literal" and isinstance(operand, ast.Name) and operand.id in MODULES:
            return _has_module(self.name(operand), left)
        if not isinstance(operand, ast.List | ast.Tuple) or not operand.elts:
            raise ConstraintError("`in` needs a list: [1, 2, 4]", operand.col_offset)
        equal = [self.compared(ast.Eq, left, self.value(one, depth)) for one in operand.elts]
        return reduce(lambda one, other: _both(np.logical_or, one, other, "switch"), equal)

    def compared(self, sign: type[ast.cmpop], left: _Value, right: _Value) -> _Value:
        """Two values of the same sort compared, or an axis of words with a quoted word."""
        sorts = {left.sort, right.sort}
        position = left.end + len(re.match(r"[\s)]*", self.text[left.end :]).group())  # type: ignore[union-attr]
        only_equal = "switches" if sorts == {"switch"} else "words" if sorts == {"words", "literal"} else ""
        if only_equal and sign not in (ast.Eq, ast.NotEq):
            raise ConstraintError(f"{only_equal} compare with == and != only", position)
        if sorts == {"words", "literal"}:
            words, literal = (left, right) if left.sort == "words" else (right, left)
            same = _word_is(words, literal)
            return same if sign is ast.Eq else _not(same, words.start)
        if sorts not in ({"switch"}, {"number"}):
            sides = " and ".join(_SORT_WORDS[s] for s in (left.sort, right.sort))
            raise ConstraintError(f"cannot compare {sides}", position)
        if sign not in _COMPARE:
            raise ConstraintError("numbers compare with < <= > >= == != and in", position)
        return _both(_COMPARE[sign], left, right, "switch")

    def name(self, node: ast.Name) -> _Value:
        """An axis, a derived column, true or false."""
        name = node.id
        if name.lower() in ("true", "false"):
            return _constant(node, name.lower() == "true")
        if name not in NAMES:
            if name in _WORDS:
                raise ConstraintError(f"{name} is a value: quote it, '{name}'", node.col_offset)
            what = f"unknown name {name!r}{did_you_mean(name, NAMES)} - known: {', '.join(NAMES)}"
            raise ConstraintError(what, node.col_offset)
        start, end = node.col_offset, node.end_col_offset or 0
        if name in FACTS:
            return _Value("switch", lambda job, c: FACTS[name](job.model), start, end)
        self.names.append(name)
        if name in WORDED:
            return _Value("words", lambda job, c: c.ints(name), start, end, name)
        if name in KNOB and KNOB[name].kind is Kind.SWITCH:
            return _Value("switch", lambda job, c: c[name].astype(np.bool_), start, end)
        return _Value("number", lambda job, c: c[name].astype(np.float64), start, end)


_OTHER_SORT: dict[Sort, str] = {
    "switch": "a condition compares something: write for example `tp <= 8`",
    "number": "arithmetic needs numbers on both sides",
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def _quiet(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Division by a column that holds zeros gives inf or nan, which compares as one expects (nan: never)."""

    def run(left: Any, right: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return operation(left, right)

    return run


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: _quiet(np.divide),
    ast.FloorDiv: _quiet(np.floor_divide),
    ast.Mod: _quiet(np.mod),
}
_SORT_WORDS: dict[Sort, str] = {
    "number": "a number",
    "switch": "a condition",
    "words": "an axis of words",
    "literal": "a quoted word",
}


def _constant(node: ast.expr, value: bool | int | float | str) -> _Value:
    start, end = node.col_offset, node.end_col_offset or 0
    if isinstance(value, str):
        return _Value("literal", lambda job, c: value, start, end, value)
    if isinstance(value, bool):
        return _Value("switch", lambda job, c: value, start, end)
    number = float(str(value))  # of digits without end: inf
    return _Value("number", lambda job, c: number, start, end)


def _not(value: _Value, start: int) -> _Value:
    return _Value("switch", lambda job, c: np.logical_not(value.evaluate(job, c)), start, value.end)


def _both(operation: Callable[[Any, Any], Any], left: _Value, right: _Value, sort: Sort) -> _Value:
    return _Value(sort, lambda job, c: operation(left.evaluate(job, c), right.evaluate(job, c)), left.start, right.end)


def _word_is(words: _Value, literal: _Value) -> _Value:
    """Rows whose axis has the value of a word."""
    axis, codes = words.word, _codes_of(KNOB[words.word].kind, words.word, literal)
    return _Value("switch", lambda job, c: _is_any(c.ints(axis), codes(job)), words.start, literal.end)


def _is_any(column: Ints, codes: Sequence[int]) -> Bools:
    """Rows with one of a few codes."""
    return reduce(np.logical_or, [column == code for code in codes], np.zeros(len(column), dtype=np.bool_))


def _has_module(column: _Value, module: _Value) -> _Value:
    """Rows whose axis of modules has one of them."""
    flag = _codes_of(Kind.MODULES, column.word, module)
    has = lambda job, c: (c.ints(column.word) & flag(job)[0]) != 0  # noqa: E731
    return _Value("switch", has, module.start, column.end)


def _codes_of(kind: Kind, axis: str, literal: _Value) -> Callable[[GridJob], list[int]]:
    """The codes that a word stands for in the columns of a job; raises for a word the axis cannot have."""
    word = literal.word
    if kind is Kind.LAYOUT:
        return lambda job: [code for code, layout in enumerate(job.layouts) if str(layout) == word]
    if kind is Kind.SCHEDULE:
        try:
            name = algorithm(word).name
        except ScheduleError as error:
            raise ConstraintError(str(error), literal.start) from error
        return lambda job: [code for code, schedule in enumerate(job.schedules) if schedule == name]
    try:
        code = KNOB[axis].code(word)
    except KeyError as error:
        known = list(dict.fromkeys(KNOB[axis].word(value) for value in KNOB[axis].members.values()))
        message = f"{axis} is never {word.lower()!r}{did_you_mean(word, known)} - known: {', '.join(known)}"
        raise ConstraintError(message, literal.start) from error
    return lambda job: [code]
