"""The run folder: what a search leaves behind, each file whole or absent, and what lets a killed run continue.

run.json              inputs, hashes, versions, seed, counts and seconds per stage; written last
ranking.csv           the best rows          pareto.csv  the frontier          scaling.csv  with several clusters
candidates.parquet    every row that was kept
journal.bin           finished tasks, while the search runs; gone when it is complete
"""

import csv
import fcntl
import hashlib
import io
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from primus_search import __version__
from primus_search.candidates import COLUMN_NAMES
from primus_search.cost.memory.fit import OUT_OF_MEMORY
from primus_search.errors import InputError, PrimusSearchError, Problem
from primus_search.exploration.result import MEASURED, RankingTable, SearchResult, ladder
from primus_search.exploration.run_folder.candidates_file import kept_bytes
from primus_search.exploration.run_folder.journal import BadRecord, Journal, OtherSearch
from primus_search.exploration.run_folder.run_facts import file_facts
from primus_search.guards.csv_cells import guarded
from primus_search.sources import PACKAGE, fingerprint_of
from primus_search.space import Space

if TYPE_CHECKING:
    from primus_search.exploration.exhaustive.evaluate import Funnel, Task

RANKED_ROWS = 1000
"""Best rows of `ranking.csv`, before the best of each layout and precision; `candidates.parquet` holds all kept."""

PACKAGES = ("numpy", "torch", "ray", "optuna", "pyarrow")
INPUTS = "inputs"
"""The texts that the space was loaded from (`declare.snapshot`)."""
FILES = ("run.json", "ranking.csv", "pareto.csv", "scaling.csv", "candidates.parquet")
KNOWN = (*FILES, INPUTS, "exports", "report.html", "journal.bin", "study.log", "study.log.lock", ".lock")
TEMPORARY = ".tmp"
"""How the name of a half-written file ends; one that a killed run left behind is deleted by the next."""


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
            if resume and not any((path / name).exists() for name in ("journal.bin", "run.json", ".lock")):
                raise InputError([Problem(f"--resume {path}", "there is no run to continue; leave out --resume")])
            lock = (path / ".lock").open("ab")
        except OSError as error:
            raise InputError([Problem(f"--out {path}", f"cannot be written: {error.strerror}")]) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            what = "another run is writing here; wait for it or choose another folder"
            raise InputError([Problem(f"--out {path}", what)]) from error
        for name in FILES:
            (path / f".{name}{TEMPORARY}").unlink(missing_ok=True)
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

    # --- while the search runs -------------------------------------------------------------------------------------

    def journal(self, funnel: "Funnel", task_rows: int, resume: bool) -> Journal:
        """The journal of this search: continued where one is to be resumed, else new.

        Raises InputError when the journal to resume belongs to another search; a larger budget is the same search.
        """
        from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS
        from primus_search.exploration.run_folder.journal_check import refuse_other_lengths

        unlimited = replace(funnel.space.search, method="exhaustive", budget_candidates=0, budget_seconds=0.0, top_k=1)
        searched = fingerprint(replace(funnel.space, search=unlimited))
        identity = {"search": searched, "keep": funnel.keep, "chunk_rows": CHUNK_ROWS}
        identity |= {"version": __version__, "code": fingerprint_of(PACKAGE), "numpy": np.__version__}
        path = self.path / "journal.bin"
        try:
            found = Journal.resume(path, identity, funnel.keep) if resume else None
            if found:
                refuse_other_lengths(funnel, found.task_rows)
            return found or Journal.start(path, identity, task_rows)
        except OtherSearch as other:
            raise InputError([Problem(f"--resume {self.path}", _other_search(other))]) from other
        except BadRecord as bad:
            raise self._refusal(bad) from bad
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error

    def refuse_untrue(self, journal: Journal, funnel: "Funnel", tasks: "Sequence[Task]") -> None:
        """Raise InputError for a record of the journal that these tasks cannot have given."""
        from primus_search.exploration.run_folder.journal_check import refuse_untrue

        try:
            refuse_untrue(funnel, journal, tasks)
        except BadRecord as bad:
            raise self._refusal(bad) from bad

    def _refusal(self, bad: BadRecord) -> InputError:
        what = f"{bad}; this program did not write it: leave out --resume to start over"
        return InputError([Problem(f"--resume {self.path}/journal.bin", what)])

    # --- at the end ------------------------------------------------------------------------------------------------

    def write(self, result: SearchResult, *, token_budget: float = 0.0) -> None:
        """All files of a finished search; `run.json` last, so that a folder with it is complete.

        `token_budget`: tokens to train on, for days and cost in `scaling.csv`.
        """
        try:
            (self.path / "run.json").unlink(missing_ok=True)  # an earlier run's must not vouch for this one's tables
            files = {
                "ranking.csv": csv_bytes(ranked_rows(result)),
                "pareto.csv": csv_bytes(_merged(result, "frontier", None)),
                "candidates.parquet": kept_bytes([found.ranking for found in result.clusters]),
            }
            if len(result.clusters) > 1:
                files["scaling.csv"] = csv_bytes([_plain(rung) for rung in ladder(result, token_budget)])
            for name, content in files.items():
                self._write(name, content)
            facts = summary(result) | {"files": {name: file_facts(content) for name, content in files.items()}}
            self._write("run.json", json.dumps(facts, indent=2).encode() + b"\n")
            if result.is_complete:
                (self.path / "journal.bin").unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path}: the run folder is incomplete: {error.strerror}") from error

    def _write(self, name: str, content: bytes) -> None:
        """One file, whole or not at all."""
        temporary = self.path / f".{name}{TEMPORARY}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)


IDENTITY_WORDS = {
    "search": "space, model, hardware or settings",
    "keep": "--keep",
    "numpy": "NumPy",
    "code": "source files",
}
"""What a user calls the parts of a journal's identity; a part that is not listed goes by its own name."""


def _other_search(other: OtherSearch) -> str:
    """Why a journal cannot be continued, and what to do."""
    told = [
        IDENTITY_WORDS.get(name, name) + ("" if name == "search" else f" {there}, now {here}")
        for name, there, here in other.differences
    ]
    what = f"its journal belongs to another search ({'; '.join(told)} changed)"
    return f"{what}; give what that run was given, or leave out --resume to start over"


# --- contents ------------------------------------------------------------------------------------------------------


def summary(result: SearchResult) -> dict[str, Any]:
    """The content of `run.json`."""
    space, best = result.space, result.best
    return {
        "space": space.name,
        "source": space.source,
        "space_sha256": space.sha256,
        "search_sha256": fingerprint(space),
        "overrides": [_plain(override) for override in space.overrides],
        "model": space.model.name,
        "hardware": best.choice.cluster.accelerator.name,
        "stack": best.choice.cluster.stack.reference,
        "framework": best.choice.framework.name,
        "nodes": best.choice.cluster.num_nodes,
        "gpus": best.choice.cluster.world,
        "workload": _plain(space.workload),
        "engine": result.engine,
        "workers": result.workers,
        "seed": space.search.seed,
        "method": result.method,
        "method_reason": result.method_reason,
        "objective": space.search.objective,
        "memory_margin": space.search.memory_margin,
        "exact": result.exact,
        "complete": result.is_complete,
        "notes": [*result.space.notes, *result.notes],
        "raw": result.raw,
        "legal": result.legal,
        "feasible": result.feasible,
        "removed": [
            {"rule": name, "rows": count, "reason": result.reasons[name]} for name, count in result.removed.items()
        ],
        "stages": [
            {"name": s.name, "rows": s.rows, "seconds": s.seconds, "rows_per_s": s.rows_per_s} for s in result.stages
        ],
        "seconds": result.seconds,
        "peak_rss_bytes": result.peak_rss_bytes,
        "sampler": None if result.sampler_check is None else _plain(result.sampler_check),
        "clusters": [
            {
                "labels": dict(found.choice.labels),
                "nodes": found.choice.cluster.num_nodes,
                "gpus": found.choice.cluster.world,
                "legal": found.legal,
                "feasible": found.feasible,
                "best_tokens_per_s_per_gpu": found.best_tokens_per_s_per_gpu,
            }
            for found in result.clusters
        ],
        "best": best.ranking.row(0),
        **({} if result.baseline is None else {"baseline": result.baseline.as_data()}),
        "versions": _versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def fingerprint(space: Space) -> str:
    """A hash of everything a search's answer depends on: model, clusters, workload, axes, constraints, settings."""
    model = replace(space.model, source="")  # where a file lies decides nothing
    constraints = [constraint.text for constraint in space.constraints]
    content = repr([model, space.workload, space.clusters, space.axes, constraints, space.search])
    return hashlib.sha256(content.encode()).hexdigest()


def _versions() -> dict[str, str]:
    found = {"primus-search": __version__, "python": platform.python_version(), "platform": sys.platform}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def ranked_rows(result: SearchResult) -> list[dict[str, Any]]:
    """The rows of `ranking.csv`: the best of all clusters, then the best of each parallel layout and precision.

    A rank is the place in this list, from 1. Behind the first `RANKED_ROWS`, other rows of the space lie between two
    of the list.
    """
    head = _merged(result, "ranking", RANKED_ROWS)
    known = {tuple(row.values())[: _named(result)] for row in head}
    leaders = _merged(result, "leaders", None)
    return head + [row for row in leaders if tuple(row.values())[: _named(result)] not in known]


def _named(result: SearchResult) -> int:
    """How many of a row's first columns tell it from every other row: its cluster and its axes."""
    several = len(result.clusters) > 1
    return len(COLUMN_NAMES) + (len(dict(result.best.choice.labels) | {"nodes": 0}) if several else 0)


def _merged(result: SearchResult, which: str, most: int | None) -> list[dict[str, Any]]:
    """Rows of one cluster, or of all clusters with what distinguishes them in front, best first."""
    tables: list[RankingTable] = [found.__getattribute__(which) for found in result.clusters]
    if len(tables) == 1:
        return tables[0].rows(slice(most))
    rows = [
        dict(one.choice.labels) | {"nodes": one.choice.cluster.num_nodes} | row
        for one in tables
        for row in one.rows(slice(most))
    ]
    if which != "frontier":
        # As within a cluster: what was measured first, what a device showed not to fit last.
        rows.sort(
            key=lambda row: (
                row["memory_verdict"] == OUT_OF_MEMORY,
                row["time_evidence"] != MEASURED,
                -row[result.space.search.objective]
                * row["expected_tokens_per_s_per_gpu"]
                / row["tokens_per_s_per_gpu"],
            )
        )
    return rows[:most]


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as the tables of a run folder are written."""
    text = io.StringIO()
    if rows:
        names = {name: guarded(name) for name in rows[0]}
        writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
        writer.writerow(names)
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Switches as true and false, floats with every digit that matters, words that no spreadsheet evaluates."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else guarded(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Dataclasses and tuples as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(value.__getattribute__(f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
