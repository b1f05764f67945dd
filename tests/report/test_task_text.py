"""Several tasks in one question: what each needs at least, side by side."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError, NothingFits
from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun

NARROW = ["--set", "tp=1", "--set", "cp=1", "--set", "pp=1", "--set", "recompute=none", "--set", "fp8=none",
          "--set", "optimizer_offload=0", "--set", "search.memory_margin=0"]  # fmt: skip


def asked(out: Path, *words: str) -> list[str]:
    question = ["ask", "llama3.1_8b", "a100_40", "--gpus", "1,8", "--seq", "2048", "--batch", "16", *NARROW]
    done = CliRunner().invoke(app, [*question, "--out", str(out), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.in_turn
def test_each_task_has_the_fewest_devices_on_which_it_fits(tmp_path: Path) -> None:
    lines = asked(tmp_path, "--task", "sft,lora,qlora", "--rank", "8")
    rows = {line.split()[0]: line for line in lines[1:4]}
    assert list(rows) == ["sft", "lora", "qlora"]
    assert [int(rows[task].split()[2]) for task in rows] == [8, 1, 1]
    assert "On A100-40: sft needs 8; lora 1, at" in " ".join(lines[5:7])
    assert max(map(len, lines[:7])) <= 80
    for task in rows:
        saved = SavedRun.open(tmp_path / task)
        assert saved.space.workload.task == task
    assert SavedRun.open(tmp_path / "lora").space.workload.adapters.rank == 8  # type: ignore[union-attr]


@pytest.mark.parametrize("option", [["--json"], ["--bench", "off"], ["--verbose"]])
def test_what_is_for_one_task_is_refused_of_several(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(InputError, match=f"{option[0]}: is for one task"):
        asked(tmp_path, "--task", "sft,lora", *option)
    assert not list(tmp_path.iterdir())


@pytest.mark.in_turn
def test_tasks_that_fit_nowhere_exit_as_one_does(tmp_path: Path) -> None:
    with pytest.raises(NothingFits, match="None of these tasks fits"):
        asked(tmp_path, "--task", "sft,pretrain", "--set", "model=llama3.1_70b", "--set", "nodes=1")


def test_a_task_that_is_none_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task"):
        asked(tmp_path, "--task", "sft,distil")
    assert not list(tmp_path.iterdir())
