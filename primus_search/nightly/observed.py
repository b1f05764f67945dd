"""What one night saw: a folder of run folders, one per place of the sweep, and `state.json`; a baseline is one."""

import hashlib
import json
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from primus_search.base.errors import UNREADABLE, InputError, NothingFits, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, locked, read_text, write_whole
from primus_search.base.guards.interrupts import Interrupted
from primus_search.base.version import __version__
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.plain_forms import from_plain
from primus_search.files.search_path import roots
from primus_search.nightly.figures import Accuracy, accuracy_of, work_of
from primus_search.nightly.sweep import NightlySweep

Say = Callable[[str], None]
FORMAT = 4
STATE = "state.json"
KEEP = 8
"""Rows kept of each search; only the best row and the frontier are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a baseline was accepted: when, at which commit, in whose words."""

    date: str
    commit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The content of `state.json`: figures that no run folder holds, and what figures depend on beside their inputs.

    runs, unanswered       by place of the sweep: the name of its run folder, or why nothing is legal or fits
    code, data, versions   hash or version by name
    """

    runs: dict[str, str]
    unanswered: dict[str, str]
    accuracy: Accuracy | None
    work: int
    code: dict[str, str]
    data: dict[str, str]
    versions: dict[str, str]
    commit: str
    reasons: tuple[Reason, ...] = ()


def observe(sweep: NightlySweep, folder: Path, say: Say) -> Observed:
    """Search every place of a sweep in this process, check accuracy and work; written to a new folder."""
    runs: dict[str, str] = {}
    unanswered: dict[str, str] = {}
    for number, (place, space) in enumerate(sweep.entries.items(), start=1):
        say(f"[{number}/{len(sweep.entries)}] {place}")
        name = f"{number:02d}-{re.sub(r'[^a-z0-9.]+', '-', place.lower())[:60].strip('-.')}"
        try:
            result = run_search(space, Options(engine="local", workers=1, keep=KEEP))
        except (NothingFits, InputError) as error:
            # Tonight's answer may be that nothing is legal or fits any more: a figure to compare, not an end of it.
            unanswered[place] = str(error).splitlines()[0]
            continue
        if result.interrupted_by:
            raise Interrupted(result.interrupted_by)
        first = [found.ranking.take(np.arange(min(KEEP, len(found.ranking)))) for found in result.clusters]
        pairs = zip(result.clusters, first, strict=True)
        clusters = tuple(replace(found, ranking=rows, leaders=rows) for found, rows in pairs)
        with RunFolder.open(folder / name, resume=False) as run:
            run.write(replace(result, clusters=clusters))
        runs[place] = name
    data = data_hashes()
    if sweep.runs:
        say(f"accuracy on {sweep.runs}")
        data["the table of measured runs"] = _sha(sweep.runs)
    if sweep.speed:
        say("work of a projection")
    state = Observed(
        runs=runs,
        unanswered=unanswered,
        accuracy=accuracy_of(sweep.runs) if sweep.runs else None,
        work=work_of(sweep.speed, sweep.speed_rows) if sweep.speed else 0,
        code=code_hashes(),
        data=data,
        versions=dependency_versions(),
        commit=commit(),
    )
    _write(folder, state)
    return state


def opened(folder: Path, state: Observed) -> dict[str, SavedRun]:
    """The runs of a folder by place."""
    return {place: SavedRun.open(folder / name) for place, name in state.runs.items()}


@contextmanager
def replacing_folder(place: Path) -> Iterator[Path]:
    """A new folder that takes the place of another as the block ends, else that one stays. Raises OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as scratch:
        new = Path(scratch) / place.name
        new.mkdir()
        yield new
        with locked(place.parent):
            if place.exists():
                place.rename(Path(scratch) / "former")
            new.rename(place)


def read_baseline(folder: Path) -> Observed:
    """The accepted state in a folder. Raises InputError when there is none, or one of another format."""
    if not folder.exists():
        what = 'no such baseline; accept today\'s figures with --update-baseline --reason "first baseline"'
        raise InputError([Problem(str(folder), what)])
    again = "write a new one with --update-baseline --reason TEXT"
    if not folder.is_dir():
        what = f"is no baseline of this version, which keeps run folders in a folder; remove the file and {again}"
        raise InputError([Problem(str(folder), what)])
    try:
        plain = json.loads(read_text(folder / STATE, most=MAX_TABLE_BYTES))
        if plain.pop("format") != FORMAT:
            raise KeyError("format")
        return from_plain(Observed, plain)
    except (RecursionError, *UNREADABLE) as error:
        what = f"is no baseline of this version ({error}); {again}"
        raise InputError([Problem(str(folder / STATE), what)]) from error


def update_baseline(sweep: NightlySweep, reason: str, say: Say) -> None:
    """Accept today's figures, with the reason; reasons of earlier updates are kept.

    Raises InputError where a space has no answer: there would be nothing to compare with.
    """
    try:
        known = read_baseline(sweep.baseline).reasons
    except InputError:
        known = ()
    with replacing_folder(sweep.baseline) as folder:
        state = observe(sweep, folder, say)
        if state.unanswered:
            raise InputError([Problem(place, f"no baseline to keep: {why}") for place, why in state.unanswered.items()])
        own = Reason(date=now()[:10], commit=state.commit, text=reason)
        _write(folder, replace(state, reasons=(*known, own)))


def _write(folder: Path, state: Observed) -> None:
    write_whole(folder / STATE, json.dumps({"format": FORMAT} | asdict(state), indent=1, sort_keys=True) + "\n")


def now() -> str:
    """The time, UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


# --- what a result depends on besides its declared inputs ------------------------------------------------------------


PACKAGE = Path(__file__).resolve().parent.parent
MOVES_NOTHING = ("analysis", "cli", "launch", "measure", "nightly", "report", "session")
"""Rooms that print, measure or start jobs; a module of any other one can move a figure."""

DATA = ("hardware", "spaces/models", "spaces/keys")
"""Folders of data that figures depend on: devices, stacks, frameworks, measured ranges, models, known keys."""
DEPENDENCIES = ("numpy", "numba", "scipy", "pydantic", "pyyaml")


def code_hashes() -> dict[str, str]:
    """Hash of every module and table that can move a figure, by its path in the package (`cost/laws/gemm.py`)."""
    files = sorted((*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml")))
    paths = {path.relative_to(PACKAGE): path for path in files}
    return {own.as_posix(): _sha(path) for own, path in paths.items() if own.parts[0] not in MOVES_NOTHING}


def data_hashes() -> dict[str, str]:
    """Hash of every file of `DATA` by its path below the root that it is read from (`hardware/mi300x.yaml`)."""
    found: dict[str, Path] = {}
    for root in reversed(roots()):
        files = (path for folder in DATA for path in sorted((root / folder).rglob("*.*")) if path.is_file())
        found |= {path.relative_to(root).as_posix(): path for path in files}
    return {name: _sha(path) for name, path in found.items()}


def dependency_versions() -> dict[str, str]:
    """Versions of what computes the figures."""
    found = {"primus-search": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in DEPENDENCIES}


def commit() -> str:
    """The commit of the checkout the package runs from, `+` after it where files differ; empty where there is none."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names whose hash or version differs, in order; those gone and new ones are marked."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [name + (" (new)" if name not in before else "" if name in after else " (gone)") for name in names]


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
