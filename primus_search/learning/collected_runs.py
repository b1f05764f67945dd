"""Training runs from logs, run folders and tables: what was read, and what was refused with its reason."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.declare.record_table import read_records
from primus_search.learning.logged_job import with_assumptions
from primus_search.learning.readers import read_log
from primus_search.learning.reading import LogReading
from primus_search.values.measured_run import MeasuredRun, RunTable

LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz", ".jsonl")
"""Files of a run folder that are tried as logs, beside event files and `trainer_state.json`."""

TABLE_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Runs of logs and of tables, in the order of the files, and one problem per file that was refused."""

    runs: tuple[LogReading, ...]
    refused: tuple[Problem, ...]
    measured: tuple[MeasuredRun, ...] = ()


def read_files(
    paths: Sequence[Path], framework: str | None = None, read_table: Callable[[Path], RunTable] = read_records
) -> Readings:
    """Every run among files and folders. Raises `InputError` with all reasons where none can be read.

    read_table: how a CSV or parquet is read; tables of records are read as they are.
    """
    runs: list[LogReading] = []
    refused: list[Problem] = []
    measured: list[MeasuredRun] = []
    for path in paths:
        for one in _files(path):
            try:
                if one.suffix in TABLE_SUFFIXES:
                    measured += read_table(one).runs
                else:
                    runs.append(with_assumptions(read_log(one, framework)))
            except InputError as error:
                refused += error.problems
    if not runs and not measured:
        raise InputError(refused or [Problem(", ".join(map(str, paths)), "no file in it looks like a training log")])
    return Readings(runs=tuple(runs), refused=tuple(refused), measured=tuple(measured))


def _files(path: Path) -> Iterator[Path]:
    """A file itself; of a folder the files that may be logs, by name."""
    if not path.is_dir():
        yield path
        return
    for one in sorted(path.rglob("*")):
        is_state = one.name == "trainer_state.json" or ".tfevents." in one.name
        if one.is_file() and (is_state or one.suffix in LOG_SUFFIXES):
            yield one


def reading_of(run: MeasuredRun) -> LogReading:
    """A run of a table in the form of a log's reading, for the same report."""
    row, m, rate = run.candidates.row(0), run.measured, run.tokens_per_s_per_gpu if run.has_rate else None
    return LogReading(
        source=run.provenance.id or run.provenance.source,
        framework=run.framework or "table",
        model={"model_name": run.model.name},
        device=run.gpu,
        gpus=run.cluster.world,
        **{name: row[name] for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size")},
        seq_length=run.workload.seq_length,
        global_batch_size=run.workload.global_batch_size,
        step_s=run.workload.tokens_per_step / rate / run.cluster.world if rate else None,
        tokens_per_s_per_gpu=rate,
        peak_memory_bytes=None if math.isnan(m.peak_bytes) else m.peak_bytes,
    )
