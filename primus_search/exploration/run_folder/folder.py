"""The run folder: what a search leaves behind, each file whole or absent, and what lets a killed run continue.

run.json              inputs, hashes, versions, seed, counts and seconds per stage; written last
ranking.csv           the best rows          pareto.csv  the frontier          scaling.csv  with several clusters
candidates.parquet    every row that was kept       resolved.json  the space, every value resolved
journal.bin           finished tasks, while the search runs; gone when it is complete
"""

import csv
import fcntl
import io
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from primus_search.base.errors import InputError, PrimusSearchError, Problem
from primus_search.base.guards.files import PACKAGE, TEMPORARY, fingerprint_of, replacing, writing
from primus_search.base.guards.values import finite, guarded
from primus_search.base.version import __version__
from primus_search.exploration.result import SearchResult
from primus_search.exploration.run_folder.candidates_file import kept_bytes
from primus_search.exploration.run_folder.journal import SEARCHED, Journal
from primus_search.exploration.run_folder.question import QUESTION, fingerprint, must_be_same
from primus_search.exploration.run_folder.resolved import RESOLVED, SCHEMA, resolved_bytes
from primus_search.exploration.run_folder.run_facts import file_facts
from primus_search.exploration.scaling_table import Rung
from primus_search.space import Space

if TYPE_CHECKING:
    from primus_search.exploration.exhaustive.evaluate import Funnel

PACKAGES = ("numpy", "torch", "ray", "optuna", "pyarrow")
INPUTS = "inputs"
"""The texts that the space was loaded from (`files.search_path`)."""
FILES = ("run.json", RESOLVED, "ranking.csv", "pareto.csv", "scaling.csv", "candidates.parquet")
KNOWN = (
    *FILES,
    INPUTS,
    QUESTION,
    "space.yaml",
    "site.yaml",
    "site.runs.parquet",
    "exports",
    "report.html",
    "journal.bin",
    "study.log",
    "study.log.lock",
    ".lock",
)


def default_folder(name: str, root: Path = Path("results/runs")) -> Path:
    """A new folder for a run of the space called `name`: time first, so that a listing is in order."""
    slug = "-".join("".join(c if c.isalnum() or c in "._" else " " for c in name.lower()).split()) or "space"
    return root / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{slug[:60]}"


class StoreError(PrimusSearchError):
    """The run folder could not be written; the message says why and what is lost."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that belongs to one run at a time; the lock goes away with the process, however it ends."""

    path: Path
    _lock: BinaryIO

    @classmethod
    def open(cls, path: Path, *, resume: bool) -> Self:
        """Create or enter the folder and lock it. Raises InputError when it cannot be used."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            strangers = [p.name for p in path.iterdir() if p.name not in KNOWN and not p.name.endswith(TEMPORARY)]
            if strangers and not (path / "run.json").exists() and not (path / "journal.bin").exists():
                what = f"holds other files ({', '.join(sorted(strangers)[:3])}); choose an empty folder or a run's own"
                raise InputError([Problem(f"--out {path}", what)])
            lock = (path / ".lock").open("ab")
        except OSError as error:
            raise InputError([Problem(f"--out {path}", f"cannot be written: {error.strerror}")]) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            what = "another run is writing here; wait for it or choose another folder"
            raise InputError([Problem(f"--out {path}", what)]) from error
        for left in path.glob(f".*{TEMPORARY}"):  # behind a run that was killed
            left.unlink(missing_ok=True)
        # A forked worker must not hold the lock on behalf of a driver that was killed.
        os.register_at_fork(after_in_child=lock.close)
        return cls(path, lock)

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def must_be_same(self, space: Space, *, resume: bool, force: bool) -> None:
        """Note the question of the run. Raises InputError where the folder holds the run of another one."""
        with writing(f"--out {self.path}"):
            must_be_same(self.path, space, resume=resume, force=force)

    # --- while the search runs -------------------------------------------------------------------------------------

    def journal(self, funnel: "Funnel", task_rows: int, resume: bool) -> Journal:
        """The journal of this search: continued where one is to be resumed, else new.

        Raises InputError when the journal to resume belongs to another search; a larger budget is the same search.
        """
        from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS

        unlimited = replace(funnel.space.search, method="exhaustive", budget_candidates=0, budget_seconds=0.0, top_k=1)
        searched = fingerprint(replace(funnel.space, search=unlimited))
        identity = {SEARCHED: searched, "--keep": funnel.keep, "chunk_rows": CHUNK_ROWS}
        identity |= {"version": __version__, "source files": fingerprint_of(PACKAGE), "NumPy": np.__version__}
        path = self.path / "journal.bin"
        try:
            found = Journal.resume(path, identity, funnel.keep) if resume else None
            return found or Journal.start(path, identity, task_rows)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error

    # --- at the end ------------------------------------------------------------------------------------------------

    def write(self, result: SearchResult) -> None:
        """All files of a finished search; `run.json` last, so that a folder with it is complete."""
        try:
            (self.path / "run.json").unlink(missing_ok=True)  # an earlier run's must not vouch for this one's tables
            files = {
                "ranking.csv": csv_bytes(result.ranked_rows),
                "pareto.csv": csv_bytes(result.frontier_rows),
                "candidates.parquet": kept_bytes([found.ranking for found in result.clusters], result.keep),
                RESOLVED: resolved_bytes(result.space),
            }
            if len(result.clusters) > 1:
                files["scaling.csv"] = csv_bytes([_scaling_row(rung) for rung in result.rungs])
            for name, content in files.items():
                self._write(name, content)
            written = {name: file_facts(content) for name, content in files.items()}
            facts = summary(result) | {"files": written}
            self._write("run.json", json.dumps(facts, indent=2).encode() + b"\n")
            if result.is_complete:
                (self.path / "journal.bin").unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path}: the run folder is incomplete: {error.strerror}") from error

    def _write(self, name: str, content: bytes) -> None:
        """One file, whole or not at all."""
        with replacing(self.path / name) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


# --- contents ------------------------------------------------------------------------------------------------------


OF_RESULT = (
    "engine", "workers", "method", "method_reason", "exact", "raw", "legal", "looked_at", "feasible", "seconds",
    "peak_rss_bytes",
)  # fmt: skip
"""What run.json takes of a result as it is."""


def summary(result: SearchResult) -> dict[str, Any]:
    """The content of `run.json`; `scaling` has the rows of scaling.csv, null for what is infinite."""
    space, best = result.space, result.best
    return {
        "schema": SCHEMA,
        "space": space.name,
        "source": space.source,
        "space_sha256": space.sha256,
        "search_sha256": fingerprint(space),
        "overrides": [asdict(override) for override in space.overrides],
        "model": space.model.name,
        "hardware": best.choice.cluster.accelerator.name,
        "stack": best.choice.cluster.stack.reference,
        "framework": best.choice.framework.name,
        "nodes": best.choice.cluster.num_nodes,
        "gpus": best.choice.cluster.world,
        "workload": asdict(space.workload),
        **{name: result.__getattribute__(name) for name in OF_RESULT},
        **{name: space.search.__getattribute__(name) for name in ("seed", "memory_margin")},
        "objective": space.objective,
        "complete": result.is_complete,
        "notes": [*result.space.notes, *result.notes],
        "removed": [
            {"rule": name, "rows": count, "reason": result.reasons[name]} for name, count in result.removed.items()
        ],
        "stages": [
            {"name": s.name, "rows": s.rows, "seconds": s.seconds, "rows_per_s": s.rows_per_s} for s in result.stages
        ],
        "clusters": [
            {
                "labels": dict(found.choice.labels),
                "nodes": found.choice.cluster.num_nodes,
                "gpus": found.choice.cluster.world,
                "legal": found.legal,
                "looked_at": found.looked_at,
                "feasible": found.feasible,
                "is_relieved": found.choice.is_relieved,
                "best_tokens_per_s_per_gpu": found.best_tokens_per_s_per_gpu,
            }
            for found in result.clusters
        ],
        "goal": asdict(space.goal),
        "token_budget": space.goal.tokens,
        "scaling": finite([_scaling_row(rung) for rung in result.rungs]),
        "best": best.ranking.row(0),
        **({} if result.answer is None else {"answer": asdict(result.answer)}),
        **({} if result.baseline is None else {"baseline": result.baseline.as_data()}),
        "versions": _versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str]:
    found = {"primus-search": __version__, "python": platform.python_version(), "platform": sys.platform}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as the tables of a run folder are written."""
    text = io.StringIO()
    if rows:
        names = list(rows[0])
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(guarded, names))
        writer.writerows(zip(*(_cells([row[name] for row in rows]) for name in names), strict=True))
    return text.getvalue().encode()


def _cells(column: Sequence[Any]) -> Iterable[Any]:
    """Switches as true and false, floats with every digit that matters, words that no spreadsheet evaluates."""
    kinds = set(map(type, column))
    if kinds in ({str}, {bool}):
        return map({value: _cell(value) for value in set(column)}.__getitem__, column)
    return map(repr, column) if kinds == {float} else column if kinds == {int} else map(_cell, column)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return guarded(value)
    return ("true" if value else "false") if isinstance(value, bool | np.bool_) else value


def _scaling_row(rung: Rung) -> dict[str, Any]:
    return asdict(rung) | {"labels": [list(label) for label in rung.labels]}
