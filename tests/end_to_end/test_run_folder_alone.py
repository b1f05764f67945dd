"""A run folder stands alone: explained, exported, compared and continued after its inputs changed, from anywhere."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun

SPACE = """\
model: {model}
hardware: my_gpu.yaml
nodes: 1
framework: primus
workload: {{seq_length: 4096, global_batch_size: {batch}}}
space: {{tp: [1, 2], pp: 1, cp: 1, micro_batch_size: 1, sharding: distributed_optimizer, recompute: none, fp8: none}}
constraints: [tp <= 2]
"""


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def of(*words: str) -> str:
    """What a command that succeeds prints, its notes included."""
    done = asked(*words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a space of the user's own hardware and model files, searched into `run`."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "my_gpu.yaml").write_text("extends: mi300x\nname: my_gpu\n")
    (home / "models" / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024, "intermediate_size": 4096,'
        ' "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000}'
    )
    (home / "space.yaml").write_text(SPACE.format(model="models/config.json", batch=64))
    of("run", str(home / "space.yaml"), "--bench", "off", "--out", str(home / "run"))
    return home


def test_a_moved_folder_answers_after_its_inputs_are_gone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SavedRun.open(home / "run").ranking
    exported = of("export", str(home / "run"), "1", "--json")
    explained = of("explain", str(home / "run"), "--json")
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(home / "run", moved)
    shutil.rmtree(home)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert of("export", "run", "1", "--json") == exported
    assert json.loads(of("explain", "run", "--json")) == json.loads(explained) | {"run": "run"}
    assert SavedRun.open(Path("run")).ranking == before
    assert "ahead" in of("explain", "run", "--what-if", "hardware.hbm_GBps=9000")
    assert "same" in of("compare", "run", str(moved)).lower()


def test_a_space_that_is_searched_from_its_own_folder_stands_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "models")
    (home / "models" / "own.yaml").write_text(
        SPACE.format(model="config.json", batch=64).replace("my_gpu", "../my_gpu")
    )
    of("run", "own.yaml", "--bench", "off", "--out", "run")
    monkeypatch.chdir(home)
    assert "models" in of("explain", "models/run")


def test_changed_inputs_are_said_in_one_line_and_compare_says_why(home: Path) -> None:
    shutil.copytree(home / "run", home / "first")
    (home / "space.yaml").write_text(SPACE.format(model="models/config.json", batch=32))
    said = of("explain", str(home / "first"))
    assert said.count("space.yaml changed since this run; figures are those of the texts it keeps") == 1
    of("run", str(home / "space.yaml"), "--bench", "off", "--out", str(home / "second"))
    assert "workload.global_batch_size" in of("compare", str(home / "first"), str(home / "second"))


def test_a_run_goes_on_with_what_it_began_with(home: Path) -> None:
    (home / "space.yaml").write_text(SPACE.format(model="models/config.json", batch=32))
    said = of("run", str(home / "space.yaml"), "--bench", "off", "--out", str(home / "run"), "--resume")
    assert "changed since that run began" in said
    assert SavedRun.open(home / "run").space.workload.global_batch_size == 64


def test_a_text_that_was_changed_in_the_folder_is_refused(home: Path) -> None:
    kept = next((home / "run" / "inputs").rglob("space.yaml"))
    kept.write_text(SPACE.format(model="models/config.json", batch=32))
    done = asked("explain", str(home / "run"))
    assert done.exit_code != 0 and "is not what the run was given" in str(done.exception)
