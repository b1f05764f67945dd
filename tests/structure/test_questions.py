"""ARCHITECTURE.md names the file and the function that answer a stranger's question, and the walk of a candidate."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """File and function of every row of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        named = re.findall(r"`([\w./]+\.py)`", line) if line.startswith("|") else []
        if named:
            functions = re.findall(r"`([\w.]+)`", line.split("|")[-2 if heading == "Where is ..." else 2])
            found += [(named[0].removeprefix("primus_search/"), name) for name in functions]
    return found


def defined(file: str) -> set[str]:
    """Functions of a module, those of its classes as `Class.function`."""
    tree = ast.parse((ROOT / "primus_search" / file).read_text(encoding="utf-8"))
    above = [("", tree), *((f"{one.name}.", one) for one in tree.body if isinstance(one, ast.ClassDef))]
    return {
        prefix + one.name
        for prefix, node in above
        for one in ast.iter_child_nodes(node)
        if isinstance(one, ast.FunctionDef)
    }


@pytest.mark.parametrize("heading", ["Where is ...", "One candidate's way"])
def test_every_file_has_the_function_that_the_page_names(heading: str) -> None:
    named = rows(heading)
    assert len(named) >= 5
    assert [(file, name) for file, name in named if name not in defined(file)] == []


def test_the_walk_is_of_sixteen_functions() -> None:
    assert len(rows("One candidate's way")) == 16
