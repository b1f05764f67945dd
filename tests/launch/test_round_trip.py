"""Candidate -> launch file -> read back, without being told the model: the same candidate, job, model and constants."""

import json
import re
import tomllib
from ast import literal_eval
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.files.framework_files import load_framework
from primus_search.launch.experiment_space import Start, space_of
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.megatron import canonical
from primus_search.launch.workload_settings import unwritten, workload_settings, workload_values
from primus_search.launch.write.job import Inexpressible, LaunchJob, unsaid_constants
from primus_search.launch.write.launch_files import launch_files
from primus_search.launch.write.primus import NO_BIAS
from primus_search.launch.write.shell import argument_table
from primus_search.learning.started_experiment import start
from primus_search.values.knobs import CpComm
from primus_search.values.layout import Layout
from primus_search.values.machine.stack import with_numbers
from primus_search.values.machine.state_formats import is_stacks_own
from primus_search.values.model import Model
from primus_search.values.model.shape import shape
from primus_search.values.workload import Workload
from tests.support.launched import jobs
from tests.support.random_jobs import DRAWN, RandomJob, random_jobs

MAIN_FILE = {"megatron": "megatron.sh", "primus": "primus.yaml", "torchtitan": "searched.py",
             "torchtitan@0.2.2": "torchtitan.toml", "nemo": "nemo.sh"}  # fmt: skip
OF_NO_SETTING = {"has_fused_residual", "has_fused_rope", "has_fused_activation", "attention_kernel"}
"""What the model of a job decides, whatever its settings: one addition without bias, YaRN, Gemma's gates, and the
kernel of Gemma 4's recipe."""
FEW, MANY, PARTS = 16, 400, 5
"""Jobs of each format, and in `make test-full` of each of its parts."""


def main_file(job: LaunchJob) -> str:
    return str(job.framework.options.get("file") or MAIN_FILE[job.framework.launcher])


def expected(job: LaunchJob) -> dict[str, object]:
    row = dict(job.row)
    layout = canonical(Layout.parse(row["pipeline_layout"]), job.model, row["pp"] * row["vpp"])
    return row | {"pipeline_layout": str(layout)}


def differences(drawn: RandomJob, folder: Path) -> list[str]:
    """What comes back otherwise than it was written. Raises `Inexpressible` for a job without a launch file."""
    job = drawn.job
    texts = launch_files(job).texts
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    begun = start(folder / main_file(job), drawn.hardware, job.cluster.num_nodes, drawn.model)
    found = begun.experiment
    row = found.candidate.row(0)
    row |= {"state_format": "stack"} if is_stacks_own(job.cluster.stack, row["state_format"]) else {}
    wanted = expected(job)
    usual = job.cluster.stack.communication.cp_comm  # which a file, and Primus' own of models, may say by its name
    for one, candidate in ((row, found.candidate), (wanted, job.candidate)):
        one["cp_comm"] = CpComm(candidate.exchange_of_context(usual)[0]).name if one["cp"] > 1 else ""
    wrong = [f"{axis}: {row[axis]} for {wanted[axis]}" for axis in wanted if row[axis] != wanted[axis]]
    if (found.seq_length, found.global_batch_size) != (job.workload.seq_length, job.workload.global_batch_size):
        wrong.append("workload")
    if found.model is None:
        return [*wrong, "no model"]
    text = "\n".join(texts.values())
    if NO_BIAS in text:
        job = replace(job, model=without_bias(job.model))
    if nameless(found.model) != nameless(job.model):
        wrong.append(f"model: {found.model}")
    named = re.findall(r"^(?:# )?Edit: (.* of the (?:model|MLP): .*)$", text, re.MULTILINE)
    wrong += sorted({*named} ^ {*unsaid_constants(job.model, found.model)})  # a person sets what no setting says
    sets = list(dict.fromkeys(re.findall(r"\(--set (workload\.\S+)\)", text)))
    otherwise = dict(re.findall(r"^(?:# )?Edit: (\w+): priced with \S+, .* has (\S+)$", text, re.MULTILINE))
    numbers = {name: value_of(word) for name, word in otherwise.items()}
    wrong += sorted(numbers.keys() - OF_NO_SETTING - job.framework.fixes.keys())
    job = replace(job, cluster=replace(job.cluster, stack=with_numbers(job.cluster.stack, numbers)))
    return wrong or figures_differ(job, begun, [one.replace("=lengths.txt", f"={drawn.lengths}") for one in sets])


def value_of(word: str) -> object:
    """A number or switch as Python writes it, else the word of a habit."""
    try:
        return literal_eval(word)
    except ValueError:
        return word


def figures_differ(job: LaunchJob, begun: Start, sets: list[str]) -> list[str]:
    """Seconds and bytes of the file's projection that are not those of the job, the values under Edit set."""
    space = space_of(begun, sets, None, "")
    ours = Projector(job).project(job.candidate)
    theirs = Projector(space.job_on(space.clusters[0])).project(begun.experiment.candidate)
    pairs = {"seconds": (ours.step, theirs.step), "bytes": (ours.memory, theirs.memory)}
    return [
        f"{name}: {b.total[0]} for {a.total[0]}"
        for name, (a, b) in pairs.items()
        if b.total[0] != pytest.approx(a.total[0], rel=1e-9)
    ]


def without_bias(model: Model) -> Model:
    """A model whose router has no bias, which DeepSeek-V4's file says under Edit."""
    return replace(model, moe=model.moe and replace(model.moe, has_router_bias=False, is_router_bias_buffer=False))


def nameless(model: Model) -> Model:
    return shape(replace(model, name="", towers=(), adapters=None, head_dim=0 if model.latent else model.head_dim))


def compared(framework: str, folder: Path, first: int, count: int) -> list[list[str]]:
    """The differences of so many jobs that have launch files."""
    found: list[list[str]] = []
    for drawn in random_jobs(framework, folder, first):
        with suppress(Inexpressible), pytest.MonkeyPatch.context() as environment:
            environment.setenv("BRIDGE_PATH", "/opt/bridge")
            environment.setenv("RECIPE", f"{drawn.recipe}_config")
            found.append([f"{drawn.job.model.name}, {drawn.job.row}: {one}" for one in differences(drawn, folder)])
        if len(found) == count:
            return found
    return found


@pytest.mark.daily(2)
@pytest.mark.parametrize("framework", MAIN_FILE)
def test_a_launch_file_says_the_job_that_was_asked_for(framework: str, tmp_path: Path) -> None:
    assert not [one for one in compared(framework, tmp_path, 0, FEW) if one]


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("framework", MAIN_FILE)
def test_thousands_of_launch_files_say_the_job_that_was_asked_for(framework: str, part: int, tmp_path: Path) -> None:
    assert not [one for one in compared(framework, tmp_path, (part + 1) * 1000, MANY) if one]


def test_torchtitans_own_parser_reads_the_same_degrees(tmp_path: Path) -> None:
    space = make_space({"model": "llama3.1_8b", "hardware": "h100", "nodes": 4, "framework": "torchtitan@0.2.2",
                        "workload": {"seq_length": 4096, "global_batch_size": 256}})  # fmt: skip
    for job in jobs(space, 6):
        tables = tomllib.loads(launch_files(job).texts["torchtitan.toml"])
        assert tables["parallelism"]["tensor_parallel_degree"] == job.row["tp"]
        compiled = ["model", "loss"] if job.row["loss_fusion"] else ["model"]
        assert tables["compile"]["components"] == compiled


@pytest.mark.parametrize(("framework", "hardware"), [("megatron", "h100"), ("primus", "mi355x")])
def test_context_groups_by_document_are_written_and_read(framework: str, hardware: str, tmp_path: Path) -> None:
    lengths = {"document_length": {"quantiles": {"p0": 256, "p100": 32768}}, "packing": "token_budget"}
    space = make_space(
        {"model": "llama3.1_8b", "hardware": hardware, "nodes": 2, "framework": framework,
         "workload": {"seq_length": 32768, "global_batch_size": 32} | lengths,
         "space": {"cp": 4, "pp": 1, "tp": 2, "hybrid_cp": True, "cp_comm": "stack", "cuda_graph": "none",
                   "sharding": "distributed_optimizer"}}
    )  # fmt: skip
    job = next(jobs(space, 1))
    texts = launch_files(job).texts
    main = tmp_path / MAIN_FILE[framework]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    words = texts[MAIN_FILE[framework]].replace("-", "_").lower()
    assert "hybrid_context_parallel" in words and "8192" in words
    assert "workload.packing=token_budget" in words
    read = read_experiment(main, 16)
    assert read.row["hybrid_cp"] is True
    assert not any("context" in one or "seqlen" in one for one in read.not_modelled)


@pytest.mark.parametrize("exchange", ["p2p", "a2a", "all_gather"])
def test_an_exchange_of_context_that_is_the_stacks_own_comes_back(exchange: str, tmp_path: Path) -> None:
    axes = {"cp": 2, "pp": 1, "tp": 2, "cp_comm": "stack", "sharding": "distributed_optimizer"}
    workload = {"seq_length": 8192, "global_batch_size": 64}
    given = {"model": "llama3_8b", "hardware": "h100", "nodes": 2, "framework": "megatron"}
    space = make_space(given | {"workload": workload, "space": axes})
    job = next(jobs(space, 1))
    job = replace(job, cluster=replace(job.cluster, stack=with_numbers(job.cluster.stack, {"cp_comm": exchange})))
    drawn = RandomJob(job=job, lengths=tmp_path / "lengths.txt", recipe="", hardware="h100")
    assert not differences(drawn, tmp_path)
    assert ("--cp-comm-type" in launch_files(job).texts["megatron.sh"]) == (exchange != "p2p")


def test_each_value_of_a_workload_is_written_or_stands_under_edit(tmp_path: Path) -> None:
    """Every field but those that size a step, those of adapters, and whether towers are trained, a setting."""
    sized = {"seq_length", "global_batch_size", "adapters", "trains_towers", "policy"}
    assert {one.name for one in fields(Workload)} - sized == argument_table("workload").keys()
    job = next(one.job for one in random_jobs("megatron", tmp_path) if one.job.model.is_moe)
    capacity = replace(job, workload=Workload(seq_length=4096, global_batch_size=256, pads_to_capacity=True,
                       routing_imbalance=1.5))  # fmt: skip
    assert workload_settings(capacity) == {
        "moe_pad_expert_input_to_capacity": True,
        "moe_expert_capacity_factor": 1.5,
    }
    assert unwritten(capacity) == {}


@pytest.mark.parametrize("framework", ["megatron", "primus", "torchtitan"])
def test_a_job_of_images_is_refused_with_the_framework_that_starts_it(framework: str, tmp_path: Path) -> None:
    fields = {name: values[0] for name, values in DRAWN["models"]["images"].items()}
    (tmp_path / "images.json").write_text(json.dumps(fields))
    space = make_space({"model": str(tmp_path / "images.json"), "nodes": 1, "framework": framework,
                        "hardware": "mi355x" if framework == "primus" else "h100",
                        "workload": {"seq_length": 4096, "global_batch_size": 64, "image_tokens": 512}})  # fmt: skip
    job = next(jobs(space, 1))
    with pytest.raises(
        Inexpressible, match=r"starts no tower of this model; Megatron-Bridge does \(--framework nemo\)"
    ):
        launch_files(job)


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_a_file_that_its_framework_refuses_is_not_written(framework: str) -> None:
    """Dropout of recomputed attention in a graph: TransformerConfig of core 0.16 and 0.20."""
    space = make_space({"model": "mixtral_8x7b", "hardware": "h100", "nodes": 2, "framework": framework,
                        "workload": {"seq_length": 4096, "global_batch_size": 64},
                        "space": {"recompute": "selective", "cuda_graph": "partial"}})  # fmt: skip
    job = next(jobs(space, 1))
    assert launch_files(job).texts
    drops = with_numbers(job.cluster.stack, {"has_score_dropout": True})
    with pytest.raises(Inexpressible, match="recomputed attention in a graph has no dropout"):
        assert launch_files(replace(job, cluster=replace(job.cluster, stack=drops))).texts


def test_an_experiment_of_primus_own_model_file_is_read_without_it(tmp_path: Path) -> None:
    """Layers of other kinds than Megatron's (deepseek_v4_flash.yaml), which the preset of the name has."""
    space = make_space({"model": "deepseek_v4_flash", "hardware": "mi355x", "nodes": 8, "framework": "primus",
                        "workload": {"seq_length": 4096, "global_batch_size": 256}})  # fmt: skip
    drawn = RandomJob(job=next(jobs(space, 1)), lengths=tmp_path, recipe="", hardware="mi355x")
    assert differences(drawn, tmp_path) == []


def test_a_loss_in_pieces_beside_prediction_layers_is_refused() -> None:
    """torchtitan 0.3.0 models/deepseek_v3/mtp.py MTPLoss takes whole logits."""
    space = make_space({"model": "deepseek_v3", "hardware": "h100", "nodes": 32, "framework": "torchtitan",
                        "workload": {"seq_length": 4096, "global_batch_size": 512}})  # fmt: skip
    job = next(jobs(space, 1))
    assert launch_files(job).texts
    pieces = with_numbers(job.cluster.stack, {"loss_chunks": 8.0})
    with pytest.raises(Inexpressible, match="prediction layers with a whole loss alone"):
        assert launch_files(replace(job, cluster=replace(job.cluster, stack=pieces))).texts


@pytest.mark.parametrize(
    ("framework", "given", "values"),
    [
        ("megatron", {"moe_router_force_load_balancing": True}, {"experts_in_turn": False}),
        ("primus", {"moe_router_force_load_balancing": True}, {"experts_in_turn": True}),
        ("primus", {"moe_router_force_load_balancing": True, "moe_router_force_load_balancing_type": "uniform"},
         {"experts_in_turn": False}),
        ("torchtitan@0.2.2", {"debug.moe_force_load_balance": True}, {"experts_in_turn": True}),
        ("megatron", {"moe_expert_capacity_factor": 1.5}, {}),
    ],
)  # fmt: skip
def test_settings_of_a_router_are_values_of_the_workload(
    framework: str, given: dict[str, Any], values: dict[str, Any]
) -> None:
    found = workload_values(load_framework(framework), given)
    assert {name: found[name] for name in values} == values and bool(found) == bool(values)
    assert workload_values(load_framework(framework).of_dense, given) == {}
