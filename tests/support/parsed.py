"""Python files as syntax trees, each parsed once a process."""

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, which all tests share: read only."""
    return ast.parse(path.read_text(encoding="utf-8"))
