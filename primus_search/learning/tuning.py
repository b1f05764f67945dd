"""The loop of `tune`: choose a row of a search, launch it, read its log, learn, choose again.

All state is in the folder: `search/`, the run folder whose rows are tried; `trials/NNN/`, one folder per trial;
`study.log`, an Optuna journal of the finished ones. A trial that has no result is run again, finished ones are not, and
the next choice follows from the results alone: a loop that was killed ends as if it had not been.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.interrupts import results
from primus_search.cost.confidence.fit import FITS
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.learning.next_runs import MOST_ROWS, RunsToMake, next_runs
from primus_search.learning.trial import (
    CANDIDATE,
    Limits,
    Outcome,
    TrialVerdict,
    run_trial,
    write_json,
    written_outcome,
)
from primus_search.values.candidates import COLUMN_NAMES, Candidates, Floats, joined
from primus_search.values.job import Job
from primus_search.values.measured_run import MeasuredRun, Provenance

SEARCH, TRIALS, STUDY, RUNS = "search", "trials", "study.log", "tuned.runs.parquet"

Prepare = Callable[[int, Path], str]
"""Writes the launch files of a rank into a folder; the name of the script that starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRows:
    """The rows of a search that are tried: those of the best cluster, up to `MOST_ROWS`."""

    job: Job
    ranks: tuple[int, ...]
    table: Candidates
    step_s: Floats
    memory_bytes: Floats
    framework: str
    hardware: str

    @classmethod
    def of(cls, saved: SavedRun, *, are_sure: bool = False) -> "TrialRows":
        """Those of a run folder; are_sure: those that FIT alone, where there are some."""
        choice = saved.cluster(1)
        every = [rank for rank in range(1, len(saved.ranking) + 1) if saved.cluster(rank) == choice]
        sure = [rank for rank in every if are_sure and saved.row(rank).get("memory_verdict") == FITS]
        ranks = (sure or every)[:MOST_ROWS]
        tokens = saved.space.workload.tokens_per_step / choice.cluster.world
        return cls(
            job=saved.space.job_on(choice),
            ranks=tuple(ranks),
            table=joined([saved.candidate(rank) for rank in ranks]),
            step_s=np.array([tokens / float(saved.row(rank)[RATE]) for rank in ranks]),
            memory_bytes=np.array([float(saved.row(rank)["memory_bytes"]) for rank in ranks]),
            framework=choice.framework.name,
            hardware=choice.cluster.accelerator.name,
        )

    def row(self, rank: int) -> Candidates:
        """One row as a table."""
        return self.table.take(np.array([self.ranks.index(rank)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the loop found.

    regret: expected of the choice; best: the measured trial with the highest rate; stopped: why it ended early.
    """

    outcomes: tuple[Outcome, ...]
    regret: float
    best: Outcome | None
    stopped: str = ""


def tune(
    rows: TrialRows,
    folder: Path,
    prepare: Prepare,
    *,
    launch: str,
    trials: int,
    until: float,
    limits: Limits,
    parallel: int = 1,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Run up to so many trials, until the expected regret of the choice is below `until`.

    parallel: trials that are chosen together and run at once; the choice after them knows all of their outcomes. Two
    trials in a row that fail alike end the loop: what stops them is not their configuration.
    """
    command, outcomes = launch_words(launch), list[Outcome]()
    while True:
        advice = advised(rows, outcomes, seed, max(1, min(parallel, trials - len(outcomes))))
        has_rate = any(one.tokens_per_s_per_gpu for one in outcomes)
        stopped = _failed_alike(outcomes, folder)
        if len(outcomes) >= trials or not advice.picks or stopped or (has_rate and advice.regret <= until):
            ran = [one for one in outcomes if one.verdict is TrialVerdict.RAN]
            best = max(ran, key=lambda one: one.tokens_per_s_per_gpu or 0.0, default=None)
            return Tuned(outcomes=tuple(outcomes), regret=advice.regret, best=best, stopped=stopped)
        stop = Event()
        calls = []
        for number, pick in enumerate(advice.picks, start=len(outcomes) + 1):
            say(f"trial {number}: rank {rows.ranks[pick.row]}, expected regret now {advice.regret:.1%}")
            place = folder / TRIALS / f"{number:03d}"
            calls.append(_trial(rows, rows.ranks[pick.row], place, prepare, command, limits, stop))
        for outcome in _together(calls, stop):
            outcomes.append(outcome)
            rate = outcome.tokens_per_s_per_gpu
            ending = f", {rate:,.0f} tokens/s/GPU" if rate else ""
            say(f"trial {len(outcomes)}: rank {outcome.rank} {outcome.verdict}, {outcome.reason}{ending}")
        _keep(rows, folder, outcomes)


def _failed_alike(outcomes: Sequence[Outcome], folder: Path) -> str:
    """Why the loop ends after two trials that failed for the same reason, but for numbers in it; else empty."""
    same = {(one.verdict, re.sub(r"\d+", "", one.reason)) for one in outcomes[-2:]}
    if len(outcomes) < 2 or len(same) > 1 or outcomes[-1].verdict not in (TrialVerdict.FAILED, TrialVerdict.HANG):
        return ""
    last = len(outcomes)
    trials = f"{folder / TRIALS}/{last - 1:03d} and {last:03d}"
    return f"two trials in a row failed alike; mend what they are started by, delete {trials} and go on"


def launch_words(launch: str) -> list[str]:
    """The words of `--launch`. Raises `InputError` where they are none or the same for every trial."""
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise InputError([Problem(f"--launch {launch}", f"cannot be split into words: {error}")]) from None
    if not {"{script}", "{candidate}"} & set(words):
        what = "names neither {script} nor {candidate}, so every trial would be the same"
        raise InputError([Problem("--launch", what)])
    return words


def _trial(
    rows: TrialRows, rank: int, place: Path, prepare: Prepare, command: Sequence[str], limits: Limits, stop: Event
) -> Callable[[], Outcome]:
    """What gives the outcome of a trial: its folder where it finished before, else a run of the files written there."""
    outcome = written_outcome(place, rows.ranks)
    if outcome is not None:
        return lambda: outcome
    place.mkdir(parents=True, exist_ok=True)
    row = rows.row(rank)
    write_json(place / CANDIDATE, _candidate(rows, row))
    return partial(run_trial, place, command, prepare(rank, place), limits, rows.job, row, rank, stop)


def _together(calls: Sequence[Callable[[], Outcome]], stop: Event) -> list[Outcome]:
    """What calls return, all of them running at once; `stop` is set for them where this thread is interrupted."""
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            return results(running)
        except BaseException:
            stop.set()
            raise


def advised(rows: TrialRows, outcomes: Sequence[Outcome], seed: int, count: int = 1) -> RunsToMake:
    """The next rows to run, given the outcomes so far.

    Rows that need no less than one that ran out are not run while others are left.
    """
    places = {one.rank: rows.ranks.index(one.rank) for one in outcomes}
    lost = [rows.memory_bytes[places[one.rank]] for one in outcomes if one.verdict is TrialVerdict.OUT_OF_MEMORY]
    heavy = np.flatnonzero(rows.memory_bytes >= min(lost, default=np.inf)).tolist()
    is_left = len({*heavy, *places.values()}) < len(rows.ranks)
    known = dict.fromkeys(heavy, 0.0) if is_left else {}
    known |= {places[one.rank]: one.tokens_per_s_per_gpu or 0.0 for one in outcomes}
    runs = runs_of(rows, [one for one in outcomes if one.tokens_per_s_per_gpu])
    framework = None if rows.framework == "any" else rows.framework
    return next_runs(rows.job, rows.table, rows.step_s, runs, framework=framework, known=known, count=count, seed=seed)


def runs_of(rows: TrialRows, outcomes: Sequence[Outcome]) -> list[MeasuredRun]:
    """Trials as measured runs."""
    return [
        MeasuredRun(
            model=rows.job.model,
            cluster=rows.job.cluster,
            workload=rows.job.workload,
            candidates=rows.row(one.rank),
            measured=one.measurement,
            provenance=Provenance(id=f"rank-{one.rank}", source="tune"),
            hardware=rows.hardware,
            framework=rows.framework,
        )
        for one in outcomes
    ]


def _candidate(rows: TrialRows, row: Candidates) -> dict[str, Any]:
    """What a launcher of the user's own needs to start a row."""
    workload = rows.job.workload
    return {
        "model": rows.job.model.name,
        "hardware": rows.hardware,
        "nodes": rows.job.cluster.num_nodes,
        "workload": {"seq_length": workload.seq_length, "global_batch_size": workload.global_batch_size},
        "candidate": {name: value for name, value in row.row(0).items() if name in COLUMN_NAMES},
    }


def _keep(rows: TrialRows, folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Every outcome in the study."""
    from primus_search.exploration.sampled.study import keep_trials

    words = [{name: str(value) for name, value in rows.table.row(i).items()} for i in range(len(rows.table))]
    values = {name: sorted({one[name] for one in words}) for name in words[0]}
    values = {name: choices for name, choices in values.items() if len(choices) > 1}
    trials = [(words[rows.ranks.index(one.rank)], one.tokens_per_s_per_gpu, str(one.verdict)) for one in outcomes]
    keep_trials(folder / STUDY, values, trials)
