"""A torchtitan job file (TOML, torchtitan 0.2's `JobConfig`)."""

import json
import re
import tomllib
from typing import Any

from primus_search.export.job import Job

# torch.distributed.pipelining's schedule classes as torchtitan names them.
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
RECIPES = {"hybrid": "tensorwise", "rowwise": "rowwise"}
FLOAT8 = "quantize.linear.float8"


def say(job: Job) -> str:
    """The job file; sections and keys in the order of torchtitan's own."""
    sections = {
        "job": {"description": f"{job.model.name} on {job.cluster.world} GPUs"},
        "model": _model(job),
        "training": _training(job),
        "parallelism": _parallelism(job),
        "activation_checkpoint": _checkpointing(job),
        "compile": {"enable": job.row["loss_fusion"], "components": ["loss"] if job.row["loss_fusion"] else []},
    }
    if job.row["fp8"] in RECIPES:
        sections[FLOAT8] = {"recipe_name": RECIPES[job.row["fp8"]]}
    elif job.row["fp8"] == "mxfp8":
        sections["quantize.linear.mx"] = {"recipe_name": "mxfp8_cublas"}
    blocks = []
    for section, values in sections.items():
        blocks.append("\n".join([f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]))
    return "\n\n".join(blocks) + "\n"


def _model(job: Job) -> dict[str, Any]:
    families = {"llama": "llama3", "deepseek": "deepseek_v3", "qwen": "qwen3", "gpt": "gpt_oss"}
    name = job.model.name.lower()
    # One that torchtitan does not have keeps its name: to be refused there, not to be trained as another.
    family = next((theirs for ours, theirs in families.items() if ours in name), job.model.name)
    size = re.search(r"(\d+(?:x\d+)?b(?:-a\d+b)?)", name)
    converters = {"hybrid": FLOAT8, "rowwise": FLOAT8, "mxfp8": "quantize.linear.mx"}
    chosen = converters.get(job.row["fp8"])
    flavor = size.group(1).upper() if size else job.model.name
    return {"name": family, "flavor": flavor, "converters": [chosen] if chosen else []}


def _training(job: Job) -> dict[str, Any]:
    # Without a pipeline, torchtitan accumulates gradients over local batches; with one, a local batch is cut into
    # micro-batches (`pipeline_parallel_microbatch_size`).
    local = job.row["micro_batch_size"] * (job.microbatches if job.row["pp"] > 1 else 1)
    return {
        "local_batch_size": local,
        "global_batch_size": job.workload.global_batch_size,
        "seq_len": job.workload.seq_length,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def _parallelism(job: Job) -> dict[str, Any]:
    row = job.row
    shard = row["shard_group"] if row["sharding"] == "hsdp" and row["shard_group"] else job.dp
    shard = shard if row["sharding"] in ("fsdp2", "hsdp") else 1
    said: dict[str, Any] = {
        "data_parallel_replicate_degree": job.dp // shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": row["tp"],
        "context_parallel_degree": row["cp"],
        "pipeline_parallel_degree": row["pp"],
        "expert_parallel_degree": row["ep"],
        "expert_tensor_parallel_degree": row["etp"],
        "expert_parallel_comm_backend": "deepep" if row["deepep"] else "standard",
    }
    if row["pp"] > 1:
        said |= {
            "pipeline_parallel_schedule": SCHEDULES.get(row["schedule"], "1F1B"),
            "pipeline_parallel_microbatch_size": row["micro_batch_size"],
            "pipeline_parallel_layers_per_stage": -(-job.model.num_layers // (row["pp"] * row["vpp"])),
        }
    return said


def _checkpointing(job: Job) -> dict[str, Any]:
    if job.row["recompute"] == "full":
        return {"mode": "full"}
    if job.row["recompute"] == "op_sac":
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": "none"}


def hear(text: str) -> dict[str, Any]:
    """The knobs of a job file that `say` wrote."""
    said = tomllib.loads(text)
    parallel, training = said["parallelism"], said["training"]
    pp = parallel["pipeline_parallel_degree"]
    schedules = {theirs: ours for ours, theirs in SCHEDULES.items()}
    replicas, shard = parallel["data_parallel_replicate_degree"], parallel["data_parallel_shard_degree"]
    checkpoint = said["activation_checkpoint"]
    row: dict[str, Any] = {
        "tp": parallel["tensor_parallel_degree"],
        "pp": pp,
        "cp": parallel["context_parallel_degree"],
        "ep": parallel["expert_parallel_degree"],
        "etp": parallel["expert_tensor_parallel_degree"],
        "micro_batch_size": parallel.get("pipeline_parallel_microbatch_size", training["local_batch_size"]),
        "schedule": schedules[parallel.get("pipeline_parallel_schedule", "1F1B")],
        "deepep": parallel["expert_parallel_comm_backend"] == "deepep",
        "sharding": "none" if shard == 1 else "fsdp2" if replicas == 1 else "hsdp",
        "shard_group": shard if shard > 1 and replicas > 1 else 0,
        "loss_fusion": said["compile"]["enable"],
        "recompute": "full"
        if checkpoint["mode"] == "full"
        else "op_sac"
        if checkpoint["mode"] == "selective"
        else "none",
        "fp8": _heard_precision(said),
    }
    return row


def _heard_precision(said: dict[str, Any]) -> str:
    linear = said.get("quantize", {}).get("linear", {})
    if "mx" in linear:
        return "mxfp8"
    recipes = {theirs: ours for ours, theirs in RECIPES.items()}
    return recipes[linear["float8"]["recipe_name"]] if "float8" in linear else "none"
