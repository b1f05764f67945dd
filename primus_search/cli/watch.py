"""`primus-search watch` and `explain --log`: a job by its log, beside the projection of the row that it runs."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.cli.output import print_json, run_and_rows

if TYPE_CHECKING:
    from primus_search.analysis.slow_jobs.slow_job import SlowJob
    from primus_search.exploration.ranking_table import RankingTable

LEFT_BAND = 6
"""Exit code of a job that left its band or whose step times show a pattern."""


def watch(
    log: Path,
    run: Path | None = None,
    row: str = "1",
    hardware: str = "",
    every: float = 60.0,
    quiet: float = 900.0,
    once: bool = False,
    as_json: bool = False,
) -> None:
    """Follow the log of a job; exit 6 when it leaves its band, with the kind of cause, 0 when it ends healthy."""
    from primus_search.analysis.slow_jobs.slow_job import slow_job

    projected, size, last_s = None, -1, time.monotonic()
    while True:
        now = log.stat().st_size
        is_over = once or (now == size and time.monotonic() - last_s > quiet)
        last_s, found = (last_s if now == size else time.monotonic()), None
        if now != size or is_over:
            try:
                projected = projected or _row_of(log, [str(run), row] if run else [], hardware)
                found = slow_job(log, projected)
            except InputError:
                if is_over:  # before its first steps a log is none yet
                    raise
        size = now
        if found is not None and (is_over or not found.is_healthy):
            _print(found, as_json)
            raise typer.Exit(0 if found.is_healthy else LEFT_BAND)
        time.sleep(every)


def explain_log(log: Path, words: list[str], hardware: str, as_json: bool) -> None:
    """Print a log beside the projection of its row."""
    from primus_search.analysis.slow_jobs.slow_job import slow_job

    _print(slow_job(log, _row_of(log, words, hardware)), as_json)


def _print(found: "SlowJob", as_json: bool) -> None:
    from primus_search.cli.output_schema import numbered
    from primus_search.report.slow_text import slow_lines

    if as_json:
        print_json(numbered({"log": asdict(found) | {"is_healthy": found.is_healthy, "is_slow": found.is_slow}}))
    else:
        typer.echo("\n".join(slow_lines(found)))


def _row_of(log: Path, words: list[str], hardware: str) -> "RankingTable":
    """The row that a job runs: of the run that is named, else that of the log's own settings."""
    import numpy as np

    from primus_search.exploration.neighbours import Evaluator
    from primus_search.exploration.ranking_table import RankingTable

    if words:
        saved, rows = run_and_rows(words)
        rank = saved.rank_named(rows[0] if rows else "1")
        evaluator, one = saved.evaluator(saved.cluster(rank)), saved.candidate(rank)
    else:
        from primus_search.cli.project import of_file

        try:
            space, one = of_file(log, hardware)
        except InputError as error:
            hint = Problem("--log", "or name the run and row that it runs: explain RUN A --log FILE")
            raise InputError([*error.problems, hint]) from error
        evaluator = Evaluator(space, space.clusters[0])
    return RankingTable.of(evaluator, np.zeros(1, np.int64), one)
