"""Runs that end early, disks that fail, files that are cut: a clear error or a recovered run, never a wrong ranking."""

import errno
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.analysis.answer import answered
from primus_search.base.errors import InputError
from primus_search.exploration.exhaustive import evaluate as evaluation
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.funnel import LEAST_RANKED, Options, run_search
from primus_search.exploration.run_folder import journal as journals
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.exploration.run_folder.folder import RunFolder, StoreError
from primus_search.exploration.run_folder.run_facts import FACTS
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import write_report
from primus_search.space import Space
from tests.end_to_end.test_search import ranking_of, searched, space_of

ROWS = 500
KEEP = 200


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("evaluate", "task_plan"):
        monkeypatch.setattr(f"primus_search.exploration.exhaustive.{module}.CHUNK_ROWS", ROWS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an undisturbed run writes, in chunks of the usual size."""
    folder = tmp_path_factory.mktemp("whole")
    searched(space_of(1), folder, workers=1)
    return ranking_of(folder)


def interrupted(space: Space, folder: Path, tasks: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """A run that Ctrl-C ends after some tasks; the numbers of these tasks."""
    real, calls = Funnel.evaluate, list[int]()

    def stops(self: Funnel, task: Task, cut: Any) -> Any:
        if len(calls) == tasks:
            raise KeyboardInterrupt
        calls.append(task.number)
        return real(self, task, cut)

    with monkeypatch.context() as patch:
        patch.setattr(Funnel, "evaluate", stops)
        result = searched(space, folder, workers=1, **options)
    assert not result.is_complete and not result.exact
    assert result.notes == ("interrupted: these are the best candidates found so far",)
    return calls


def continued(space: Space, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """The run, resumed; the numbers of the tasks it did."""
    real, again = Funnel.evaluate, list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(Funnel, "evaluate", lambda self, task, cut: again.append(task.number) or real(self, task, cut))
        result = searched(space, folder, resume=True, **({"workers": 1} | options))
    assert result.exact
    assert not (folder / "journal.bin").exists()
    return again


@pytest.mark.in_turn
def test_a_run_that_stopped_half_way_continues_to_the_same_files(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = interrupted(space_of(1), tmp_path, 3, monkeypatch)
    again = continued(space_of(1), tmp_path, monkeypatch)
    assert again and not set(again) & set(done)
    assert ranking_of(tmp_path) == whole


@pytest.mark.in_turn
def test_a_run_continues_with_another_number_of_workers(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a task depends on the workers; a journal's ranges must keep their meaning."""
    monkeypatch.setattr("primus_search.exploration.exhaustive.task_plan.TASKS_PER_WORKER", 3)
    done = interrupted(space_of(1), tmp_path, 2, monkeypatch)
    assert len(done) == 2
    searched(space_of(1), tmp_path, workers=2, resume=True)
    assert ranking_of(tmp_path) == whole


@pytest.mark.in_turn
def test_a_larger_budget_continues_a_run_whose_budget_ran_out(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget ends with the task that spends it."""
    monkeypatch.setattr("primus_search.exploration.exhaustive.task_plan.TASKS_PER_WORKER", 40)
    space = space_of(1)
    limited = replace(space, search=replace(space.search, method="exhaustive", budget_candidates=3 * ROWS))
    result = searched(limited, tmp_path, workers=1)
    assert not result.exact and 3 * ROWS <= result.looked_at < 4 * ROWS < result.legal
    assert result.notes == ("the budget ran out: these are the best candidates found so far",)
    assert searched(space, tmp_path, workers=1, resume=True).exact
    assert ranking_of(tmp_path) == whole


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_journal_costs_time_and_never_the_answer(
    seed: int, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    done = interrupted(space_of(1), tmp_path, 6, monkeypatch)
    path = tmp_path / "journal.bin"
    content = bytearray(path.read_bytes())
    damaged_at = rng.randrange(len(content))
    if seed % 2:
        del content[damaged_at:]
    else:
        content[damaged_at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    again = continued(space_of(1), tmp_path, monkeypatch)
    assert set(again) & set(done)
    assert ranking_of(tmp_path) == whole


def test_a_journal_of_another_search_is_kept_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(space_of(1), tmp_path, 3, monkeypatch)
    before = (tmp_path / "journal.bin").read_bytes()
    with pytest.raises(InputError) as caught:
        searched(space_of(1, nodes=4), tmp_path, workers=1, resume=True, keep=LEAST_RANKED + 1)
    assert str(caught.value) == (
        f"--resume {tmp_path}: its journal belongs to another search (space, model, hardware or settings;"
        f" --keep {LEAST_RANKED}, now {LEAST_RANKED + 1} changed); give what that run was given, or leave"
        " out --resume to start over"
    )
    assert (tmp_path / "journal.bin").read_bytes() == before


def test_a_journal_of_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its tasks are and what their figures mean is the code's matter."""
    interrupted(space_of(1), tmp_path, 3, monkeypatch)
    monkeypatch.setattr("primus_search.exploration.run_folder.folder.fingerprint_of", lambda folder: "another")
    with pytest.raises(InputError, match=r"\(source files [0-9a-f]{16}, now another changed\)"):
        searched(space_of(1), tmp_path, workers=1, resume=True, keep=KEEP)


# --- folders -------------------------------------------------------------------------------------------------------


def test_two_runs_in_one_folder_refuse_each_other(tmp_path: Path) -> None:
    first = RunFolder.open(tmp_path / "run", resume=False)
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path / "run", resume=False)
    assert str(caught.value) == (
        f"--out {tmp_path}/run: another run is writing here; wait for it or choose another folder"
    )
    first.close()
    RunFolder.open(tmp_path / "run", resume=False).close()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path, resume=False)
    assert "holds other files (thesis.tex)" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_named_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path / "file" / "run", resume=False)
    assert str(caught.value) == f"--out {tmp_path}/file/run: cannot be written: Not a directory"

    def read_only(self: Path, *arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path / "run", resume=False)
    assert str(caught.value) == f"--out {tmp_path}/run: cannot be written: Read-only file system"


@pytest.mark.in_turn
@pytest.mark.parametrize("has_folder", [False, True])
def test_a_run_killed_before_its_first_task_can_be_resumed(has_folder: bool, tmp_path: Path, whole: bytes) -> None:
    """A scheduler starts a job again with the command of the first time: --resume from the beginning."""
    folder = tmp_path / "run"
    if has_folder:
        RunFolder.open(folder, resume=False).close()
    searched(space_of(1), folder, workers=1, resume=True)
    assert ranking_of(folder) == whole


# --- full disks ----------------------------------------------------------------------------------------------------


class FullDisk:
    """Counts what is made durable, and fails from a chosen time on; a record or a file may be left half written."""

    def __init__(self, fails_at: int) -> None:
        self.calls, self.fails_at = 0, fails_at

    def fsync(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls > self.fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.in_turn
@pytest.mark.daily(2)
@pytest.mark.parametrize("fails_at", random.Random(5).sample(range(1, 16), 6))
def test_a_full_disk_never_leaves_a_wrong_ranking(
    fails_at: int, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, told = FullDisk(fails_at), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", disk.fsync)
        try:
            searched(space_of(1), tmp_path, workers=1)
        except StoreError as error:
            told.append(str(error))
    assert disk.calls > fails_at, "the disk was never full"
    assert told and "No space left on device" in told[0]
    assert not (tmp_path / "run.json").exists()
    searched(space_of(1), tmp_path, workers=1, resume=True)
    assert ranking_of(tmp_path) == whole
    SavedRun.open(tmp_path)


def test_a_journal_that_cannot_be_written_does_not_end_the_search(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(4)
    monkeypatch.setattr(journals.os, "fsync", disk.fsync)
    folder = RunFolder.open(tmp_path, resume=False)
    result = run_search(space_of(1), Options(folder=folder, keep=KEEP, workers=1))
    monkeypatch.undo()
    folder.write(answered(result))
    folder.close()
    assert result.exact and disk.calls == 5
    assert result.notes == (
        "the journal could not be written (No space left on device): --resume would do again what followed",
    )
    assert ranking_of(tmp_path) == whole


# --- finished runs that were damaged later --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of few rows."""
    folder = tmp_path_factory.mktemp("kept")
    searched(space_of(1), folder, workers=1, keep=20)
    return folder


@pytest.fixture
def finished(kept: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may damage."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def cut_at_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", ["run.json", "ranking.csv", "pareto.csv"])
@pytest.mark.parametrize("damage", [cut_short, cut_at_a_line, missing])
def test_a_damaged_run_is_refused_by_its_readers(name: str, damage: Callable[[Path], None], finished: Path) -> None:
    damage(finished / name)
    with pytest.raises(InputError) as caught:
        SavedRun.open(finished)
    assert str(caught.value).startswith(str(finished))


def test_a_cut_parquet_file_is_refused_by_its_readers(finished: Path) -> None:
    cut_short(finished / "candidates.parquet")
    with pytest.raises(InputError) as caught:
        Kept.open(finished, 0, is_exact=True)
    assert str(caught.value).startswith(f"{finished}/candidates.parquet: is not what the run wrote")
    with pytest.raises(InputError):
        write_report(SavedRun.open(finished))


def test_every_key_of_a_run_is_refused_by_its_name(finished: Path) -> None:
    """Missing or of another type: the file, the key, exit code 2."""
    file = finished / "run.json"
    whole = json.loads(file.read_text())
    assert set(FACTS.model_fields) <= set(whole)
    for key in FACTS.model_fields:
        for changed in ({name: value for name, value in whole.items() if name != key}, whole | {key: None}):
            file.write_text(json.dumps(changed))
            with pytest.raises(InputError) as caught:
                SavedRun.open(finished)
            if key in changed or key != "files":
                # Without its version a folder is of another one, which the line says first.
                place = "" if key == "versions" else f"{file} @ "
                assert f"{place}$.{key}" in str(caught.value), key
    for name in whole["files"]:
        file.write_text(json.dumps(whole | {"files": whole["files"] | {name: {"bytes": -1, "sha256": ""}}}))
        with pytest.raises(InputError, match=rf"\$\.files\.{name}\.bytes: is not a whole number of at least 0"):
            SavedRun.open(finished)


def test_evaluation_is_cut_in_chunks_here() -> None:
    """The tests above mean something only while tasks are small."""
    assert evaluation.CHUNK_ROWS == ROWS and Funnel(space_of(1), KEEP).enumerators[0].size > 10 * ROWS
