"""A run folder answers one question: another search neither replaces nor continues it by mistake."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.declare import load_space
from primus_search.exploration.funnel import Options
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.session.complete_search import search
from primus_search.space import Space

NARROW = ("tp=[1,2]", "pp=1", "cp=1", "etp=1", "micro_batch_size=1", "recompute=none", "fp8=none", "schedule=1f1b")
WITHOUT = 'benchmark.device="off"'


def space_of(*changes: str) -> Space:
    return load_space("llama3_8b_mi300x", overrides=[*NARROW, WITHOUT, "nodes=1", *changes], environ={})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    search(space_of(), Options(workers=1, keep=20), out=tmp_path / "run")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_run_of_another_question_is_not_replaced(finished: Path) -> None:
    before = contents(finished)
    with pytest.raises(InputError) as caught:
        search(space_of("nodes=2", "tp=2"), Options(workers=1, keep=20), out=finished)
    assert str(caught.value) == (
        f"--out {finished}: holds the run of another question (nodes 1, now 2; tp 1, 2, now 2); choose another folder,"
        " or replace it with --force"
    )
    assert contents(finished) == before


def test_force_replaces_it_whole(finished: Path) -> None:
    (finished / "report.html").write_text("of the other question")
    search(space_of("nodes=2"), Options(workers=1, keep=20, force=True), out=finished)
    assert SavedRun.open(finished).facts["nodes"] == 2
    assert "of the other question" not in (finished / "report.html").read_text()


def test_resume_continues_nothing_else(finished: Path) -> None:
    before = contents(finished)
    with pytest.raises(InputError) as caught:
        search(space_of("nodes=2"), Options(workers=1, keep=20, resume=True), out=finished)
    assert str(caught.value) == (
        f"--resume {finished}: was asked something else (nodes 1, now 2); give what it was given, or leave out --resume"
    )
    assert contents(finished) == before


def test_the_same_question_may_be_asked_again_with_more_effort(finished: Path) -> None:
    search(space_of("search.top_k=3"), Options(workers=1, keep=30), out=finished)
    search(space_of("search.budget.candidates=1000000"), Options(workers=1, keep=30, resume=True), out=finished)


def test_results_beside_an_unfinished_run_say_so(finished: Path) -> None:
    assert SavedRun.open(finished).note == ""
    with RunFolder.open(finished, resume=False):
        (finished / "journal.bin").write_bytes(b"")
    assert SavedRun.open(finished).note.startswith("a later run here has not ended; these are the results of 20")


def test_a_log_that_is_no_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("nothing of a training run\n")
    words = ["ask", "llama3_8b", "h100", "--nodes", "1", "--seq", "8192", "--batch", "64", "--log"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "notes.log"), "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InputError) and "notes.log" in str(done.exception)
    assert not (tmp_path / "run").exists()
