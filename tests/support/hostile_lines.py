"""Lines on which a backtracking regular expression is slow, made from the expression itself.

What stands before a repeated part, that part many times, and an end that does not match: `\\s+#` is slow on blanks
without a `#`, `(a+)+b` on many `a`. Patterns are found in the modules of a package and in calls of `re` in its source.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import _constants as code
from re import _parser
from typing import Any

ENDS = ("", "\0", "!")
COMMON = ("a", "1", " ", "-", ".", "'", '"', "{", "[", "|", "\n", "\t", "1:", "a b ", "a.", "[1", "1 ", "_", "$", "a=")
OF_CATEGORY = {code.CATEGORY_DIGIT: "1", code.CATEGORY_SPACE: " ", code.CATEGORY_NOT_WORD: "-"}
LONG = 20
"""A part that is repeated more often than this is pumped."""
CALLS = ("compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer")

Pattern = re.Pattern[str]
Pump = tuple[str, str, str]
"""Beginning, repeated part, end."""


def patterns_of(package: str) -> dict[str, Pattern]:
    """Every compiled pattern of a package by its place."""
    found: dict[Pattern, str] = {}
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError:
            continue  # a library that is not installed
        for name, value in vars(module).items():
            for pattern in _inside(value):
                found.setdefault(pattern, f"{info.name}.{name}")
    texts = {pattern.pattern for pattern in found}  # as they are compiled, flags and all
    for path in sorted(Path(str(root.__file__)).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = _literal(node)
            if text is not None and text not in texts:
                found.setdefault(re.compile(text), f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    return {f"{place} {pattern.pattern[:60]}": pattern for pattern, place in found.items()}


def _literal(node: ast.AST) -> str | None:
    """The pattern that a call of `re` writes down; None for any other node."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[ast.Constant(value=str(text)), *_]
        ) if name in CALLS:
            return text
    return None


def _inside(value: Any, depth: int = 0) -> Iterator[Pattern]:
    """Patterns of text in a module's value: itself, of its items, of a record's fields."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth < 6:
        items: Sequence[Any] = ()
        if isinstance(value, dict):
            items = list(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            items = list(value)
        elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
            items = [getattr(value, name, None) for name in value.__dataclass_fields__]
        for item in items:
            yield from _inside(item, depth + 1)


def hostile(pattern: Pattern) -> list[Pump]:
    """What to try a pattern with."""
    tree = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    whole = _sample(tree)
    found = {("", sign, "") for sign in COMMON} | ({("", whole, "\0")} if whole else set())
    found |= {("", whole[:length], "\0") for length in range(1, min(len(whole), 12))}
    for before, part in _pumped(tree):
        if part:
            found |= {(start, part, end) for start in (before, "", before[: len(before) // 2]) for end in ENDS}
            found |= {("", before + part, end) for end in ENDS}
    return sorted(found)


def line(pump: Pump, length: int) -> str:
    """A line of that many characters."""
    start, part, end = pump
    return (start + part * (length // len(part) + 1))[: length - len(end)] + end


def _pumped(tree: Any) -> Iterator[tuple[str, str]]:
    """Of every part that repeats without a small limit: what has to stand before it, and one of it."""
    before = ""
    for kind, value in tree:
        if kind in (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT):
            _, most, inner = value
            if most > LONG:
                yield before, _sample(inner)
                if len(inner) == 1 and inner[0][0] is code.IN:
                    yield from ((before, sign) for sign in _signs(inner[0][1]))
            yield from ((before + first, part) for first, part in _pumped(inner))
        for branch in _branches(kind, value):
            yield from ((before + first, part) for first, part in _pumped(branch))
        before += _one(kind, value)


def _branches(kind: Any, value: Any) -> Sequence[Any]:
    if kind is code.SUBPATTERN:
        return [value[3]]
    if kind is code.ATOMIC_GROUP:
        return [value]
    return value[1] if kind is code.BRANCH else []  # type: ignore[no-any-return]


def _sample(tree: Any) -> str:
    """A short text that a part matches."""
    return "".join(_one(kind, value) for kind, value in tree)


def _one(kind: Any, value: Any) -> str:
    if kind is code.LITERAL:
        return chr(value)
    if kind is code.NOT_LITERAL:
        return "b" if value == ord("a") else "a"
    if kind is code.IN:
        return _signs(value)[0]
    if kind in (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT):
        least, most, inner = value
        return _sample(inner) * max(least, int(most > 0))
    branches = _branches(kind, value)
    return _sample(branches[0]) if branches else "a" if kind is code.ANY else ""


def _signs(items: Sequence[tuple[Any, Any]]) -> list[str]:
    """Characters of a set."""
    if items[0][0] is code.NEGATE:
        return [next(sign for sign in "a1 -.,x|\t(é\u4e00" if not any(_has(item, sign) for item in items[1:]))]
    singles = {code.LITERAL: lambda value: chr(value), code.RANGE: lambda value: chr(value[0])}
    return [singles[kind](value) if kind in singles else OF_CATEGORY.get(value, "a") for kind, value in items]


def _has(item: tuple[Any, Any], sign: str) -> bool:
    kind, value = item
    if kind is code.LITERAL:
        return bool(ord(sign) == value)
    if kind is code.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    names = {code.CATEGORY_DIGIT: r"\d", code.CATEGORY_WORD: r"\w", code.CATEGORY_SPACE: r"\s"}
    names |= {code.CATEGORY_NOT_DIGIT: r"\D", code.CATEGORY_NOT_WORD: r"\W", code.CATEGORY_NOT_SPACE: r"\S"}
    return re.match(names[value], sign) is not None
