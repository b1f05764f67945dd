"""Length of the main path: `PYTHONPATH=. python tests/bench/main_path.py` prints the functions from `cli.run` to the
GEMM law, and the returns of one measured row from `validate` to its error.

path     named functions of the package on the stack when `gemm_s` is first called in a `primus-search run` of one
         worker, both ends included; lambdas and comprehensions are not counted
returns  functions that projecting and scoring the first row of a table calls, each at its first call, as a sequence of
         packages (folders of `primus_search/`; a module beside them is one of its own): changes of package, less the
         first visit of each. Counted twice: over all packages, and over those that work, without the value types and
         tools of floors 0 and 1 (`tests/structure/test_layers.py`), whose properties are data wherever they are read
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import primus_search
from primus_search.cli import main as command
from tests.structure.test_layers import FLOORS

PACKAGE = Path(primus_search.__file__).parent
ROOT = PACKAGE.parent
SPACE = ROOT / "spaces" / "llama3_8b_mi300x.yaml"
TABLE = ROOT / "tests" / "oracle" / "data" / "training_runs.csv"
LOWEST_AT_WORK = 2
"""Floor from which on a package works on values; those below it hold them."""


def place(code: CodeType) -> tuple[str, str] | None:
    """File within the package and qualified name of a function of its own; None of any other code."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE) or "<" in code.co_name:
        return None
    return path.relative_to(PACKAGE).as_posix(), code.co_qualname


def profiled(arguments: list[str], on_call: Callable[[FrameType], None]) -> None:
    """Run a command of primus-search, its output dropped, and report every call of a Python function."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            on_call(frame)

    sys.argv = ["primus-search", *arguments]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(profile)
        try:
            command()
        finally:
            sys.setprofile(None)


def path_to_the_law() -> list[tuple[str, str]]:
    """Functions from `cli.run` to the first call of `gemm_s`."""
    found: list[tuple[str, str]] = []

    def on_call(frame: FrameType) -> None:
        if found or place(frame.f_code) != ("cost/laws/gemm.py", "gemm_s"):
            return
        above: FrameType | None = frame
        while above is not None:
            where = place(above.f_code)
            found.extend([where] if where else [])
            above = above.f_back

    with tempfile.TemporaryDirectory() as folder:
        profiled(["run", str(SPACE), "--bench", "off", "--workers", "1", "--out", f"{folder}/run"], on_call)
    found.reverse()
    return found[found.index(("cli/run.py", "run")) :]


def rooms_of_a_row() -> list[str]:
    """Packages in the order in which one measured row calls their functions for the first time."""
    seen: dict[tuple[str, str], None] = {}

    def on_call(frame: FrameType) -> None:
        where = place(frame.f_code)
        if where is not None:
            seen.setdefault(where)

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "row.csv"
        table.write_text("".join(TABLE.read_text(encoding="utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
        profiled(["validate", str(table), "--json"], lambda frame: None)  # imports and files are read here
        profiled(["validate", str(table), "--json"], on_call)
    return [room for room, _ in groupby(file.partition("/")[0] for file, _ in seen)]


def main() -> None:
    path = path_to_the_law()
    print(f"{len(path)} functions in {len({file for file, _ in path})} files from cli.run to the GEMM law")
    for file, name in path:
        print(f"  {file}: {name}")
    rooms = rooms_of_a_row()
    at_work = (room for room in rooms if FLOORS[room.removesuffix(".py")] >= LOWEST_AT_WORK)
    for stays, which in ((rooms, "packages"), ([room for room, _ in groupby(at_work)], "packages that work")):
        print(
            f"{len(stays) - len(set(stays))} returns of a measured row: {len(stays)} stays in {len(set(stays))} {which}"
        )
        print("  " + " ".join(stays))


if __name__ == "__main__":
    main()
