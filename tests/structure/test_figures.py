"""Limits on the shape of the package: packages one can list, one name per class, signatures one can read."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

import primus_search
from tests.support.parsed import parsed

ROOT = Path(primus_search.__file__).parent
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if not path.name.startswith("__")]
MOST_MODULES = 20
MOST_ARGUMENTS = 10
MOST_TWICE = 8
JOB = {"model", "cluster", "workload", "network", "stack", "acc", "accelerator"}
"""Parts of a job; a function that takes four or more of them takes a `Job`."""


def functions(path: Path) -> list[tuple[str, list[str], bool]]:
    """Name, arguments and whether it is compiled, of every function of a module."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            is_compiled = any("jit" in ast.unparse(mark) for mark in node.decorator_list)
            place = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
            found.append((place, [name for name in arguments if name not in ("self", "cls")], is_compiled))
    return found


def test_no_package_has_more_modules_than_one_can_list() -> None:
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in MODULES)
    assert {name: size for name, size in sizes.items() if size > MOST_MODULES} == {}


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_few_modules_share_a_name() -> None:
    names = Counter(path.name for path in MODULES)
    assert len([name for name, count in names.items() if count > 1]) <= MOST_TWICE


def test_no_function_outside_compiled_code_and_commands_has_more_than_ten_arguments() -> None:
    every = [one for path in MODULES if "cli" not in path.relative_to(ROOT).parts for one in functions(path)]
    assert [place for place, given, compiled in every if len(given) > MOST_ARGUMENTS and not compiled] == []


def test_no_function_takes_a_job_apart() -> None:
    every = [one for path in MODULES for one in functions(path)]
    assert [place for place, given, _ in every if len(JOB & set(given)) >= 4] == []
