"""The loop of `tune`: verdicts, what is run next, going on after a kill. Trials are a script that prints a log."""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.learning import submitted
from primus_search.learning.trial import PROCESS, RESULT, Limits, TrialVerdict, end_left_over, written_outcome
from primus_search.learning.tuning import STUDY, TRIALS, TrialRows, Tuned, tune
from tests.support.daily import drawn
from tests.support.small_runs import make_run

TRAINER = """
import json, sys, time
data = json.load(open("candidate.json"))
row, work = data["candidate"], data["workload"]
print("small trainer facts: " + json.dumps({"gpus": 16, "model": data["model"]} | work | {
    name: row[name] for name in ("tp", "pp", "cp", "ep", "micro_batch_size")}))
if row["tp"] * row["pp"] == 1 and "oom" in sys.argv:
    sys.exit(print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."))
if "slowly" in sys.argv:
    time.sleep(0.1)
if "sleep" in sys.argv:
    sys.stdout.flush(); time.sleep(60)
seconds = 2.0 + 0.3 * row["pp"] + 0.2 * row["tp"] + 1.0 / row["micro_batch_size"] + 0.4 * (row["recompute"] != "none")
for step in range(1, 9):
    print(f"small trainer step {step}: {seconds:.6f} s")
"""
AXES = {
    "tp": [1, 2],
    "pp": [1, 2],
    "vpp": 1,
    "ep": 1,
    "micro_batch_size": [1, 2],
    "recompute": ["none", "full"],
    "fp8": "none",
    "schedule": "1f1b",
    "pipeline_layout": "even",
    "sharding": "distributed_optimizer",
    "etp": 1,
    "cp": 1,
    "loss_fusion": True,
    "overlap_grad_reduce": True,
    "grouped_gemm": "turbo",
    "deepep": False,
    "sync_free_stage": 0,
    "cuda_graph": "none",
}
LIMITS = Limits(seconds=20.0, quiet_s=20.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("searched"), stack="torch_eager", hardware="h100", space=AXES)


def looped(run: Path, folder: Path, words: str = "", **given: object) -> Tuned:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer.py").write_text(TRAINER, encoding="utf-8")
    options = {"trials": 4, "until": 0.0, "limits": LIMITS} | given
    launch = f"{sys.executable} {folder / 'trainer.py'} {words} {{candidate}}"
    return tune(TrialRows.of(SavedRun.open(run)), folder, lambda rank, place: "", launch=launch, **options)  # type: ignore[arg-type]


def test_trials_are_read_learned_from_and_kept(run: Path, tmp_path: Path) -> None:
    found = looped(run, tmp_path)
    assert [one.verdict for one in found.outcomes] == [TrialVerdict.RAN] * 4
    assert len({one.rank for one in found.outcomes}) == 4
    assert found.best is not None
    assert found.best.tokens_per_s_per_gpu == max(one.tokens_per_s_per_gpu or 0.0 for one in found.outcomes)
    optuna = pytest.importorskip("optuna")
    journal = optuna.storages.journal.JournalFileBackend(str(tmp_path / STUDY))
    (study,) = optuna.get_all_study_summaries(optuna.storages.JournalStorage(journal))
    assert study.n_trials == 4
    assert study.best_trial.value == pytest.approx(found.best.tokens_per_s_per_gpu)


@pytest.mark.in_turn
def test_a_loop_that_was_cut_goes_on_to_the_same_end(run: Path, tmp_path: Path) -> None:
    whole = looped(run, tmp_path / "whole")
    looped(run, tmp_path / "cut", trials=2)
    half = tmp_path / "cut" / TRIALS / "003"
    half.mkdir()
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    started = Path(f"/proc/{left.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    (half / PROCESS).write_text(json.dumps({"pid": left.pid, "started": started}))
    assert looped(run, tmp_path / "cut").outcomes == whole.outcomes
    assert left.wait(timeout=10) != 0, "what the killed loop left running is ended"


AGAIN = """
import sys
from pathlib import Path
from tests.learning.test_tune import looped
looped(Path(sys.argv[1]), Path(sys.argv[2]), "slowly", trials=6, parallel=int(sys.argv[3]))
"""


EVENTS = {"launched": f"{TRIALS}/*/{PROCESS}", "read": f"{TRIALS}/*/{RESULT}", "told": STUDY}
"""What a loop writes as a trial starts, as its log was read, and as the study has its outcome."""


def written(folder: Path, event: str) -> set[tuple[str, int]]:
    """Files of one event, and when they were written; the loop removes and rewrites them meanwhile."""
    found = set()
    for path in folder.glob(EVENTS[event]):
        with contextlib.suppress(FileNotFoundError):
            found.add((str(path), path.stat().st_mtime_ns))
    return found


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("parallel", "kills"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(1, 10, marks=pytest.mark.full),
        pytest.param(2, 10, marks=pytest.mark.full),
    ],
)
def test_kills_after_random_events_change_nothing(run: Path, tmp_path: Path, parallel: int, kills: int) -> None:
    whole = looped(run, tmp_path / "whole", "slowly", trials=6, parallel=parallel)
    for number in range(kills):
        (event,) = drawn(f"kill {number}", list(EVENTS), 1)
        before = written(tmp_path / "cut", event)
        words = [sys.executable, "-c", AGAIN, str(run), str(tmp_path / "cut"), str(parallel)]
        loop = subprocess.Popen(words, cwd=Path(__file__).parents[2])
        while loop.poll() is None and written(tmp_path / "cut", event) == before:
            time.sleep(0.01)
        loop.kill()
        loop.wait()
    again = looped(run, tmp_path / "cut", "slowly", trials=6, parallel=parallel)
    assert again.outcomes == whole.outcomes
    assert again.best == whole.best


UNTIL_INTERRUPTED = """
import signal, sys
from pathlib import Path
from tests.learning.test_tune import looped
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
try:
    looped(Path(sys.argv[1]), Path(sys.argv[2]), "sleep", trials=2, parallel=2)
except KeyboardInterrupt:
    sys.exit(130)
"""
"""In a process of its own: in this one a callback of the garbage collector may be what a signal interrupts."""


@pytest.mark.in_turn
def test_trials_run_together_and_an_interrupt_leaves_none_running(run: Path, tmp_path: Path) -> None:
    found = looped(run, tmp_path / "both", trials=3, parallel=2)
    assert len({one.rank for one in found.outcomes}) == 3
    words = [sys.executable, "-c", UNTIL_INTERRUPTED, str(run), str(tmp_path / "cut")]
    loop = subprocess.Popen(words, cwd=Path(__file__).parents[2])
    while loop.poll() is None and len(list((tmp_path / "cut").glob(f"{TRIALS}/*/{PROCESS}"))) < 2:
        time.sleep(0.05)
    loop.send_signal(signal.SIGINT)
    assert loop.wait(timeout=60) == 130
    places = sorted((tmp_path / "cut" / TRIALS).iterdir())
    assert [(place / RESULT).exists() for place in places] == [False, False]
    for place in places:
        pid = json.loads((place / PROCESS).read_text())["pid"]
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_of_another_time_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True)
    (tmp_path / PROCESS).write_text(json.dumps({"pid": other.pid, "started": "1"}))
    end_left_over(tmp_path)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_out_of_memory_is_a_verdict_and_the_row_is_not_chosen(run: Path, tmp_path: Path) -> None:
    found = looped(run, tmp_path, "oom", trials=5)
    lost = [one for one in found.outcomes if one.verdict is TrialVerdict.OUT_OF_MEMORY]
    assert lost and all(one.tokens_per_s_per_gpu is None for one in lost)
    assert found.best is not None and found.best.verdict is TrialVerdict.RAN


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        (Limits(seconds=1.0, quiet_s=30.0), TrialVerdict.TIMEOUT),
        (Limits(seconds=30.0, quiet_s=1.0), TrialVerdict.HANG),
    ],
)
def test_limits_end_a_trial_with_a_verdict(run: Path, tmp_path: Path, limits: Limits, verdict: TrialVerdict) -> None:
    begin = time.monotonic()
    found = looped(run, tmp_path, "sleep", trials=1, limits=limits)
    assert [one.verdict for one in found.outcomes] == [verdict]
    assert time.monotonic() - begin < 25.0
    assert found.best is None


def test_a_command_that_cannot_start_is_a_failed_trial(run: Path, tmp_path: Path) -> None:
    rows = TrialRows.of(SavedRun.open(run))
    limits = Limits(seconds=5.0, quiet_s=5.0)
    found = tune(rows, tmp_path, lambda *_: "", launch="/no/such {candidate}", trials=1, until=0.0, limits=limits)
    assert found.outcomes[0].verdict is TrialVerdict.FAILED
    assert "exit code 127" in found.outcomes[0].reason
    assert (tmp_path / TRIALS / "001" / RESULT).is_file()


def test_a_launcher_that_fails_says_so_in_its_own_words_and_is_not_started_again(run: Path, tmp_path: Path) -> None:
    rows, script = (
        TrialRows.of(SavedRun.open(run)),
        "echo starting; echo $$: no module named megatron >&2; echo; exit 3",
    )
    for parallel in (1, 2):
        folder = tmp_path / str(parallel)
        found = tune(
            rows, folder, lambda *_: "", launch=f"bash -c {shlex.quote(script)} {{candidate}}", trials=6, until=0.0,
            limits=LIMITS, parallel=parallel,
        )  # fmt: skip
        assert [one.verdict for one in found.outcomes] == [TrialVerdict.FAILED] * 2
        assert found.outcomes[0].reason.startswith("it ended with exit code 3; its last line: ")
        assert found.outcomes[0].reason.endswith("no module named megatron")
        assert "failed alike" in found.stopped and found.best is None


def test_a_launch_that_is_the_same_for_all_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names neither"):
        tune(
            TrialRows.of(SavedRun.open(run)), tmp_path, lambda *_: "", launch="true", trials=1, until=0.0, limits=LIMITS
        )


def through_submitit(folder: Path, *words: str, script: str = "trainer.py") -> "subprocess.Popen[str]":
    """A trainer as a job of this machine's executor, in a folder with its candidate."""
    pytest.importorskip("submitit", reason="needs the extra slurm")
    (folder / "trainer.py").write_text(TRAINER)
    row = {"tp": 1, "pp": 2, "cp": 1, "ep": 1, "micro_batch_size": 2, "recompute": "none"}
    facts = {"model": "small", "workload": {"seq_length": 64, "global_batch_size": 32}, "candidate": row}
    (folder / "candidate.json").write_text(json.dumps(facts))
    command = submitted.through("local timeout_min=5", f"{sys.executable} {script} {' '.join(words)}")
    return subprocess.Popen(shlex.split(command), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_trial_through_submitit_prints_what_it_would_print_here(tmp_path: Path) -> None:
    process = through_submitit(tmp_path)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.count("small trainer step") == 8


def test_a_trial_through_submitit_fails_and_is_cancelled_as_here(tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.mkdir()
    process = through_submitit(failing, script="missing.py")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and "No such file" in errors
    process = through_submitit(tmp_path, "sleep")
    assert process.stdout is not None
    while "small trainer facts" not in process.stdout.readline():
        assert process.poll() is None
    (job,) = {path.name.split("_")[0] for path in (tmp_path / ".jobs").iterdir() if path.name[0].isdigit()}
    process.terminate()
    assert process.wait(timeout=60) == submitted.TERMINATED
    deadline = time.monotonic() + 60.0
    while Path(f"/proc/{job}/stat").exists() and "Z" not in Path(f"/proc/{job}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("words", ["pbs nodes=4", "slurm nodes", ""])
def test_what_submitit_cannot_do_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="write slurm or local, then KEY=VALUE"):
        submitted.through(words, "bash {script}")


@pytest.mark.parametrize(("figure", "value"), [("noise", 10**30), ("step_s", 10**31), ("step_s", -1.0), ("noise", "1")])
def test_a_figure_that_no_trial_wrote_is_refused_or_a_number(figure: str, value: Any, tmp_path: Path) -> None:
    outcome = {"rank": 1, "verdict": "ran", "reason": "8 steps", "tokens_per_s_per_gpu": 9000.0, "step_s": 3.0,
               "peak_bytes": None, "peak_kind": "driver", "noise": 0.01}  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(outcome | {figure: value}))
    try:
        found = written_outcome(tmp_path, [1])
    except InputError as error:
        assert f"$.{figure}" in str(error)
    else:
        assert found is not None and type(getattr(found, figure)) is float


@pytest.mark.parametrize(
    "changed", [{"rank": []}, {"rank": 7}, {"verdict": "well"}, {"reason": 1}, {"peak_kind": "x"}, {"y": 1}]
)
def test_a_result_of_another_shape_is_refused_by_its_key(changed: dict[str, Any], tmp_path: Path) -> None:
    outcome = {"rank": 1, "verdict": "ran", "reason": "8 steps", "step_s": 3.0, "peak_kind": "driver"}
    (tmp_path / "result.json").write_text(json.dumps(outcome | changed))
    with pytest.raises(InputError) as caught:
        written_outcome(tmp_path, {1})
    assert f"$.{next(iter(changed))}: is nothing that a trial wrote" in str(caught.value)
