"""Paths in backticks, in pages and in docstrings, name files of this repository; links of pages lead somewhere."""

import ast
import re
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.support.parsed import parsed

ROOT = Path(__file__).parents[2]
ROOMS = ("primus_search", "tools", "tests", "docs", "hardware", "spaces", "sweeps", "results")
NAMED = re.compile(r"`{1,2}((?:[\w.-]+/)+[\w.-]*)(?:[:\s][^`]*)?`{1,2}")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
PLACEHOLDER = re.compile(r"(?:^|/)[A-Z]{2,}(?:/|\.|$)")
"""A segment in capitals stands for a name that the reader chooses."""
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CODE = [path for room in ("primus_search", "tools", "tests") for path in (ROOT / room).rglob("*.py")]


@cache
def known() -> frozenset[str]:
    """Files and folders of the repository, and every tail of their paths."""
    below = [path.relative_to(ROOT) for top in ROOMS for path in (ROOT / top).rglob("*")]
    paths = [*map(Path, ROOMS), *(path for path in below if "__pycache__" not in path.parts)]
    return frozenset("/".join(path.parts[start:]) for path in paths for start in range(len(path.parts)))


def dead(text: str) -> list[str]:
    """Python files and pages, and whatever begins with a folder of the repository, that do not exist."""
    found = []
    for name in sorted(set(NAMED.findall(text))):
        is_ours = PurePosixPath(name).suffix in (".py", ".md") or name.split("/")[0] in ROOMS
        if is_ours and not PLACEHOLDER.search(name) and name.rstrip("/") not in known():
            found.append(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name != "CHANGELOG.md" and not page.name.endswith("_log.md"):  # these tell what was
        assert dead(text) == []
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_paths_in_docstrings_exist() -> None:
    faults = []
    for path in CODE:
        if not dead(path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                names = dead(ast.get_docstring(node) or "")
                faults += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert faults == []
