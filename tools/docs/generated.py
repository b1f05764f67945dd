"""Pages of docs/ from the code: the table of every fitted number (docs/cost/fitted_numbers.md), tables of a stack's
numbers and habits (docs/cost/stack.md), and the strict expected failures of the tests (docs/dev/expected_failures.md).
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from primus_search.base import units
from primus_search.files.search_path import FileKind, names
from primus_search.measure.calibrate.hardware_edits import SECTION, FittedLeaf, leaves
from primus_search.values.machine.stack import GROUPS
from tools import rendered

ROOT = Path(__file__).parents[2]


def fitted_numbers() -> str:
    """Every fitted, held or shared number of the hardware and stack files in reach, as Markdown.

    Numbers shared by all devices are listed once; tied numbers count once.
    """
    rows: list[tuple[str, FittedLeaf]] = []
    counts: list[tuple[str, int, int, int]] = []
    shared: dict[str, FittedLeaf] = {}
    kinds = (FileKind.HARDWARE, FileKind.STACK, FileKind.STACK_BASE)
    for path in (path for kind in kinds for path in names(kind).values()):
        name, text = path.stem, path.read_text(encoding="utf-8")
        found = leaves(text)
        shared |= {leaf.path: leaf for leaf in found if leaf.source.startswith("shared")}
        own = [(name, leaf) for leaf in found if leaf.source.startswith(("fitted", "held"))]
        rows += own
        if own:
            counts.append((name, count_fitted(text), _count(found, "network."), _count(found, "")))
    every = [*(("all", leaf) for leaf in shared.values()), *rows]
    return rendered("fitted_numbers.md", counts=counts, rows=every)


def _count(found: Sequence[FittedLeaf], below: str) -> int:
    return sum(leaf.source.startswith("fitted") and leaf.path.startswith(below) for leaf in found)


def count_fitted(text: str, but: frozenset[str] = frozenset()) -> int:
    """How many numbers of an accelerator or a stack were fitted, those of the keys in `but` aside.

    Numbers tied together are one. A hardware file's network and error bands are not the accelerator's.
    """
    own = [leaf for leaf in leaves(text) if leaf.source.startswith("fitted") and not leaf.path.startswith("network.")]
    own = [leaf for leaf in own if leaf.key not in but]
    ties = [paths for leaf in own for paths in re.findall(r"one number with ([\w., ]+)\)", leaf.source)]
    tied = {f"{SECTION}.{path}" for paths in ties for path in paths.split(", ")}
    return len([leaf for leaf in own if leaf.path not in tied])


STACK_PAGE = ROOT / "docs" / "cost" / "stack.md"
START, END = "<!-- fields: python -m tools.docs stack -->\n", "<!-- end of fields -->\n"


def documented(cls: type) -> dict[str, str]:
    """The meaning of each field of a group, by its line in the docstring: `name  meaning`."""
    lines = re.findall(r"^(\w+)  (.+(?:\n .*)*)", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}


def base_values(group: str) -> dict[str, tuple[str, str]]:
    """Key and value in bases/pytorch.yaml of every field of a group that it gives."""
    data = yaml.safe_load(names(FileKind.STACK_BASE)["pytorch"].read_text(encoding="utf-8"))
    values = {}
    for key, leaf in data[group].items():
        value = leaf["value"] if isinstance(leaf, dict) else leaf
        shown = f"{value:g}" if isinstance(value, float) else str(value).lower()
        values[key] = values[units.to_base(key, 0.0)[0]] = (key, shown)
    return values


def stack_table(group: str) -> str:
    """The fields of a group as Markdown."""
    given = base_values(group)
    rows = [f"\n**{group}**\n", "| key | in `pytorch` | meaning |", "|---|---|---|"]
    for name, text in documented(GROUPS[group]).items():
        key, value = given.get(name, (name, "-"))
        rows.append(f"| {key} | {value} | {text.replace('|', '/')} |")
    return "\n".join(rows) + "\n"


def stack_tables() -> str:
    """The page with its tables made anew."""
    text = STACK_PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    return head + START + "".join(stack_table(group) for group in GROUPS) + "\n" + END + rest.partition(END)[2]


TESTS = ROOT / "tests"
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


def failures() -> list[tuple[str, str]]:
    """(test, reason) of every mark, sorted by file and place."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                name = f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                found += [(name, reason) for mark in node.decorator_list for reason in reasons(mark)]
    return found


def expected_failures() -> str:
    """The page as Markdown."""
    cells = [f"| `{test}` | {' '.join(reason.split()).replace('|', '/')} |" for test, reason in failures()]
    return HEAD + "\n".join(cells) + "\n"
