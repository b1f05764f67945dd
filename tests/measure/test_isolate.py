"""A benchmark that fails is a verdict with a cause, never an exception, and leaves no process behind."""

import os
import time
from pathlib import Path

import pytest

from primus_search.measure.isolate import ProcessVerdict, isolated
from primus_search.measure.rank_group import RankJob, run_jobs

FAULTS = "tests.support.measure_faults"


def test_a_value_comes_back_as_it_was_returned():
    outcome = isolated(f"{FAULTS}:echo", {"a": [1, 2.5, "x"]}, limit_s=60)
    assert outcome.verdict is ProcessVerdict.DONE
    assert outcome.value == {"a": [1, 2.5, "x"]}


@pytest.mark.parametrize(
    ("function", "verdict", "cause"),
    [
        (
            "killed",
            ProcessVerdict.OUT_OF_MEMORY,
            "ended by SIGKILL (the system's out-of-memory killer, or an operator)",
        ),
        ("crash", ProcessVerdict.CRASH, "ended by SIGSEGV"),
        ("out_of_memory", ProcessVerdict.OUT_OF_MEMORY, "MemoryError: no room"),
        (
            "device_out_of_memory",
            ProcessVerdict.OUT_OF_MEMORY,
            "RuntimeError: CUDA out of memory. Tried to allocate 20 GiB",
        ),
        ("not_finite", ProcessVerdict.NOT_FINITE, "NotFiniteError: the output holds NaN or infinity"),
        ("missing_kernel", ProcessVerdict.MISSING_KERNEL, "NotImplementedError: no kernel for the dtype"),
        ("unknown", ProcessVerdict.ERROR, "KeyError: 'unknown'"),
        ("leave", ProcessVerdict.CRASH, "exit code 7; driver lost"),
    ],
)
def test_every_failure_is_a_verdict_that_names_its_cause(function, verdict, cause):
    outcome = isolated(f"{FAULTS}:{function}", None, limit_s=60)
    assert (outcome.verdict, outcome.cause) == (verdict, cause)


def test_a_hang_is_cut_at_the_limit_and_takes_its_children_along(tmp_path):
    note = tmp_path / "grandchild"
    started = time.monotonic()
    outcome = isolated(f"{FAULTS}:hang_with_child", str(note), limit_s=5)
    assert outcome.verdict is ProcessVerdict.HANG
    assert outcome.cause == "no result within 5 s"
    assert time.monotonic() - started < 30
    deadline = time.monotonic() + 10
    while _is_running(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(int(note.read_text()))


def test_forked_jobs_that_fail_are_verdicts_each_and_leave_no_process_behind(tmp_path):
    note = tmp_path / "grandchild"
    names = ("hang_with_child_named", "killed", "crash", "out_of_memory", "not_finite", "echo")
    jobs = [RankJob(function=f"{FAULTS}:{name}", payload={"note": str(note)}, limit_s=3.0) for name in names]
    outcomes = [
        outcome for (outcome,) in run_jobs(jobs, ranks=1, threads=1, warm="primus_search.measure.layer_bench:warm")
    ]
    assert [outcome.verdict for outcome in outcomes] == [
        ProcessVerdict.HANG, ProcessVerdict.OUT_OF_MEMORY, ProcessVerdict.CRASH,
        ProcessVerdict.OUT_OF_MEMORY, ProcessVerdict.NOT_FINITE, ProcessVerdict.DONE,
    ]  # fmt: skip
    assert outcomes[1].cause == "ended by SIGKILL (the system's out-of-memory killer, or an operator)"
    deadline = time.monotonic() + 10
    while _is_running(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(int(note.read_text()))


def _is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    return state != "Z"
