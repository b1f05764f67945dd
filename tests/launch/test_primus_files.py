"""Experiments of Primus whose model and trainer are named and not beside them: Primus' own files of the table."""

import json
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.refusals import refused
from primus_search.models.megatron_yaml import PRESET_FOLDER, primus_files
from tests.support.judge.checkouts import checkout, needs


def experiment(folder: Path, model: str, trainer: str = "pre_trainer", config: str = "pre_trainer.yaml") -> Path:
    path = folder / "job.yaml"
    path.write_text(
        f"modules:\n  {trainer}:\n    framework: megatron\n    config: {config}\n    model: {model}\n"
        "    overrides: {micro_batch_size: 1, max_position_embeddings: 8192}\n"
    )
    return path


def names() -> list[str]:
    paths = (Path(one) for one in primus_files())
    return [one.name for one in paths if one.parent == PRESET_FOLDER]


def test_the_settings_of_a_model_file_are_those_of_the_job(tmp_path: Path) -> None:
    found = read_experiment(experiment(tmp_path, "deepseek_v3.yaml"))
    assert found.written["moe_token_dispatcher_type"] == "alltoall"
    assert found.row["ep"] == 8
    assert found.model is not None and found.model.num_mtp_layers == 1


def test_a_trainer_file_gives_what_the_experiment_leaves_out(tmp_path: Path) -> None:
    pretrained = read_experiment(experiment(tmp_path, "llama3.1_8B.yaml"))
    tuned = read_experiment(experiment(tmp_path, "llama3.1_8B.yaml", "post_trainer", "sft_trainer.yaml"))
    assert (pretrained.seq_length, pretrained.global_batch_size) == (1024, 16)
    assert (tuned.seq_length, tuned.global_batch_size) == (2048, 128)


@pytest.mark.parametrize("is_older", [True, False])
def test_names_of_an_older_copy_of_primus_are_those_of_its_trainer_file(is_older: bool, tmp_path: Path) -> None:
    """A name that was removed is refused of an experiment of today, not of one beside trainer files that have it."""
    path = experiment(tmp_path, "mixtral_8x7B_v0.1.yaml")
    path.write_text(path.read_text().replace("overrides: {", "overrides: {use_turbo_grouped_mlp: true, "))
    if is_older:
        (tmp_path / "primus_turbo.yaml").write_text("use_turbo_grouped_mlp: false\n")
    written = read_experiment(path).written
    assert (written.get("use_turbo_grouped_gemm", False), "use_turbo_grouped_mlp" in written) == (
        is_older,
        not is_older,
    )
    reasons = [one.reason for one in refused("primus", written, 8, None)]
    assert ("use_turbo_grouped_mlp was removed" in reasons) is not is_older


def test_positions_are_those_of_the_model_file(tmp_path: Path) -> None:
    written = read_experiment(experiment(tmp_path, "llama3.1_8B.yaml")).written
    given = {key: value for key, value in written.items() if key != "max_position_embeddings"}
    assert not refused("primus", written, 8, 9)
    assert [one.name for one in refused("primus", given, 8, 9)] == ["positions_given"]
    assert not refused("primus", {**written, "max_position_embeddings": "$POSITIONS"}, 8, 9)


def test_what_a_model_file_sets_and_is_not_priced_is_named(tmp_path: Path) -> None:
    notes = read_experiment(experiment(tmp_path, "llama4_17B128E")).not_modelled
    assert any(one.startswith("moe_shared_expert_overlap: True (not priced: faster") for one in notes)


def test_a_file_beside_the_experiment_wins(tmp_path: Path) -> None:
    (tmp_path / "llama3.1_8B.yaml").write_text("extends: [llama3_8B.yaml]\nnum_layers: 4\n")
    found = read_experiment(experiment(tmp_path, "llama3.1_8B.yaml"))
    assert found.model is not None and found.model.num_layers == 4


@pytest.mark.parametrize(("model", "config"), [("no_such.yaml", "pre_trainer.yaml"), ("llama3_8B.yaml", "none.yaml")])
def test_a_file_that_is_neither_beside_nor_known_is_named(tmp_path: Path, model: str, config: str) -> None:
    with pytest.raises(InputError, match="no such file 'no"):
        read_experiment(experiment(tmp_path, model, config=config))


def as_read(path: Path) -> object:
    """What an experiment says, or why it is refused."""
    try:
        one = read_experiment(path)
        return one.written, one.row, one.model, [problem.what for problem in one.model_problems]
    except InputError as error:
        return [problem.what for problem in error.problems]


@needs("primus")
def test_every_model_file_is_read_as_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = []
    for name in names():
        path, found = experiment(tmp_path, name), []
        for root in ("", str(checkout("primus"))):
            monkeypatch.setenv("PRIMUS_PATH", root)
            found.append(as_read(path))
        other += [name] if found[0] != found[1] else []
    assert not other


def test_every_row_is_a_mapping_of_keys() -> None:
    assert len(names()) > 60
    assert all(isinstance(json.loads(keys), dict) for keys in primus_files().values())
