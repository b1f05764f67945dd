"""What cannot be used is said at its place in words, before anything long begins, and costs no result."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.measure import revalidate as measuring
from tests.support.mutants import MOST_S, limited
from tests.support.small_runs import make_run

SPACE = """
model: tiny
hardware: mi300x
workload: {seq_length: 512, global_batch_size: 64}
space: {tp: 1, pp: 1, recompute: none, cp: 1, micro_batch_size: 1, fp8: none, sharding: none}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small space, a table of other things, and a file and a folder where the other is wanted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("calibrate --measurements other.csv", "other.csv: no column kind, gpu, dtype, op"),
        ("calibrate --measurements bytes.csv", "bytes.csv: is not UTF-8 text (byte 0)"),
        ("run space.yaml --load-benchmark none --out out", "--load-benchmark none: no such file"),
        ("run space.yaml --load-benchmark file --bench off --out out", "--load-benchmark: nothing is measured"),
        ("run space.yaml --save-benchmark x.json --bench off --out out", "--save-benchmark: nothing is measured"),
        ("schedules --stages 2147483648 --microbatches 8", "stages * micro-batches * chunks is more than"),
        ("schedules --stages 4 --microbatches 100000000", "stages * micro-batches * chunks is more than"),
        ("schedules --stages 4 --microbatches 8 --vpp 99999999", "stages * micro-batches * chunks is more than"),
        ("run space.yaml --nodes 1,x --out out", "--nodes @ $.nodes[1]: expected a whole number, got 'x'"),
        ("tune space.yaml --launch '{script} --out out", "--launch '{script}: cannot be split into words"),
        ("tune space.yaml --launch {script} --until 2 --out out", "--until 2: is no share"),
        ("tune space.yaml --launch {script} --format primus --out out", "--format primus: is unknown"),
        ("tune space.yaml --launch train.sh --out out", "--launch: names neither {script} nor {candidate}"),
        ("run space.yaml --set search.objective=memory_bytes --out out", "tokens_per_dollar, tokens_per_joule or days"),
    ],
)  # fmt: skip
def test_input_that_cannot_be_used_is_named_at_its_place(here: Path, words: str, said: str) -> None:
    found = CliRunner().invoke(app, words.split())
    assert isinstance(found.exception, InputError), found.output
    assert said in str(found.exception)
    assert len(found.exception.problems) == 1
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    "words",
    ["learn {} --as x --into out", "validate {}", "calibrate --measurements {}", "run {}", "project {} --hardware h100",
     "models {}", "hardware {}", "nightly {}", "run space.yaml --baseline {} --out out"],
)  # fmt: skip
@pytest.mark.parametrize("special", ["fifo", "/dev/zero", "fifo.csv", "fifo.parquet", "fifo.log.gz"])
def test_what_is_no_regular_file_is_refused_at_once(here: Path, words: str, special: str) -> None:
    if special.startswith("fifo"):
        os.mkfifo(here / special)
    with limited(MOST_S):
        found = CliRunner().invoke(app, words.format(special).split())
    assert isinstance(found.exception, InputError), found.output
    assert special in str(found.exception)


@pytest.mark.parametrize(
    ("change", "said"), [("nodes", "write --what-if key=value"), ("nodes=0", "--what-if @ $.nodes:")]
)
def test_a_wrong_what_if_is_called_what_it_was_called(tmp_path: Path, change: str, said: str) -> None:
    folder = make_run(tmp_path, model="tiny", space={"tp": 1, "pp": 1, "schedule": "1f1b", "recompute": "none"})
    found = CliRunner().invoke(app, ["explain", str(folder), "--what-if", change])
    assert isinstance(found.exception, InputError) and said in str(found.exception)


def test_a_seed_is_not_taken_for_silence(here: Path) -> None:
    assert CliRunner().invoke(app, ["run", "space.yaml", "--seed", "-5"]).exit_code == 2


@pytest.mark.parametrize("stop", [RuntimeError("a driver that is gone"), KeyboardInterrupt()])
def test_what_stops_re_validation_does_not_cost_the_search(
    here: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def stopped(*arguments: object) -> None:
        raise stop

    monkeypatch.setattr(measuring, "revalidate", stopped)
    found = CliRunner().invoke(app, ["run", "space.yaml", "--bench", "trace", "--out", "out"])
    assert found.exit_code != 0
    run = SavedRun.open(here / "out")
    assert run.ranking and run.ranking[0]["memory_evidence"] == "projected"


def test_measurements_that_cannot_be_written_are_said_after_the_results_are_safe(here: Path) -> None:
    words = "run space.yaml --bench trace --out out --save-benchmark file/inside.jsonl"
    found = CliRunner().invoke(app, words.split())
    assert isinstance(found.exception, InputError)
    assert str(found.exception) == "--save-benchmark file/inside.jsonl: cannot be written: File exists"
    assert SavedRun.open(here / "out").ranking
