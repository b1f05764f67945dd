"""User constraints: `tp * ep <= 16`, `not (fp8 == 'hybrid' and micro_batch_size == 1)`, `schedule in ['1f1b', 'zbv']`.

The text is read by our own tokenizer and recursive descent into vectorised predicates; nothing is ever `eval`ed.

    condition = and/or/not of comparisons; comparisons chain (1 < tp <= 8); `in [...]` and `not in [...]`
    numbers   = + - * / // % and brackets over axes, derived columns (dp, edp, microbatches, ...) and literals
    words     = quoted names compared with an axis of words: schedule, fp8, recompute, sharding, ...
    switches  = deepep, loss_fusion, ... stand alone, or compare with true and false
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import DEFAULTS, Bools, Fp8, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.candidates import recompute_word as word_of_recompute
from primus_search.errors import ScheduleError
from primus_search.schedule import algorithm
from primus_search.space.context import DERIVED, Cells, Job
from primus_search.space.rules import Rule
from primus_search.space.tokens import ConstraintError, Token, tokens
from primus_search.space.types import AXES, Constraint

__all__ = ["ConstraintError", "Predicate", "as_rule", "parse"]

MAX_DEPTH = 64

Sort = Literal["number", "switch", "words", "literal"]
Evaluate = Callable[[Job, Cells], Any]

WORD_AXES = ("schedule", "fp8", "recompute", "recompute_method", "sharding", "grouped_gemm", "pipeline_layout")
SWITCHES = tuple(name for name, default in DEFAULTS.items() if isinstance(default, bool))
NAMES = (*AXES, *DERIVED)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A constraint ready to be applied: the columns it reads, and the mask of rows that satisfy it."""

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate

    def __call__(self, job: Job, cells: Cells) -> Bools:
        mask: Bools = np.broadcast_to(np.asarray(self.evaluate(job, cells), dtype=np.bool_), (len(cells),))
        return mask


@dataclass(frozen=True, slots=True)
class _Value:
    """A parsed sub-expression: what sort of value, how to compute it, where it starts.

    `word` is the text of a quoted literal, or the axis of a column of words.
    """

    sort: Sort
    evaluate: Evaluate
    position: int
    word: str = ""


@lru_cache(maxsize=256)
def parse(text: str) -> Predicate:
    """The predicate of a constraint. Raises ConstraintError with the position and, for a name, the nearest known."""
    parser = _Parser(text)
    value = parser.condition()
    parser.expect_end()
    return Predicate(text=text, names=tuple(dict.fromkeys(parser.names)), evaluate=parser.truth(value).evaluate)


def as_rule(constraint: Constraint, job: Job) -> Rule:
    """A user constraint as one more legality rule, named by its text."""
    predicate = parse(constraint.text)
    return Rule(name=constraint.text, reads=predicate.names, keeps=predicate, reason="a constraint of the space")


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens, self.at, self.depth = tokens(text), 0, 0
        self.names: list[str] = []

    # --- reading ---------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        is_one = self.token.text in texts and self.token.kind in ("sign", "name")
        return self.next() if is_one else None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise ConstraintError(f"expected {text!r}, found {self.token.text or 'the end'!r}", self.token.position)

    def expect_end(self) -> None:
        if self.token.kind != "end":
            raise ConstraintError(f"expected an operator, found {self.token.text!r}", self.token.position)

    # --- conditions ------------------------------------------------------------------------------------------------

    def condition(self) -> _Value:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConstraintError(f"brackets nest deeper than {MAX_DEPTH}", self.token.position)
        value = self.conjunction()
        while self.accept("or"):
            value = _both(np.logical_or, self.truth(value), self.truth(self.conjunction()), "switch")
        self.depth -= 1
        return value

    def conjunction(self) -> _Value:
        value = self.negation()
        while self.accept("and"):
            value = _both(np.logical_and, self.truth(value), self.truth(self.negation()), "switch")
        return value

    def negation(self) -> _Value:
        flips, start = 0, self.token.position
        while self.accept("not"):
            flips += 1
        value = self.comparison()
        if not flips:
            return value
        truth = self.truth(value)
        if flips % 2 == 0:
            return truth
        return _Value("switch", lambda job, c: np.logical_not(truth.evaluate(job, c)), start)

    def comparison(self) -> _Value:
        left = self.sum()
        result: _Value | None = None
        while True:
            sign = self.accept("<", "<=", ">", ">=", "==", "!=")
            if sign is not None:
                right = self.sum()
                step = _compared(sign, left, right)
            elif self.token.text in ("in", "not") and self.token.kind == "name":
                step, right = self.membership(left), left
            else:
                return left if result is None else result
            result = step if result is None else _both(np.logical_and, result, step, "switch")
            left = right

    def membership(self, left: _Value) -> _Value:
        is_negated = self.accept("not") is not None
        self.expect("in")
        bracket = self.accept("[", "(")
        if bracket is None:
            raise ConstraintError("`in` needs a list: [1, 2, 4]", self.token.position)
        closing = "]" if bracket.text == "[" else ")"
        equal = Token("sign", "==", bracket.position)
        found = _compared(equal, left, self.sum())
        while self.accept(",") and self.token.text != closing:
            found = _both(np.logical_or, found, _compared(equal, left, self.sum()), "switch")
        self.expect(closing)
        if not is_negated:
            return found
        return _Value("switch", lambda job, c: np.logical_not(found.evaluate(job, c)), left.position)

    def truth(self, value: _Value) -> _Value:
        if value.sort != "switch":
            raise ConstraintError("a condition compares something: write for example `tp <= 8`", value.position)
        return value

    # --- numbers ---------------------------------------------------------------------------------------------------

    def sum(self) -> _Value:
        value = self.product()
        while sign := self.accept("+", "-"):
            value = _both(_ARITHMETIC[sign.text], _number(value), _number(self.product()), "number")
        return value

    def product(self) -> _Value:
        value = self.factor()
        while sign := self.accept("*", "/", "//", "%"):
            value = _both(_ARITHMETIC[sign.text], _number(value), _number(self.factor()), "number")
        return value

    def factor(self) -> _Value:
        start, signs, minus = self.token.position, 0, 0
        while sign := self.accept("-", "+"):
            signs += 1
            minus += sign.text == "-"
        value = self.atom()
        if not signs:
            return value
        number = _number(value)
        factor = -1.0 if minus % 2 else 1.0
        return _Value("number", lambda job, c: factor * number.evaluate(job, c), start)

    def atom(self) -> _Value:
        token = self.next()
        if token.kind == "number":
            return _constant("number", float(token.text.replace("_", "")), token.position)
        if token.kind == "word":
            return _Value("literal", lambda job, c: token.text, token.position, token.text)
        if token.text == "(":
            value = self.condition()
            self.expect(")")
            return value
        if token.kind == "name":
            return self.name(token)
        raise ConstraintError(f"expected a name or a number, found {token.text or 'the end'!r}", token.position)

    def name(self, token: Token) -> _Value:
        name = token.text
        if name.lower() in ("true", "false"):
            return _constant("switch", name.lower() == "true", token.position)
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConstraintError(f"unknown name {name!r}; {hint}known: {', '.join(NAMES)}", token.position)
        self.names.append(name)
        if name in WORD_AXES:
            return _Value("words", lambda job, c: c.ints(name), token.position, name)
        if name in SWITCHES:
            return _Value("switch", lambda job, c: c[name].astype(np.bool_), token.position)
        return _Value("number", lambda job, c: c[name].astype(np.float64), token.position)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def _quiet(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Division by a column that holds zeros gives inf or nan, which compares as one expects (nan: never)."""

    def run(left: Any, right: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return operation(left, right)

    return run


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": _quiet(np.divide),
    "//": _quiet(np.floor_divide),
    "%": _quiet(np.mod),
}


def _constant(sort: Sort, value: float | bool, position: int) -> _Value:
    return _Value(sort, lambda job, c: value, position)


def _both(operation: Callable[[Any, Any], Any], left: _Value, right: _Value, sort: Sort) -> _Value:
    return _Value(sort, lambda job, c: operation(left.evaluate(job, c), right.evaluate(job, c)), left.position)


def _number(value: _Value) -> _Value:
    if value.sort != "number":
        raise ConstraintError("arithmetic needs numbers on both sides", value.position)
    return value


def _compared(sign: Token, left: _Value, right: _Value) -> _Value:
    sorts = {left.sort, right.sort}
    if sorts == {"words", "literal"}:
        words, literal = (left, right) if left.sort == "words" else (right, left)
        return _word_is(sign, words, literal)
    if sorts == {"switch"}:
        if sign.text not in ("==", "!="):
            raise ConstraintError("switches compare with == and != only", sign.position)
    elif sorts != {"number"}:
        sides = " and ".join(_SORT_WORDS[s] for s in (left.sort, right.sort))
        raise ConstraintError(f"cannot compare {sides}", sign.position)
    return _both(_COMPARE[sign.text], left, right, "switch")


_SORT_WORDS: dict[Sort, str] = {
    "number": "a number",
    "switch": "a condition",
    "words": "an axis of words",
    "literal": "a quoted word",
}


def _word_is(sign: Token, words: _Value, literal: _Value) -> _Value:
    if sign.text not in ("==", "!="):
        raise ConstraintError("words compare with == and != only", sign.position)
    axis, wanted = words.word, _known_word(words.word, literal)
    is_negated = sign.text == "!="

    def evaluate(job: Job, cells: Cells) -> NDArray[np.bool_]:
        codes = cells.ints(axis)
        distinct, inverse = np.unique(codes, return_inverse=True)
        same = np.array([_word_of(job, axis, int(code)) == wanted for code in distinct], dtype=np.bool_)
        return np.asarray(same[inverse] != is_negated)

    return _Value("switch", evaluate, words.position)


def _known_word(axis: str, literal: _Value) -> str:
    """The literal as columns spell it; raises for a word the axis cannot have."""
    word = literal.word
    if axis == "pipeline_layout":
        return word
    if axis == "schedule":
        try:
            return algorithm(word).name
        except ScheduleError as error:
            raise ConstraintError(str(error), literal.position) from error
    word = word.lower()
    known = _VOCABULARY[axis]
    if word in known or (axis == "recompute" and set(word.split("+")) <= set(known)):
        return word
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConstraintError(f"{axis} is never {word!r}; {hint}known: {', '.join(known)}", literal.position)


_VOCABULARY: dict[str, tuple[str, ...]] = {
    "fp8": tuple(v.name.lower() for v in Fp8),
    "recompute": tuple(word_of_recompute(v) for v in Recompute.__members__.values()),
    "recompute_method": tuple(v.name.lower() for v in RecomputeMethod),
    "sharding": tuple(v.name.lower() for v in Sharding),
    "grouped_gemm": tuple(v.name.lower() for v in GroupedGemm),
}


def _word_of(job: Job, axis: str, code: int) -> str:
    match axis:
        case "schedule":
            return job.schedules[code]
        case "pipeline_layout":
            return str(job.layouts[code])
        case "recompute":
            return word_of_recompute(code)
        case "fp8":
            return Fp8(code).name.lower()
        case "recompute_method":
            return RecomputeMethod(code).name.lower()
        case "sharding":
            return Sharding(code).name.lower()
        case "grouped_gemm":
            return GroupedGemm(code).name.lower()
    raise KeyError(axis)
