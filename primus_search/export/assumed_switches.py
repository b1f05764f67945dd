"""What a projection assumes of the software and no knob says: switches of Megatron that its stack has on.

They are the stack's, not the candidate's, so they stand in a launch file as a comment: whoever runs the file can hold
them against what the cluster runs, and the projected rate is that of a run that has them.

Names are those of megatron-core 0.16 (`TransformerConfig`, `ModelParallelConfig`, `DistributedDataParallelConfig`,
`OptimizerConfig`); a test holds them to it.
"""

import textwrap
from typing import Any

from primus_search.export.job import LaunchJob

MEGATRON_STACKS = ("megatron", "primus_megatron", "nemo")
"""How the names of stacks begin that train with Megatron."""
BF16_BYTES = 2.0
CUDA_GRAPHS: dict[str, dict[str, Any]] = {
    "none": {},
    "router": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "moe_router moe_preprocess"},
    "partial": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn moe_router moe_preprocess"},
    "full": {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"},
}
COLUMNS = 118


def assumed(job: LaunchJob) -> dict[str, Any]:
    """Megatron arguments that the projection of this candidate takes for granted; True is a bare switch."""
    stack, row, model = job.cluster.stack, job.row, job.model
    if not stack.name.startswith(MEGATRON_STACKS):
        return {}
    switches = {
        "tp_comm_overlap": row["tp"] > 1 and not row["tp_overlap"] and stack.communication.tensor_overlap > 0.0,
        "moe_permute_fusion": model.is_moe and stack.experts.permutation == "fused",
        "moe_router_fusion": model.is_moe and stack.experts.has_fused_router,
        "overlap_moe_expert_parallel_comm": row["ep"] > 1 and stack.experts.expert_overlap > 0.0,
        "moe_shared_expert_overlap": _has_shared_experts(job) and row["ep"] > 1 and stack.experts.shared_expert_overlap,
        "fp8_param_gather": row["fp8"] not in ("none", "nvfp4") and stack.precision.has_fp8_param_gather,
        "grad_reduce_in_bf16": stack.precision.gradient_comm_bytes == BF16_BYTES,
        "use_precision_aware_optimizer": stack.precision.moment_bytes == BF16_BYTES,
    }
    said: dict[str, Any] = {name: True for name, is_on in switches.items() if is_on}
    if row["cp"] > 1 and row["cp_comm"] == "stack":
        said["cp_comm_type"] = stack.communication.cp_comm.replace("_", "")
    return said | CUDA_GRAPHS[stack.host.cuda_graph]


def _has_shared_experts(job: LaunchJob) -> bool:
    return job.model.moe is not None and job.model.moe.shared_ffn_hidden > 0


def comment(job: LaunchJob) -> list[str]:
    """The same as lines of a comment; none where nothing is assumed."""
    said = assumed(job)
    if not said:
        return []
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in said.items()]
    text = f"The projection assumes of the software (stack {job.cluster.stack.title}): {', '.join(words)}."
    return textwrap.wrap(text, COLUMNS, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
