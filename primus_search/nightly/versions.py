"""What a result depends on besides its declared inputs: the package's own code, its dependencies, its data files."""

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from primus_search import __version__
from primus_search.declare.search_path import FileKind, names

PACKAGE = Path(__file__).resolve().parent.parent
NUMERIC = ("cost", "schedule", "space", "exploration", "declare", "runs", "values")
"""Packages that can move a figure; with the modules beside them. The others print, measure or export."""

DEPENDENCIES = ("numpy", "numba", "scipy", "pydantic", "pyyaml")


def code_hashes() -> dict[str, str]:
    """Hash of every module that can move a figure, by its path in the package (`cost/laws/gemm.py`)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if "/" not in name or name.split("/")[0] in NUMERIC:
            found[name] = _sha(path)
    return found


def data_hashes() -> dict[str, str]:
    """Hash of every hardware, stack and model file (`hardware/mi300x.yaml`)."""
    kinds = (FileKind.HARDWARE, FileKind.HARDWARE_BASE, FileKind.STACK, FileKind.STACK_BASE, FileKind.MODEL)
    return {f"{kind.folder}/{path.name}": _sha(path) for kind in kinds for path in names(kind).values()}


def dependency_versions() -> dict[str, str]:
    """Versions of what computes the figures."""
    found = {"primus-search": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in DEPENDENCIES}


def commit() -> str:
    """The commit of the checkout the package runs from, `+` after it where files differ; empty where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=False, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names whose hash or version differs, those gone and new ones said so, in order."""
    lines = []
    for name in sorted({*before, *after}):
        if name not in after:
            lines.append(f"{name} (gone)")
        elif name not in before:
            lines.append(f"{name} (new)")
        elif before[name] != after[name]:
            lines.append(name)
    return lines


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
