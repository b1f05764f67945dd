"""torchtitan builds the model that was asked for: its own classes, from the arguments that an export writes."""

import importlib
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.launch.write.job import Inexpressible, LaunchJob, unsaid_constants
from primus_search.launch.write.shell import argument_table
from primus_search.launch.write.torchtitan_model import MODULE, flavor_of, model_file
from primus_search.models.presets import load_preset, presets
from primus_search.models.registered import model_called
from primus_search.models.torchtitan_arguments import model_of, model_of_module
from primus_search.values.model import Model
from primus_search.values.model.shape import shape
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.judge.installed import ABSENT, stand_ins, torchtitan
from tests.support.launched import jobs
from tools.framework_imports import torch_parts

torch = pytest.importorskip("torch")


@cache
def family(name: str) -> Any:
    torch_parts()
    torchtitan()
    with stand_ins(*ABSENT):
        return importlib.import_module(f"torchtitan.models.{name}")


def job_of(model: Model) -> LaunchJob:
    spelled = {"model": "llama3_8b", "hardware": "h100", "nodes": 1, "framework": "torchtitan@0.2.2",
               "workload": {"seq_length": 4096, "global_batch_size": 64}}  # fmt: skip
    return replace(next(jobs(make_space(spelled, name="any"), 1)), model=model)


@cache
def expressible() -> list[tuple[str, Model, str]]:
    """Presets that torchtitan can train, with their model files."""
    found = []
    for name, preset in presets().items():
        with suppress(Inexpressible):
            found.append((name, preset.model, model_file(job_of(preset.model))))
    return found


OF_NO_FAMILY = ("llama3.2_1b", "llama3.2_3b", "dbrx_132b", "phi4_mini")
"""Tied models with stretched or partial rotary frequencies (Llama 3's class does not tie, Qwen 3's does neither), and
one with LayerNorm without shift: their files ask for an edit."""


@pytest.mark.in_turn("classes")
def test_most_plain_presets_are_expressible_and_come_back_whole() -> None:
    found = {name: (model, model_of_module(text)) for name, model, text in expressible()}
    assert {"llama3_8b", "llama3.1_405b", "qwen3_32b", "qwen3_30b_a3b", "deepseek_v2_lite", "gpt_oss_20b"} <= set(found)
    for name, (model, read) in found.items():
        assert shape(replace(read, name=name)) == shape(replace(model, name=name, towers=())), name
        assert bool(unsaid_constants(model, read)) is (name in OF_NO_FAMILY or bool(model.towers)), name


@pytest.mark.in_turn("classes")
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_torchtitans_own_classes_have_as_many_parameters(whole: bool) -> None:
    for name, model, text in drawn("own classes", expressible(), 10, whole=whole):
        origin = next(line.split()[1] for line in text.splitlines() if "import get_train_spec" in line)
        family(origin.rpartition(".")[2])
        scope: dict[str, Any] = {"__name__": MODULE}
        lines = [line for line in text.splitlines() if "register_train_spec" not in line]
        exec("\n".join(lines), scope)
        small = replace(scope["MODEL"], n_layers=min(scope["MODEL"].n_layers, 4))
        with torch.device("meta"):
            built = scope["get_train_spec"]().model_cls(_ready(small))
        count = sum(parameter.numel() for parameter in built.parameters())
        layers = small.n_layers
        ours = replace(model, num_layers=layers, moe_layers=model.moe_layers[:layers], windows=model.windows[:layers])
        assert count == replace(ours, vocab_padding=0).total_params, name  # the file has the rows that are priced


def _ready(arguments: Any) -> Any:
    """Arguments as a job file completes them; rows of a rotation table are no parameters."""
    arguments.max_seq_len = 4096
    if not hasattr(arguments, "moe_impl"):
        arguments.moe_impl = "standard"
    return arguments


@pytest.mark.in_turn("classes")
def test_flavors_of_the_contract_are_the_models_they_stand_for() -> None:
    framework = load_framework("torchtitan@0.2.2")
    for flavor in {*framework.models.values(), *framework.flavors} - {""}:
        name, _, size = flavor.partition(":")
        spec = family(name).get_train_spec()
        assert name in argument_table("torchtitan")["classes"]
        theirs, ours = model_of(name, asdict(spec.model_args[size])), model_called(framework, flavor)
        assert ours is not None
        padded = replace(theirs, name=ours.name, vocab_size=-(-theirs.vocab_size // 128) * 128)
        assert shape(padded) == shape(ours), flavor
        assert unsaid_constants(ours, theirs) == [], flavor


@pytest.mark.parametrize("name", ["nemotron4_15b", "gpt3_175b", "qwen2.5_7b", "gemma4_26b_a4b", "nemotron3_nano"])
def test_models_that_torchtitan_does_not_have_are_refused(name: str) -> None:
    model = load_preset(name).model
    with pytest.raises(Inexpressible, match="torchtitan has no model with parts of"):
        model_file(job_of(model))
    assert flavor_of(load_framework("torchtitan@0.2.2"), model) is None


def test_a_custom_model_is_read_from_the_module_beside_its_job_file(tmp_path: Path) -> None:
    from primus_search.launch.read.experiments import read_experiment
    from primus_search.launch.write.launch_files import launch_files

    model = replace(load_preset("llama3.1_8b").model, num_layers=12, moe_layers=(), windows=(), name="own")
    job = job_of(model)
    for name, text in launch_files(job).texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_experiment(tmp_path / "torchtitan.toml", job.cluster.world)
    assert found.model is not None and shape(found.model) == shape(model)
    assert found.model.constants == model.constants
