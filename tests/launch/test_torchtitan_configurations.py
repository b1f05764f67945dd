"""torchtitan 0.3.0: configuration functions read without running them, a job's JSON, commands over both releases."""

import json
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.files.known_keys import key_table
from primus_search.files.python.python_module import PythonModule
from primus_search.files.python.python_values import CallRecord, Unknown
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.torchtitan_command import CONFIGS
from primus_search.launch.refusals import refused
from tests.support.judge.checkouts import needs, sources

REGISTRY = """
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

BATCH = 4


def _wide(config: Trainer.Config, tp: int = 2) -> None:
    config.parallelism.tensor_parallel_degree = tp
    config.compile.components.append("loss")


def base() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        loss=ChunkedLossWrapper.Config(num_chunks=4, loss_fn=CrossEntropyLoss.Config()),
        training=TrainingConfig(local_batch_size=BATCH // 2, seq_len=2 * 4096, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(),
        compile=CompileConfig(enable=True, components=["model"]),
    )


def wide() -> Trainer.Config:
    config = base()
    _wide(config, tp=4)
    config.activation_checkpoint = FullAC.Config()
    return config


def measured() -> Trainer.Config:
    config = base()
    config.training.local_batch_size = int(open("batch").read())
    return config
"""


SECTIONS = ("loss", "optimizer", "tokenizer", "dataloader", "lr_scheduler", "training", "parallelism", "validator")


@pytest.mark.parametrize("section", [*SECTIONS, "activation_checkpoint"])
def test_a_section_that_is_none_is_refused_but_recompute(section: str, tmp_path: Path) -> None:
    """`Trainer` reads a field of each, or builds it (trainer.py of v0.3.0)."""
    none = f"def less() -> Trainer.Config:\n    config = base()\n    config.{section} = None\n    return config\n"
    (tmp_path / "config_registry.py").write_text(f"{REGISTRY}\n\n{none}")
    if section == "activation_checkpoint":
        assert read(tmp_path / "config_registry.py", "--config", "less").row["recompute"] == "none"
        return
    with pytest.raises(InputError, match=f"{section} = None: torchtitan stops"):
        read(tmp_path / "config_registry.py", "--config", "less")


def read(path: Path, *flags: str, world: int = 8) -> Experiment:
    return read_experiment(path, world, None, flags)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    path = tmp_path / "own_registry.py"
    path.write_text(REGISTRY)
    return path


def test_a_function_is_followed_through_those_that_it_calls(registry: Path) -> None:
    found = read(registry, "--config", "wide")
    row = found.candidate.row(0)
    assert (row["tp"], row["recompute"], row["loss_fusion"], row["micro_batch_size"]) == (4, "full", True, 2)
    assert (found.seq_length, found.global_batch_size) == (8192, 4)
    assert found.model is not None and found.model.name == "llama3.1_8b"
    assert (found.numbers["loss_chunks"], found.not_modelled) == (4.0, ())


def test_flags_stand_over_a_function(registry: Path) -> None:
    flags = ("--config=base", "--training.local-batch-size", "8", "--parallelism.context_parallel_degree=2",
             "--training.no-disable-cuda-graphs", "activation-checkpoint:none",
             "--compile.components", "model,loss")  # fmt: skip
    row = read(registry, *flags).candidate.row(0)
    assert (row["micro_batch_size"], row["cp"], row["cuda_graph"], row["recompute"]) == (8, 2, "full", "none")
    assert row["loss_fusion"] is True


def test_a_file_with_several_asks_for_one_by_name(registry: Path) -> None:
    with pytest.raises(
        InputError, match=r"has 3 configurations: base, wide, measured; name one: .*--args '--config base'"
    ):
        read(registry)
    with pytest.raises(InputError, match="has no configuration narrow; it has base, wide, measured"):
        read(registry, "--config", "narrow")


def test_what_only_a_run_knows_is_refused_by_its_key_unless_it_is_given(registry: Path) -> None:
    with pytest.raises(InputError, match=r"training.local_batch_size: int.* is known only when it runs; give it by"):
        read(registry, "--config", "measured")


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n{REGISTRY}\n[print(x) for x in iter(int, 1)]\n")
    assert read(path, "--config", "base").seq_length == 8192
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("x = [1]\n  x.append(2)\n  return x", [1, 2]),
        ("a, b = 3, 4\n  return a * b if a < b else 0", 12),
        ("x = 2\n  x += 5\n  return -x", -7),
        ("for x in (1, 2):\n    y = x\n  return y", 2),
        ("return {'a': 1}['a'] in [1] and not False", True),
        ("return unknown_thing() + 1", Unknown("unknown_thing() + 1")),
        ("return f(n) if False else 'x' * 2", "xx"),
    ],
)
def test_plain_python_has_the_value_that_python_gives_it(body: str, value: object, tmp_path: Path) -> None:
    module = PythonModule.of(tmp_path / "m.py", f"def f(n=1):\n  {body}\n")
    assert module.returned("f") == value


@pytest.mark.parametrize("body", ["return f()", "return [f(), f()]"])
def test_functions_without_end_are_refused(body: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without end|so many steps"):
        PythonModule.of(tmp_path / "m.py", f"def f():\n  {body}\n").returned("f")


def test_parts_set_later_are_seen(tmp_path: Path) -> None:
    text = "import lib\ndef f():\n  c = lib.Config(a=1)\n  c.b.d = 2\n"
    text += "  for layer in c.layers: layer.norm.eps = 3\n  return c\n"
    found = PythonModule.of(tmp_path / "m.py", text).returned("f")
    assert isinstance(found, CallRecord) and found.fields["a"] == 1
    assert found.fields["b"].fields["d"] == 2 and found.fields["layers"].fields["norm"].fields["eps"] == 3


# --- commands ---------------------------------------------------------------------------------------------------------

COMMANDS = {
    "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b "
    "--parallelism.tensor_parallel_degree 2": (2, 1, 8, "llama3.1_8b"),
    "NGPU=4 MODULE=deepseek_v3 CONFIG=deepseek_v3_16b ./run_train.sh --parallelism.expert_parallel_degree=4":
        (1, 4, 4, "deepseek_v2_lite"),
    "export CONFIG_FILE=job.toml NGPU=8\n./run_train.sh --parallelism.tensor_parallel_degree=4":
        (4, 1, 8, "llama3.1_8b"),
    "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./job.toml "
    "--parallelism.tensor_parallel_degree 8": (8, 1, 8, "llama3.1_8b"),
    "torchrun --nproc_per_node=8 -m torchtitan.train --module own_registry --config wide": (4, 1, 8, "llama3.1_8b"),
}  # fmt: skip
JOB_FILE = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_read_over_what_it_starts(command: str, registry: Path) -> None:
    (registry.parent / "job.toml").write_text(f"{JOB_FILE}[activation_checkpoint]\nmode = 'full'\n")
    path = registry.parent / "train.sh"
    path.write_text(f"#!/bin/bash\n{command}\n")
    found = read(path, world=0)
    row = found.candidate.row(0)
    assert found.model is not None
    assert (row["tp"], row["ep"], found.world.gpus, found.model.name) == COMMANDS[command]
    assert found.framework.name == (
        "torchtitan@0.2.2" if "job.toml" in command or "CONFIG_FILE" in command else "torchtitan@0.3.0"
    )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            "./run_train.sh --module llama3 --config llama9",
            "--config llama9, which is not known: llama3 has llama3_debugmodel",
        ),
        (
            "./run_train.sh --module mine --config x",
            "no mine is beside it, known are llama3, qwen3, deepseek_v3, gpt_oss",
        ),
        ("CONFIG_FILE=gone.toml ./run_train.sh", "starts gone.toml, which is not beside it"),
        ("python -m torchtitan.train --module llama3 --config $1", "depends on 1: set it"),
    ],
)
def test_a_command_that_starts_nothing_known_says_what_is(command: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(command + "\n")
    with pytest.raises(InputError) as caught:
        read(path)
    assert why in str(caught.value)


@pytest.mark.parametrize("section", ["training", "parallelism"])
def test_the_batch_of_a_job_file_is_that_of_the_degrees_it_names(tmp_path: Path, section: str) -> None:
    degrees = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4, "tensor_parallel_degree": 2}
    lines = "".join(f"{key} = {value}\n" for key, value in degrees.items())
    text = JOB_FILE.replace("local_batch_size = 1", "local_batch_size = 3")
    head = "" if section in text else "[parallelism]\n"
    (tmp_path / "job.toml").write_text(text + head + lines)
    job = read_experiment(tmp_path / "job.toml", 8)
    assert (job.world.gpus, job.global_batch_size) == (16, 24)


def test_a_job_file_with_experts_and_tensor_parallelism_has_them_split_as_attention_is(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = JOB_FILE.replace("llama3", "qwen3").replace("8B", "30B-A3B") + "[activation_checkpoint]\nmode = 'full'\n"
    path.write_text(text + "[parallelism]\ntensor_parallel_degree = 2\n")
    assert read(path).candidate.row(0)["etp"] == 2


# --- the JSON of a job ------------------------------------------------------------------------------------------------


def test_a_dump_is_read_by_the_fields_of_its_parts(tmp_path: Path) -> None:
    layer = {
        "attention": {},
        "moe": {"routed_experts": {"token_dispatcher": {"num_experts": 64, "cudagraphable": False}}},
    }
    dump = {
        "model_spec": {"name": "deepseek_v3", "flavor": "16B", "model": {"layers": [layer] * 27, "mtp_layers": []}},
        "training": {"local_batch_size": 4, "seq_len": 4096, "global_batch_size": -1, "disable_cuda_graphs": True},
        "parallelism": {"expert_parallel_degree": 8},
        "activation_checkpoint": {"preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": []},
        "loss": {"num_chunks": 8, "loss_fn": {}},
        "compile": {"enable": True, "components": ["loss"]},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dump))
    found = read(path)
    row = found.candidate.row(0)
    assert (row["ep"], row["deepep"], row["dispatch_backend"], row["recompute"]) == (8, True, "deepep", "op_sac")
    assert found.model is not None and found.model.name == "deepseek_v2_lite" and found.numbers["loss_chunks"] == 8.0
    assert "fp8 = none: a dump names no converters; --set fp8= changes it" in found.assumed
    path.write_text(json.dumps(dump | {"model_spec": dump["model_spec"] | {"model": {"layers": [layer] * 3}}}))
    assert read(path).model is None


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "--parallelism.pipeline_parallel_degree 2 --training.no-disable-cuda-graphs --training.local_batch_size 8": {
        "graphs_pipeline"
    },
    "--parallelism.tensor_parallel_degree 3": {"degrees_fill", "length_divides_of_tokens", "heads_split"},
    "--training.global_batch_size 7": {"batch_divides"},
    "--compile.no-enable --compile.enable_async_tensor_parallel": {"async_tp_compiled"},
    "--training.seq_len 4100": {"chunks_of_loss"},
    "--training.local_batch_size 16 --parallelism.pipeline_parallel_degree 4 "
    "--parallelism.pipeline_parallel_layers_per_stage 10": set(),
    "": set(),
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_torchtitan_refuses_is_refused_by_name(flags: str, registry: Path) -> None:
    found = read(registry, "--config", "base", "--loss.num_chunks", "8", *flags.split())
    assert {one.name for one in refused(found.framework.name, found.written, 8, 9)} == REFUSED[flags]


def test_a_loss_in_no_pieces_is_refused_by_its_key(registry: Path) -> None:
    with pytest.raises(InputError, match=r"loss\.num_chunks: 0 is out of range"):
        read(registry, "--config", "base", "--loss.num_chunks", "0")


# --- torchtitan's own -------------------------------------------------------------------------------------------------


@needs("torchtitan@0.3.0")
def test_the_table_of_configurations_is_what_the_sources_say() -> None:
    from tools.launch_tables import torchtitan_configs

    assert torchtitan_configs(sources("torchtitan@0.3.0")) == key_table(CONFIGS)


@needs("torchtitan@0.3.0")
def test_torchtitans_own_configurations_are_read() -> None:
    root = sources("torchtitan@0.3.0") / "torchtitan" / "models"
    unread = []
    for family, own in key_table(CONFIGS).items():
        for name in own:
            try:
                found = read(root / family / "config_registry.py", "--config", name)
            except InputError as error:
                assert "adapters" in str(error)
                continue
            unread += [name] if found.model is None else []
    assert unread == ["qwen3_debugmodel_non_fused_qkv"]


ADAPTED = """
from torchtitan.components.lora import LoRAConverter
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def job() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", converters=[Float8LinearConverter.Config(), LoRAConverter.Config(FIELDS)]),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
    )
"""


@pytest.mark.parametrize(
    ("fields", "rank", "modules", "is_noted"),
    [
        ("", 8, ["all-linear"], True),
        ('rank=16, alpha=32.0, target_modules=["wq", "wo", "w2"]', 16, ["q_proj", "o_proj", "down_proj"], False),
        ('rank=4, target_modules=["wq", "wkv"]', 4, ["q_proj", "k_proj", "v_proj"], True),
    ],
)
def test_adapters_of_a_converter_are_those_of_the_workload(
    tmp_path: Path, fields: str, rank: int, modules: list[str], is_noted: bool
) -> None:
    path = tmp_path / "job.py"
    path.write_text(ADAPTED.replace("FIELDS", fields), encoding="utf-8")
    found = read(path)
    assert found.tuning["task"] == "lora"
    assert (found.tuning["lora"]["rank"], found.tuning["lora"]["modules"]) == (rank, modules)
    assert [note for note in found.not_modelled if "onverters" in note or "lora" in note.lower()] == (
        ["model_spec.converters: LoRAConverter (projected as an adapter of K and one of V, none of the head)"]
        if is_noted
        else []
    )
    assert found.row["fp8"] != "none"


@pytest.mark.parametrize(("step", "batch"), [("", 16), (", num_tokens_per_train_step=64 * 8192", 64)])
def test_sizes_in_tokens_are_those_in_rows_of_the_longest_context(step: str, batch: int, tmp_path: Path) -> None:
    tokens = f"num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192{step}"
    path = tmp_path / "config_registry.py"
    path.write_text(REGISTRY.replace("local_batch_size=BATCH // 2, seq_len=2 * 4096", tokens), encoding="utf-8")
    found = read(path, "--config", "base")
    sizes = (found.row["micro_batch_size"], found.seq_length, found.global_batch_size)
    assert sizes == (2, 8192, batch) and not any("tokens" in one for one in found.not_modelled)
