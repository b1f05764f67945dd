"""One reader of settings: what `learn` and `project` take a log for is the same candidate with the same assumptions."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.files.hardware_files import load_stack
from primus_search.learning.logged_job import read_job, with_assumptions
from primus_search.learning.logged_run import SaidBeside, measured_run
from primus_search.learning.readers import read_log
from primus_search.learning.started_experiment import start

FOLDER = Path(os.environ.get("PRIMUS_SEARCH_LOGS", "../shared/logs"))
LOGS = sorted(FOLDER.glob("*.log"))
DUMP = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
------------------------ arguments ------------------------
{arguments}
-------------------- end of arguments ---------------------
"""
SIZES = {
    "num_layers": 16, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16, "seq_length": 4096,
    "padded_vocab_size": 32000, "swiglu": True, "add_bias_linear": False, "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True, "num_experts": 8, "moe_router_topk": 2, "world_size": 16,
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "context_parallel_size": 2,
    "expert_model_parallel_size": 4, "micro_batch_size": 1, "global_batch_size": 64, "bf16": True,
    "virtual_pipeline_model_parallel_size": None, "use_distributed_optimizer": True, "overlap_grad_reduce": True,
    "recompute_granularity": None, "sequence_parallel": False, "fp8": None, "moe_grouped_gemm": True,
    "transformer_impl": "transformer_engine", "attention_dropout": 0.0, "hidden_dropout": 0.0, "optimizer": "adam",
    "moe_token_dispatcher_type": "alltoall", "cross_entropy_loss_fusion": False, "expert_tensor_parallel_size": 1,
}  # fmt: skip
COUNT = range(1, 11)
KNOBS = [
    ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "['attn', 'moe_router', 'moe_preprocess']"},
     {"cuda_graph": "partial"}),
    ({"overlap_moe_expert_parallel_comm": True}, {"exchange_overlap": True}),
    ({"cp_comm_type": "['a2a']"}, {"cp_comm": "a2a"}),
    ({"cpu_offloading_num_layers": 3}, {"offload_layers": 3}),
    ({"pipeline_model_parallel_layout": "Et*7|t*9L"}, {"pipeline_layout": "first=7,last=9"}),
    ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
     {"state_format": "bf16_moments"}),
    ({"moe_grouped_gemm": False}, {}),
    ({"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'moe_act']"},
     {"recompute": "core_attention+moe_activation"}),
    ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, {"fp8": "mxfp8"}),
    ({"zero_stage": 3, "use_distributed_optimizer": False}, {"sharding": "fsdp2"}),
]  # fmt: skip
"""Printed settings and the columns that they decide."""


def logged(folder: Path, changes: dict[str, object]) -> Path:
    """A log of Megatron-LM that dumps its arguments and runs ten steps."""
    arguments = "\n".join(f"  {name} {'.' * (60 - len(name))} {value}" for name, value in (SIZES | changes).items())
    steps = [
        f" iteration {n:8}/ 50 | elapsed time per iteration (ms): 900.0 | global batch size: 64 |" for n in range(1, 11)
    ]
    path = folder / "run.log"
    path.write_text(DUMP.format(arguments=arguments) + "\n".join(steps) + "\n", encoding="utf-8")
    return path


@pytest.mark.skipif(not LOGS, reason="no folder of collected logs: $PRIMUS_SEARCH_LOGS")
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_learn_and_project_read_the_same_candidate(path: Path) -> None:
    reading = with_assumptions(read_log(path))
    try:
        job = read_job(path, reading.gpus or 8)
    except InputError as error:
        assert "does not print" in str(error)
        return
    model = "llama3_8b" if job.model is None else None
    reading = replace(reading, gpus=reading.gpus or 8)  # as `project` is told, where the log prints none
    learned = measured_run(reading, SaidBeside(hardware="h100", model=model), load_stack("megatron_te"))
    projected = start(path, "h100", 0, model or "").experiment
    assert learned.candidates.row(0) == projected.candidate.row(0)
    assert learned.assumed == projected.assumed
    assert learned.workload.global_batch_size == projected.global_batch_size
    if model is None:
        assert replace(learned.model, name="", source="") == replace(projected.model, name="", source="")


@pytest.mark.parametrize(("changes", "columns"), KNOBS, ids=lambda one: "-".join(map(str, one)))
def test_a_printed_setting_decides_its_column(
    tmp_path: Path, changes: dict[str, object], columns: dict[str, object]
) -> None:
    run = measured_run(read_log(logged(tmp_path, changes)), SaidBeside(), load_stack("megatron_te"))
    row = run.candidates.row(0)
    assert {name: row[name] for name in columns} == columns
    plain = measured_run(read_log(logged(tmp_path, {})), SaidBeside(), load_stack("megatron_te")).candidates.row(0)
    assert {name for name in row if row[name] != plain[name]} == set(columns)


def test_grouped_products_that_are_off_are_said(tmp_path: Path) -> None:
    notes = read_job(logged(tmp_path, {"moe_grouped_gemm": False})).not_modelled
    assert any(note.startswith("moe_grouped_gemm: off (") for note in notes)


def test_a_world_that_its_degrees_contradict_is_repaired_and_said(tmp_path: Path) -> None:
    """Every process of some releases prints a world of 1: 64 GPUs with TP 4 and PP 16."""
    degrees = {"world_size": 1, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 16, "num_layers": 32}
    alone = {"context_parallel_size": 1, "expert_model_parallel_size": 1, "num_experts": None}
    reading = read_log(logged(tmp_path, degrees | alone))
    assert (reading.gpus, reading.assumed["gpus"].value) == (None, 64)
    assert "prints a world of 1" in reading.assumed["gpus"].because
    run = measured_run(reading, SaidBeside(), load_stack("megatron_te"))
    assert run.cluster.world == 64
    replicas = read_log(logged(tmp_path, degrees | alone | {"data_parallel_size": 2}))
    assert replicas.gpus == 128
