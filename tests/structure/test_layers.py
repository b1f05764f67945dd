"""Rooms have an order: imports point down only, none leads back, and heavy libraries stay in their one room."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import primus_search
from tests.support.parsed import parsed

ROOT = Path(primus_search.__file__).parent

FLOORS = {
    "base": 0,
    "values": 1,
    "schedule": 2,
    "space": 3,
    "cost": 4,
    "files": 5,
    "models": 6,
    "declare": 7,
    "launch": 8,
    "measure": 9,
    "exploration": 10,
    "learning": 11,
    "evidence": 12,
    "analysis": 13,
    "nightly": 14,
    "report": 15,
    "session": 16,
    "cli": 17,
    "__init__": 18,
    "__main__": 18,
}
# The one place (or two) where each heavy or outward-looking library may be imported.
HOMES = {
    "torch": ("measure/",),
    "ray": ("exploration/engines/ray_",),
    "optuna": ("exploration/sampled/",),
    "pydantic": ("files/plain_forms", "declare/"),
    "yaml": ("files/source",),
    "pandas": ("declare/record_table", "session/notebook"),
    "matplotlib": ("session/notebook",),
    "plotext": ("report/frontier_text",),
    "mlflow": ("session/tracking",),
    "wandb": ("session/tracking",),
    "submitit": ("learning/submitted",),
    "jinja2": ("base/html_templates",),
    "numba": ("schedule/", "space/key_kernels", "cost/", "exploration/"),
    "typer": ("cli/",),
    "tomli_w": ("launch/write/",),
}
MODULES = sorted(ROOT.rglob("*.py"))
DOTTED = re.compile(r"(?:primus_search|tools)(?:\.\w+)+(?::\w+)?")
"""A module named in a string is imported by whoever reads the string."""
MOST_PAIRS = 110


def room(path: Path) -> str:
    """The top-level name a file belongs to: its package, or its own stem."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """Every module a file imports anywhere in it, with the line."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            found.append((node.lineno, node.value.partition(":")[0]))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down_and_heavy_libraries_stay_at_home(path: Path) -> None:
    own = room(path)
    assert own in FLOORS, f"{own} has no floor; add it to FLOORS on purpose"
    faults = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "tools":
            faults.append(f"{path.name}:{line} names {name}; tools/ is not installed")
        elif parts[0] == "primus_search" and len(parts) > 1:
            other = parts[1]
            if other in FLOORS and other != own and FLOORS[other] > FLOORS[own]:
                faults.append(f"{path.name}:{line} imports {name}, which is on a higher floor")
        elif parts[0] in HOMES:
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(HOMES[parts[0]]):
                faults.append(f"{path.name}:{line} imports {parts[0]}, whose home is {HOMES[parts[0]]}")
    assert not faults, "\n".join(faults)


def test_no_room_is_reached_from_itself_and_pairs_of_rooms_are_few() -> None:
    pairs = set()
    for path in MODULES:
        others = {name.split(".")[1] for _, name in imports(path) if name.startswith("primus_search.")}
        pairs |= {(room(path), other) for other in others & FLOORS.keys() if other != room(path)}
    pairs = {(one, other) for one, other in pairs if not one.startswith("__")}
    reach = {one: {other for first, other in pairs if first == one} for one in FLOORS}
    for _ in FLOORS:
        reach = {one: others.union(*(reach[other] for other in others)) for one, others in reach.items()}
    assert [one for one, others in reach.items() if one in others] == []
    assert len(pairs) <= MOST_PAIRS


@pytest.mark.parametrize("command", ["import primus_search", "from primus_search.cli import main"])
def test_start_up_loads_nothing_heavy(command: str) -> None:
    heavy = "'torch', 'ray', 'optuna', 'numba', 'scipy', 'numpy'"
    code = f"import sys; {command}; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


MAY_IMPORT = re.compile(r"^May import: (.*?)\.$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [name for name in FLOORS if not name.startswith("__")])
def test_a_room_names_what_it_gives_and_the_rooms_it_imports(name: str) -> None:
    text = ast.get_docstring(parsed(ROOT / name / "__init__.py")) or ""
    listed = MAY_IMPORT.search(text)
    assert listed and listed.start() > 0, f"{name}/__init__.py: what the room gives, then `May import: ...`"
    ours = [
        one for path in MODULES if room(path) == name for _, one in imports(path) if one.startswith("primus_search.")
    ]
    found = {one.split(".")[1] for one in ours} & FLOORS.keys() - {name, "__init__"}
    if listed[1] != "every room":
        assert found == set(re.findall(r"\w+", listed[1])) - {"nothing"}
    assert all(FLOORS[other] < FLOORS[name] for other in found)


def test_judges_run_in_processes_of_their_own() -> None:
    """They replace parts of torch and variables of the environment; only what finds them is imported by a test."""
    judges = r"tests\.support\.(judge\.(?!checkouts|installed)|megatron_b)"
    tests = Path(__file__).parents[1].rglob("test_*.py")
    found = [f"{path.name}:{line}" for path in tests for line, name in imports(path) if re.match(judges, name)]
    assert found == []
