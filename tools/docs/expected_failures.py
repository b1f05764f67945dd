"""Table of the strict expected failures of the suite: `python -m tools.docs` writes the page."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
PAGE = TESTS.parent / "docs" / "dev" / "expected_failures.md"
HEAD = """# Expected failures

Promises that the test suite checks and that do not hold today. Each is a strict expected failure: the suite fails as
soon as the promise holds, so that the mark is removed.
Written by `python -m tools.docs`; a test compares.

| test | measured |
|---|---|
"""
MARKS = ("missed", "xfail")


def reasons(node: ast.AST) -> Iterator[str]:
    """Reasons of all expected-failure marks below a node, in their order."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in MARKS:
            given = [*call.args[:1]] + [k.value for k in call.keywords if k.arg == "reason"]
            yield from (str(ast.literal_eval(value)) for value in given if not isinstance(value, ast.Name))


def rows() -> list[tuple[str, str]]:
    """(test, reason) of every mark, sorted by file and place."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                name = f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                found += [(name, reason) for mark in node.decorator_list for reason in reasons(mark)]
    return found


def page() -> str:
    """The page as Markdown."""
    cells = [f"| `{test}` | {' '.join(reason.split()).replace('|', '/')} |" for test, reason in rows()]
    return HEAD + "\n".join(cells) + "\n"
