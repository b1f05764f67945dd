"""The house has floors: imports point down only, and heavy libraries stay in their one room."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import primus_search

ROOT = Path(primus_search.__file__).parent

FLOORS = {
    "base": 0,
    "values": 1,
    "schedule": 2,
    "space": 3,
    "cost": 4,
    "declare": 5,
    "measure": 6,
    "exploration": 7,
    "runs": 8,
    "export": 9,
    "analysis": 10,
    "nightly": 11,
    "report": 12,
    "cli": 13,
    "__init__": 14,
    "__main__": 14,
}
# The one place (or two) where each heavy or outward-looking library may be imported.
HOMES = {
    "torch": ("measure/",),
    "ray": ("exploration/engines/ray_",),
    "optuna": ("exploration/sampled/",),
    "pydantic": ("declare/",),
    "yaml": ("declare/",),
    "pandas": ("declare/record_table", "report/notebook/"),
    "matplotlib": ("report/notebook/",),
    "plotext": ("report/frontier_text",),
    "jinja2": ("base/html_templates",),
    "numba": ("schedule/", "cost/", "exploration/"),
    "typer": ("cli/",),
    "tomli_w": ("export/",),
}
MODULES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    """The top-level name a file belongs to: its package, or its own stem."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """Every module a file imports anywhere in it, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down_and_heavy_libraries_stay_at_home(path: Path) -> None:
    own = room(path)
    assert own in FLOORS, f"{own} has no floor; add it to FLOORS on purpose"
    faults = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "primus_search" and len(parts) > 1:
            other = parts[1]
            if other in FLOORS and other != own and FLOORS[other] > FLOORS[own]:
                faults.append(f"{path.name}:{line} imports {name}, which is on a higher floor")
        elif parts[0] in HOMES:
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(HOMES[parts[0]]):
                faults.append(f"{path.name}:{line} imports {parts[0]}, whose home is {HOMES[parts[0]]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("command", ["import primus_search", "from primus_search.cli import main"])
def test_start_up_loads_nothing_heavy(command: str) -> None:
    heavy = "'torch', 'ray', 'optuna', 'numba', 'scipy', 'numpy'"
    code = f"import sys; {command}; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
