"""Megatron arguments, as Megatron-LM and Megatron-Core read them; Primus reads the same names with underscores.

Names checked against megatron-core 0.16 (`TransformerConfig`, `ModelParallelConfig`) and Megatron-LM's arguments.py.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from primus_search.candidates import Recompute, recompute_flags, recompute_word
from primus_search.export.assumed import comment
from primus_search.export.job import Job

# Recompute modules as `--recompute-modules` spells them (megatron-core 0.16, TransformerConfig.recompute_modules).
MODULES = {
    Recompute.CORE_ATTENTION: "core_attn",
    Recompute.MLA_UP_PROJ: "mla_up_proj",
    Recompute.MLP: "mlp",
    Recompute.MOE_ACTIVATION: "moe_act",
    Recompute.LAYERNORM: "layernorm",
}
RECIPES = {"hybrid": "tensorwise", "delayed": "delayed", "blockwise": "blockwise", "mxfp8": "mxfp8"}


def arguments(job: Job) -> dict[str, Any]:
    """Every Megatron argument this candidate sets; True is a bare switch, a list is several words."""
    row, workload = job.row, job.workload
    said: dict[str, Any] = {
        "seq_length": workload.seq_length,
        "micro_batch_size": row["micro_batch_size"],
        "global_batch_size": workload.global_batch_size,
        "tensor_model_parallel_size": row["tp"],
        "pipeline_model_parallel_size": row["pp"],
        "context_parallel_size": row["cp"],
        "expert_model_parallel_size": row["ep"],
        "expert_tensor_parallel_size": row["etp"],
    }
    switches = {
        "sequence_parallel": row["sequence_parallel"],
        "cross_entropy_loss_fusion": row["loss_fusion"],
        "overlap_grad_reduce": row["overlap_grad_reduce"],
    }
    said |= {name: True for name, on in switches.items() if on}
    if job.layout is not None:
        # The layout string also says how many virtual stages there are.
        said["pipeline_model_parallel_layout"] = job.layout
    elif row["vpp"] > 1:
        said["num_virtual_stages_per_pipeline_rank"] = row["vpp"]
    return said | _sharding(job) | _precision(row) | _recompute(row) | _experts(job)


# What Megatron asks for beside `--use-torch-fsdp2` and `--use-megatron-fsdp` (NVIDIA/Megatron-LM
# megatron/core/distributed/README.md and docs/discussions/megatron-fsdp-user-guide).
TORCH_FSDP = {"use_torch_fsdp2": True, "no_gradient_accumulation_fusion": True, "ckpt_format": "torch_dist"}
MEGATRON_FSDP = {
    "use_megatron_fsdp": True, "use_distributed_optimizer": True, "no_gradient_accumulation_fusion": True,
    "ckpt_format": "fsdp_dtensor",
}  # fmt: skip


def _sharding(job: Job) -> dict[str, Any]:
    """Of weights, gradients and optimizer; Megatron-FSDP where the projection has it, or where only it can."""
    row, said = job.row, dict[str, Any]()
    match row["sharding"]:
        case "distributed_optimizer":
            said = {"use_distributed_optimizer": True}
        case "zero2":
            said = MEGATRON_FSDP | {"data_parallel_sharding_strategy": "optim_grads"}
        case "fsdp2" if job.cluster.stack.name.startswith("megatron_fsdp"):
            said = MEGATRON_FSDP | {"data_parallel_sharding_strategy": "optim_grads_params"}
        case "fsdp2":
            said = dict(TORCH_FSDP)
        case "hsdp" if job.num_replicas > 1:
            said = MEGATRON_FSDP | {"data_parallel_sharding_strategy": "optim_grads_params"}
            said["num_distributed_optimizer_instances"] = job.num_replicas
    # The projection hides the gather of weights where it hides the reduction of gradients; Megatron has a switch each.
    if row["overlap_grad_reduce"] and "use_distributed_optimizer" in said:
        said["overlap_param_gather"] = True
    return said


def _precision(row: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"bf16": True}
    if row["fp8"] in RECIPES:
        said |= {"fp8_format": "hybrid", "fp8_recipe": RECIPES[row["fp8"]]}
    elif row["fp8"] == "nvfp4":
        said |= {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    return said


def _recompute(row: Mapping[str, Any]) -> dict[str, Any]:
    flags = recompute_flags(row["recompute"])
    said: dict[str, Any] = {}
    if flags & Recompute.FULL:
        said["recompute_granularity"] = "full"
        said["recompute_method"] = row["recompute_method"]
        # Uniform with groups of one layer recomputes every layer; block counts the layers of a virtual stage.
        said["recompute_num_layers"] = row["recompute_num_layers"] if row["recompute_method"] == "block" else 1
    elif any(flags & module for module in MODULES):
        said["recompute_granularity"] = "selective"
        said["recompute_modules"] = [word for module, word in MODULES.items() if flags & module]
    if row["offload_layers"]:
        said |= {"cpu_offloading_num_layers": row["offload_layers"]}
    return said


def _experts(job: Job) -> dict[str, Any]:
    if not job.model.is_moe:
        return {}
    said: dict[str, Any] = {"moe_grouped_gemm": True}
    if job.row["grouped_gemm"] == "legacy":
        said["moe_use_legacy_grouped_gemm"] = True
    if job.row["deepep"]:
        said |= {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True}
    elif job.row["ep"] > 1:
        said["moe_token_dispatcher_type"] = "alltoall"
    return said


def knobs(said: Mapping[str, Any], world: int) -> dict[str, Any]:
    """What Megatron arguments mean on `world` devices in the words of a candidate; the inverse of `arguments`."""
    pp = int(said.get("pipeline_model_parallel_size", 1))
    layout = said.get("pipeline_model_parallel_layout")
    vpp = int(said.get("num_virtual_stages_per_pipeline_rank", 1))
    if "num_layers_per_virtual_pipeline_stage" in said:
        vpp = int(said["num_layers"]) // (pp * int(said["num_layers_per_virtual_pipeline_stage"]))
    if layout is not None:
        from primus_search.layout import expand

        vpp = len(expand(layout)) // pp
    row: dict[str, Any] = {
        "tp": int(said.get("tensor_model_parallel_size", 1)),
        "pp": pp,
        "vpp": vpp,
        "ep": int(said.get("expert_model_parallel_size", 1)),
        "etp": int(said.get("expert_tensor_parallel_size", 1)),
        "cp": int(said.get("context_parallel_size", 1)),
        "micro_batch_size": int(said.get("micro_batch_size", 1)),
        "schedule": "interleaved" if vpp > 1 else "1f1b",
        "pipeline_layout": layout or "even",
        "sequence_parallel": bool(said.get("sequence_parallel")),
        "loss_fusion": bool(said.get("cross_entropy_loss_fusion")),
        "overlap_grad_reduce": bool(said.get("overlap_grad_reduce")),
        "deepep": bool(said.get("moe_enable_deepep")),
        "grouped_gemm": "legacy" if said.get("moe_use_legacy_grouped_gemm") else "turbo",
        "offload_layers": int(said.get("cpu_offloading_num_layers", 0)),
        "fp8": "none",
        "sharding": _heard_sharding(said),
    }
    if "fp8_format" in said:
        row["fp8"] = {recipe: word for word, recipe in RECIPES.items()}[said.get("fp8_recipe", "delayed")]
    if "fp4_format" in said:
        row["fp8"] = "nvfp4"
    if row["sharding"] == "hsdp":
        replicas = world // (row["tp"] * row["pp"] * row["cp"])
        row["shard_group"] = replicas // int(said["num_distributed_optimizer_instances"])
    return row | _heard_recompute(said)


def _heard_sharding(said: Mapping[str, Any]) -> str:
    if said.get("use_torch_fsdp2"):
        return "fsdp2"
    if said.get("use_megatron_fsdp"):
        is_hybrid = int(said.get("num_distributed_optimizer_instances", 1)) > 1
        weights_too = "hsdp" if is_hybrid else "fsdp2"
        return {"optim_grads": "zero2", "optim_grads_params": weights_too}[said["data_parallel_sharding_strategy"]]
    return "distributed_optimizer" if said.get("use_distributed_optimizer") else "none"


def _heard_recompute(said: Mapping[str, Any]) -> dict[str, Any]:
    granularity = said.get("recompute_granularity")
    if granularity == "full":
        method = said["recompute_method"]
        count = int(said["recompute_num_layers"]) if method == "block" else 0
        return {"recompute": "full", "recompute_method": method, "recompute_num_layers": count}
    if granularity == "selective":
        modules = said.get("recompute_modules", ["core_attn"])  # Megatron's own default
        flags = sum(int(module) for module, word in MODULES.items() if word in modules)
        return {"recompute": recompute_word(flags)}
    return {"recompute": "none"}


def say(job: Job) -> str:
    """A shell script that defines `MEGATRON_ARGS` and runs nothing: to be sourced by a launch script."""
    lines = ["#!/usr/bin/env bash", f"# {job.model.name} on {job.cluster.world} GPUs", "MEGATRON_ARGS=("]
    for name, value in arguments(job).items():
        words = [] if value is True else value if isinstance(value, list) else [value]
        lines.append("  " + " ".join([f"--{name.replace('_', '-')}", *(shlex.quote(str(word)) for word in words)]))
    return "\n".join([*lines, ")", *comment(job)]) + "\n"


def hear(text: str) -> dict[str, Any]:
    """The knobs of a script: of the arguments that `say` wrote, or of any text with Megatron's flags in it."""
    body = re.search(r"MEGATRON_ARGS=\((.*?)^\)", text, flags=re.DOTALL | re.MULTILINE)
    words: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split((body.group(1) if body else text).replace("\\\n", " "), comments=True):
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            name = flag.replace("-", "_")
            words[name] = [value] if equals else []
        elif name:
            words[name].append(word)
    switches = {name for name, values in words.items() if not values}
    said: dict[str, Any] = {name: True if name in switches else values[0] for name, values in words.items()}
    if "recompute_modules" in words:
        said["recompute_modules"] = words["recompute_modules"]
    gpus = re.search(r"^# .* on (\d+) GPUs$", text, flags=re.MULTILINE)
    return knobs(said, int(gpus.group(1)) if gpus else 1)
