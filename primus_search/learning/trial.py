"""One trial of `tune`: a folder, a command that starts the configuration, limits, and what came of it.

trials/003/candidate.json   what is run: model, workload, candidate        launch files beside it
trials/003/process.json     process group of the command, to end it when `tune` itself was killed
trials/003/launch.log       its output
trials/003/result.json      the outcome, written last: a folder without it is run again
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import read_mapping, write_whole
from primus_search.base.guards.interrupts import check
from primus_search.files.plain_forms import FIGURE, WHOLE, from_plain, problems_of
from primus_search.learning.collected_runs import read_files
from primus_search.learning.logged_run import measurement_of
from primus_search.learning.readers import lines, plain
from primus_search.learning.reading import Death, LogReading
from primus_search.learning.transcript import Transcript, observe_common
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.measured_run import MEASURED, Ending, Measurement, PeakKind

CANDIDATE, PROCESS, LOG, RESULT = "candidate.json", "process.json", "launch.log", "result.json"
LOOK_S = 0.2
"""Seconds between two looks at a running command."""

LAST_BYTES, LONGEST_REASON = 1 << 16, 300
"""End of a log in which its last line is looked for, and characters of that line in a reason."""

ENDING_S = 10.0
"""What a command may take to end after it is asked to, before it is killed."""


class TrialVerdict(StrEnum):
    """How a trial ended."""

    RAN = "ran"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    HANG = "hang"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds of one trial in all, and seconds without output after which it hangs."""

    seconds: float
    quiet_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial; figures are None where nothing was measured."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    rank: WHOLE
    verdict: TrialVerdict
    reason: str
    tokens_per_s_per_gpu: FIGURE | None = None
    step_s: FIGURE | None = None
    peak_bytes: FIGURE | None = None
    peak_kind: PeakKind = "driver"
    noise: FIGURE | None = None

    @property
    def measurement(self) -> Measurement:
        """As a record of a run holds it."""
        found = {name: value for name in MEASURED if (value := self.__getattribute__(name)) is not None}
        ending: Ending = "out_of_memory" if self.verdict is TrialVerdict.OUT_OF_MEMORY else "ran"
        return Measurement(**found, peak_kind=self.peak_kind, ending=ending)


def written_outcome(folder: Path, ranks: Collection[int]) -> Outcome | None:
    """The outcome of a finished trial of one of some ranks; None where it did not finish.

    Raises `InputError` with the key of what no trial wrote.
    """
    data = read_mapping(folder / RESULT)
    if data is None:
        return None
    wrong = dict.fromkeys(key for key, _ in problems_of(data, Outcome))
    wrong = wrong or ({} if data["rank"] in ranks else {"$.rank": None})
    if wrong:
        what = f"is nothing that a trial wrote; delete {folder} to run the trial again"
        raise InputError([Problem(f"{folder / RESULT} @ {key}", what) for key in wrong])
    return from_plain(Outcome, data)


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or as it was."""
    write_whole(path, json.dumps(data, indent=2) + "\n")


class Stopped(Exception):
    """`tune` was interrupted: the trial has no outcome."""


def run_trial(
    folder: Path,
    command: Sequence[str],
    script: str,
    limits: Limits,
    job: Job,
    table: Candidates,
    rank: int,
    stop: Event,
) -> Outcome:
    """Launch the command of a prepared folder, wait, read its log, and write the outcome. Raises `Stopped` once `stop`
    is set."""
    end_left_over(folder)
    words = {"{script}": script, "{candidate}": CANDIDATE}
    early, code = _waited(folder, [words.get(part, part) for part in command], limits, stop)
    outcome = _outcome(folder, early, code, job, table, rank)
    write_json(folder / RESULT, asdict(outcome))
    return outcome


def _waited(folder: Path, parts: Sequence[str], limits: Limits, stop: Event) -> tuple[TrialVerdict | None, int]:
    """Run a command to its end or to a limit: the limit's verdict, and its exit code."""
    with (folder / LOG).open("wb") as log:
        try:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(parts, cwd=folder, start_new_session=True, **streams)
        except OSError as error:
            log.write(f"cannot be started: {error}\n".encode())
            return None, 127
    write_json(folder / PROCESS, {"pid": process.pid, "started": _started(process.pid)})
    begin = grown = time.monotonic()
    size, verdict = -1, None
    try:
        while process.poll() is None and verdict is None:
            if stop.wait(LOOK_S):
                raise Stopped
            check()
            now, written = time.monotonic(), _size(folder)
            grown, size = (now, written) if written != size else (grown, size)
            if now - begin > limits.seconds:
                verdict = TrialVerdict.TIMEOUT
            elif now - grown > limits.quiet_s:
                verdict = TrialVerdict.HANG
    finally:
        if process.poll() is None:
            _end(process.pid)
    return verdict, process.wait()


def _size(folder: Path) -> int:
    """Bytes of all files of a folder, which grow while a command says anything; one that goes meanwhile counts 0."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def end_left_over(folder: Path) -> None:
    """End what an earlier `tune`, killed itself, left running in this folder."""
    left = read_mapping(folder / PROCESS) or {}
    pid, started = left.get("pid"), left.get("started")
    if isinstance(pid, int) and pid > 1 and started is not None and _started(pid) == started:
        _end(pid)
    (folder / PROCESS).unlink(missing_ok=True)


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; tells it from a later one of the same number. None off Linux."""
    return next(iter(_status(pid)[19:20]), None)


def _status(pid: int) -> list[str]:
    """The words behind the name in a process' `stat`: its state first, its start 20th; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _end(pid: int) -> None:
    """End a process group: by a signal first, killed after `ENDING_S`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        until = time.monotonic() + ENDING_S
        while time.monotonic() < until and _status(pid)[:1] not in ([], ["Z"]):
            time.sleep(LOOK_S / 4)


def _outcome(folder: Path, early: TrialVerdict | None, code: int, job: Job, table: Candidates, rank: int) -> Outcome:
    """The outcome by the log and the end of a command."""
    readings: Sequence[LogReading] = ()
    with contextlib.suppress(InputError):  # what it printed last says more than what is wrong with it as a log
        readings = read_files([folder]).runs
    if any(one.died is Death.OUT_OF_MEMORY for one in readings) or (not readings and _ran_out(folder / LOG)):
        return Outcome(rank=rank, verdict=TrialVerdict.OUT_OF_MEMORY, reason="its log says that memory ran out")
    steady = [one for one in readings if one.step_s is not None]
    if steady:
        return _ran(max(steady, key=lambda one: one.steps), job, table, rank)
    ends = {
        TrialVerdict.TIMEOUT: "the time limit ended it",
        TrialVerdict.HANG: "it printed nothing for too long",
        None: f"it ended with exit code {code}",
    }
    why = "its log has no steady step time; " if readings else ""
    last = next((line.strip() for line in reversed(_last_lines(folder / LOG)) if line.strip()), "")
    why += f"its last line: {last[:LONGEST_REASON]}" if last else "it printed nothing"
    return Outcome(rank=rank, verdict=early or TrialVerdict.FAILED, reason=f"{ends[early]}; {why}")


def _last_lines(path: Path) -> list[str]:
    """The last lines that a command printed, its launcher's own among them."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LAST_BYTES, 0))
        return plain(file.read().decode(errors="replace")).splitlines()


def _ran_out(path: Path) -> bool:
    """Whether a log that no reader takes, for it ends before the first step, says that memory ran out."""
    seen = Transcript(source=str(path))
    for line in lines(path):
        observe_common(seen, line)
    return seen.died() is Death.OUT_OF_MEMORY


def _ran(reading: LogReading, job: Job, table: Candidates, rank: int) -> Outcome:
    """The outcome of a run with a step time, unless its log is of another configuration."""
    workload, row = job.workload, table.row(0)
    expected = {name: row[name] for name in ("tp", "pp", "cp", "ep", "micro_batch_size")}
    expected |= {name: workload.__getattribute__(name) for name in ("global_batch_size", "seq_length")}
    expected |= {"gpus": job.cluster.world}
    pairs = {name: (reading.__getattribute__(name), value) for name, value in expected.items()}
    other = [
        f"{name} {printed}, not {value}" for name, (printed, value) in pairs.items() if printed not in (None, value)
    ]
    if other:
        return Outcome(rank=rank, verdict=TrialVerdict.FAILED, reason=f"its log is of another run: {', '.join(other)}")
    found, step_s = measurement_of(reading), float(reading.step_s or 0.0)
    return Outcome(
        rank=rank,
        verdict=TrialVerdict.RAN,
        reason=f"{reading.steps} steady steps",
        tokens_per_s_per_gpu=workload.tokens_per_step / step_s / job.cluster.world,
        step_s=step_s,
        peak_bytes=None if math.isnan(found.peak_bytes) else found.peak_bytes,
        peak_kind=found.peak_kind,
        noise=reading.noise,
    )
