"""Runs one function in a process of its own, with a time limit, and turns whatever happens into a value.

A benchmark can run out of memory, hang in a kernel, crash the driver or be killed; none of that may take the search
down. The function is named as `module:function`, takes JSON and returns JSON; it runs in a fresh interpreter that
leads its own process group, so that a time limit ends its children too, and that dies with its parent.

    outcome = isolated("primus_search.measure.candidate_bench:bench_piece", payload, limit_s=60)
    outcome.value if outcome.verdict is Verdict.DONE else outcome.cause
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from primus_search.base.guards import interrupts
from primus_search.base.guards.files import write_whole

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ERROR_LINES = 3
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory", "hiperroroutofmemory")


class ProcessVerdict(Enum):
    """How a benchmark ended; every value but DONE leaves its candidate projected, with the cause named."""

    DONE = "done"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang"
    NOT_FINITE = "not finite"
    MISSING_KERNEL = "missing kernel"
    CRASH = "crash"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """What came back: a value when DONE, else the cause in words."""

    verdict: ProcessVerdict
    value: Any = None
    cause: str = ""

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> "ProcessOutcome":
        """From what `outcome_of` returned."""
        return cls(verdict=ProcessVerdict(data["verdict"]), value=data["value"], cause=data["cause"])


def isolated(
    function: str, payload: Any, *, limit_s: float, environment: dict[str, str] | None = None
) -> ProcessOutcome:
    """The function's result from its own process, or the verdict on how it failed."""
    with tempfile.TemporaryDirectory(prefix="primus-search-") as folder:
        job, result, errors = (Path(folder) / name for name in ("job.json", "result.json", "errors"))
        job.write_text(json.dumps({"function": function, "payload": payload, "parent": os.getpid()}))
        command = [sys.executable, "-m", "primus_search.measure.isolate", str(job), str(result)]
        paths = [entry for entry in sys.path if entry] + [str(Path.cwd())]
        # A file rather than a pipe: what the child leaves running would keep a pipe open.
        with errors.open("wb") as stream:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))} | (environment or {}),
            )
        try:
            if not interrupts.has_ended(child, limit_s):
                return ProcessOutcome(verdict=ProcessVerdict.HANG, cause=f"no result within {limit_s:.0f} s")
        finally:
            _end_group(child)
        return _outcome(child.returncode, result, errors.read_text(encoding="utf-8", errors="replace"))


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and everything it started; harmless when all of it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _outcome(code: int, result: Path, errors: str) -> ProcessOutcome:
    if result.exists():
        return ProcessOutcome.of_json(json.loads(result.read_text()))
    tail = " | ".join(errors.strip().splitlines()[-_ERROR_LINES:])
    verdict, cause = ending(code)
    return ProcessOutcome(verdict=verdict, cause=f"{cause}; {tail}".rstrip("; "))


def ending(code: int) -> tuple[ProcessVerdict, str]:
    """What the exit code of a process that gave no answer says (subprocess.Popen.returncode)."""
    if code >= 0:
        return ProcessVerdict.CRASH, f"exit code {code}"
    if -code == signal.SIGKILL:  # of the kernel's out-of-memory killer; our own comes after the answer
        return ProcessVerdict.OUT_OF_MEMORY, "ended by SIGKILL (the system's out-of-memory killer, or an operator)"
    return ProcessVerdict.CRASH, f"ended by {signal.Signals(-code).name}"


# --- inside the child ---------------------------------------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends; at once where it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def load(name: str) -> Callable[..., Any]:
    """The function named `module:function`."""
    module, _, function = name.partition(":")
    loaded: Callable[..., Any] = importlib.import_module(module).__dict__[function]
    return loaded


def classify(error: BaseException) -> ProcessVerdict:
    """The verdict an exception stands for; unknown ones are ERROR, never swallowed: their text is the cause."""
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
        return ProcessVerdict.OUT_OF_MEMORY
    if any(text in str(error).lower() for text in _OUT_OF_MEMORY_TEXTS):
        return ProcessVerdict.OUT_OF_MEMORY
    if name == "NotFiniteError":
        return ProcessVerdict.NOT_FINITE
    if name == "MissingKernelError" or isinstance(error, NotImplementedError):
        return ProcessVerdict.MISSING_KERNEL
    return ProcessVerdict.ERROR


def outcome_of(function: str, payload: Any) -> dict[str, Any]:
    """What the function returned, or the verdict on what it raised, as JSON."""
    try:
        return {"verdict": ProcessVerdict.DONE.value, "value": load(function)(payload), "cause": ""}
    except Exception as error:  # the boundary: every failure becomes a verdict with its cause
        first_line = (str(error).strip().splitlines() or [""])[0]
        cause = f"{type(error).__name__}: {first_line}"
        return {"verdict": classify(error).value, "value": None, "cause": cause}


def main(job_path: str, result_path: str) -> None:
    """Entry of the child: run the job, write its outcome atomically."""
    job = json.loads(Path(job_path).read_text())
    die_with_parent(job["parent"])
    write_whole(Path(result_path), json.dumps(outcome_of(job["function"], job["payload"])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
