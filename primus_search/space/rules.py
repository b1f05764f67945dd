"""Legality: named, vectorised rules with a reason a person can act on, and the axes that matter only sometimes.

A rule says which columns it reads, so that the enumerator can apply it the moment those are known. A rule that
removes doubles (two rows that mean the same run) says so in its reason.

Sources: Megatron-LM megatron/training/arguments.py and core/transformer/transformer_config.py (core 0.12-0.15) for
divisibility, interleaving, sequence parallelism with experts and FSDP2 without pipeline; AMD Primus
tuning_agent/legality.py for recompute with split weight gradients and sync-free stages, and its Megatron trainer for
what sync-free stages 2 and 3 switch on (DeepEP and the turbo grouped GEMM); arXiv:2504.14960 for parallel folding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from primus_search.space.constraints import parse
from primus_search.space.context import Cells, Column, GridJob
from primus_search.values.candidates import INNER_RANKS, Bools
from primus_search.values.knobs import (
    CpComm,
    CudaGraph,
    DispatchBackend,
    Fp8,
    Offload,
    Recompute,
    RecomputeMethod,
)
from primus_search.values.layout import COUNTED_ENDS
from primus_search.values.machine.cluster import Accelerator
from primus_search.values.model import Mamba2, Model

INTERLEAVED = "interleaved"
MOST_OVERLAPPED_MTP = 1
"""MTP modules that overlapped expert exchange supports (Megatron-Core transformer_config.py)."""

Keeps = Callable[[GridJob, Cells], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a row legal. `reads` are column names; `keeps` gets the job and the cells and returns a mask."""

    name: str
    reads: tuple[str, ...]
    reason: str
    keeps: Keeps

    @classmethod
    def of(cls, name: str, text: str, reason: str) -> Self:
        """A rule from its text in the language of constraints."""
        predicate = parse(text)
        return cls(name=name, reads=predicate.names, reason=reason, keeps=predicate)


RULES: list[Rule] = []
"""Rules of every job, in the order in which what they remove is counted."""


def _rule(reads: str, *, reason: str) -> Callable[[Keeps], Keeps]:
    """Add a predicate on some columns, blanks between, to the rules, named as the function."""

    def add(keeps: Keeps) -> Keeps:
        RULES.append(Rule(name=keeps.__name__, reads=tuple(reads.split()), reason=reason, keeps=keeps))
        return keeps

    return add


def _holds(name: str, text: str, reason: str) -> None:
    """Add a rule that the language of constraints can say."""
    RULES.append(Rule.of(name, text, reason))


def everywhere(cells: Cells, claim: bool) -> Bools:
    return np.full(len(cells), claim)


def divides_all(degree: Column, sizes: list[int]) -> Bools:
    mask: Bools = np.logical_and.reduce([size % degree == 0 for size in sizes])
    return mask


# --- parallel degrees ------------------------------------------------------------------------------------------------


@_rule("tp", reason="tp divides heads, hidden and ffn sizes, and divides kv heads or is a multiple of them")
def tp_divides_model(job: GridJob, c: Cells) -> Bools:
    model, tp = job.model, c["tp"]
    sizes = [model.num_heads, model.hidden]
    if not all(model.moe_layers):
        sizes.append(model.ffn_hidden)
    if model.beside_experts_hidden:
        sizes.append(model.beside_experts_hidden)
    mask = divides_all(tp, sizes if model.is_uniform else [model.hidden, *_declared_sizes(model)])
    for limit in {p.limit for kind in model.kinds for p in model.mixer(kind).projections(model.hidden) if p.limit}:
        mask &= (limit % tp == 0) | (tp % limit == 0)
    return mask


def _declared_sizes(model: Model) -> list[int]:
    """What tensor parallelism divides in the layers of a model whose layers differ: heads, groups of B and C, MLPs."""
    sizes = [model.mixer(kind).num_heads for kind in model.kinds]
    sizes += [kind.mixer.num_groups for kind in model.kinds if isinstance(kind.mixer, Mamba2)]
    sizes += [*(model.ffn_hidden_of(kind) for kind in model.kinds), model.beside_experts_hidden]
    return [size for size in sizes if size]


@_rule("ep", reason="ep divides the number of experts; a dense model has ep = 1")
def ep_divides_experts(job: GridJob, c: Cells) -> Bools:
    return divides_all(c["ep"], [job.model.moe.num_experts if job.model.is_moe and job.model.moe else 1])


@_rule("etp", reason="etp divides the inner size of one expert; a dense model has etp = 1")
def etp_divides_expert(job: GridJob, c: Cells) -> Bools:
    return divides_all(c["etp"], [job.model.moe.expert_ffn_hidden if job.model.moe else 1])


@_rule("cp", reason="the sequence splits into 2 * cp equal parts (causal load balance)")
def cp_splits_sequence(job: GridJob, c: Cells) -> Bools:
    cp = c["cp"]
    mask: Bools = (cp == 1) | (job.workload.seq_length % (2 * cp) == 0)
    return mask


@_rule("sequence_parallel tp cp", reason="the sequence splits into tp * cp equal parts under sequence parallelism")
def sequence_parallel_splits(job: GridJob, c: Cells) -> Bools:
    mask: Bools = ~c["sequence_parallel"].astype(bool) | (job.workload.seq_length % (c["tp"] * c["cp"]) == 0)
    return mask


@_rule(
    "cp_comm tp cp",
    reason="an all-to-all of context parallelism deals out whole heads: tp times its ranks (cp, or N of a2aN_p2p) "
    "divides heads and key-value heads "
    "(NVIDIA/TransformerEngine pytorch/attention/dot_product_attention/context_parallel.py)",
)
def exchanges_whole_heads(job: GridJob, c: Cells) -> Bools:
    model = job.model
    ranks = np.where(c["cp_comm"] == CpComm.A2A, c["cp"], INNER_RANKS[c["cp_comm"]])
    sizes = [model.num_heads] if model.latent is not None else [model.num_heads, model.num_kv_heads]
    mask: Bools = (ranks == 0) | divides_all(c["tp"] * np.maximum(ranks, 1), sizes)
    return mask


@_rule(
    "cp_comm cp",
    reason="an all-to-all inside a ring has fewer ranks than cp and divides it (with cp ranks it is a2a: doubles)",
)
def ring_has_whole_groups(job: GridJob, c: Cells) -> Bools:
    inner, cp = INNER_RANKS[c["cp_comm"]], c["cp"]
    mask: Bools = (inner == 0) | ((inner < cp) & (cp % np.maximum(inner, 1) == 0))
    return mask


@_rule(
    "cp_comm",
    reason="an all-to-all inside a ring takes neither sliding windows nor attention sinks "
    "(NVIDIA/TransformerEngine pytorch/attention/dot_product_attention: context_parallel.py, utils.py)",
)
def ring_of_groups_sees_everything(job: GridJob, c: Cells) -> Bools:
    limited = any(job.model.windows) or job.model.has_attention_sinks
    mask: Bools = (INNER_RANKS[c["cp_comm"]] == 0) | (not limited)
    return mask


@_rule(
    "tp pp cp ep etp micro_batch_size",
    reason="world = tp*cp*dp*pp = etp*ep*edp*pp and global batch = micro_batch_size*dp*microbatches, all whole",
)
def whole_degrees(job: GridJob, c: Cells) -> Bools:
    return c.degrees.is_whole


# --- pipeline --------------------------------------------------------------------------------------------------------


@_rule("pp vpp schedule", reason="pp = 1 has no pipeline: vpp = 1 and the first plain schedule stand for all (doubles)")
def single_stage(job: GridJob, c: Cells) -> Bools:
    plain = [i for i, a in enumerate(job.algorithms) if a.virtual_stages == (1,)]
    chosen = plain[0] if plain else -1
    mask: Bools = (c["pp"] > 1) | ((c["vpp"] == 1) & (c["schedule"] == chosen))
    return mask


@_rule("pp vpp", reason="every virtual stage holds at least one layer, or the embedding, or the loss")
def stages_have_layers(job: GridJob, c: Cells) -> Bools:
    mask: Bools = c["pp"] * c["vpp"] <= job.model.num_layers + COUNTED_ENDS
    if any(layout.kind == "string" for layout in job.layouts):
        mask = everywhere(c, True)  # a layout string may leave stages without layers
    return mask


@_rule("vpp schedule", reason="interleaved needs vpp >= 2, V schedules vpp = 2, the others vpp = 1")
def schedule_chunks(job: GridJob, c: Cells) -> Bools:
    vpp, schedule = c["vpp"], c["schedule"]
    mask = everywhere(c, False)
    for code, algorithm in enumerate(job.algorithms):
        if algorithm.name == INTERLEAVED:
            suits: Bools = vpp > 1
        elif algorithm.virtual_stages is None:
            suits = vpp >= 1
        else:
            suits = np.isin(vpp, algorithm.virtual_stages)
        mask |= (schedule == code) & suits
    return mask


@_rule(
    "schedule pp microbatches",
    reason="the schedule has an order for that many stages and micro-batches as its launcher builds it (DualPipe: at "
    "least 2 * pp, AMD Primus' zbv 2 * pp - 1)",
)
def schedule_serves(job: GridJob, c: Cells) -> Bools:
    mask = everywhere(c, True)
    for code, algorithm in enumerate(job.algorithms):
        mask &= (c["schedule"] != code) | (c["pp"] == 1) | algorithm.serves(c.ints("pp"), c.ints("microbatches"))
    return mask


_holds(
    "groups_fill_the_pipeline",
    "microbatch_group == 0 or (pp <= microbatch_group <= microbatches "
    "and (microbatches % microbatch_group == 0 or microbatches % microbatch_group >= pp))",
    "a group of micro-batches has at least pp and leaves none or at least pp over (Megatron-LM "
    "megatron/core/pipeline_parallel/schedules.py)",
)


@_rule("microbatch_group pp microbatches", reason="groups of pp micro-batches are already there as 0 (doubles)")
def group_is_new(job: GridJob, c: Cells) -> Bools:
    if not job.has("microbatch_group", 0):
        return everywhere(c, True)
    mask: Bools = (c["microbatch_group"] != c["pp"]) | (c["microbatches"] % c["pp"] != 0)
    return mask


@_rule("pp vpp pipeline_layout", reason="the pipeline layout deals all layers to exactly pp * vpp virtual stages")
def layout_suits(job: GridJob, c: Cells) -> Bools:
    return job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout")) > 0


@_rule("pp vpp pipeline_layout", reason="an earlier layout of the axis deals the layers in the same way (doubles)")
def layout_is_new(job: GridJob, c: Cells) -> Bools:
    return job.first_to_say_so(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))


# --- recompute and offload -------------------------------------------------------------------------------------------


_holds(
    "recompute_modules",
    "('mla_up_proj' not in recompute or has_latent_attention) "
    "and ('moe_activation' not in recompute or has_experts) and ('full' not in recompute or recompute == 'full')",
    "recomputed modules exist in the model, and full recompute stands alone",
)


@_rule(
    "recompute_num_layers pp vpp pipeline_layout",
    reason="recompute_num_layers is at most the layers of the fullest virtual stage",
)
def recompute_layers(job: GridJob, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    return c["recompute_num_layers"] <= most


@_rule(
    "recompute_num_layers recompute_method pp vpp pipeline_layout",
    reason="recomputing every layer by count is already there as 'all' (doubles)",
)
def recompute_all_twice(job: GridJob, c: Cells) -> Bools:
    if not job.has("recompute_num_layers", 0):
        return everywhere(c, True)
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    block = c["recompute_method"] == RecomputeMethod.BLOCK
    mask: Bools = ~(block & (c["recompute_num_layers"] > 0) & (c["recompute_num_layers"] >= most))
    return mask


@_rule(
    "offload_layers pp vpp pipeline_layout", reason="offload_layers is at most the layers of the fullest virtual stage"
)
def offload_layers(job: GridJob, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    return c["offload_layers"] <= most


@_rule(
    "offload_modules offload_layers recompute",
    reason="offloaded modules exist in the model and keep their inputs: no full recompute, no offloaded layers beside "
    "them, attn_proj with core_attn (Megatron-Core transformer_config.py), a hardware file with host_copy_GBps",
)
def offloaded_modules(job: GridJob, c: Cells) -> Bools:
    flags, of_core = c.ints("offload_modules"), Offload.CORE_ATTN | Offload.ATTN_PROJ
    keeps = ((c.ints("recompute") & Recompute.FULL) == 0) & (c["offload_layers"] == 0)
    keeps &= (flags & of_core) != Offload.ATTN_PROJ
    keeps &= job.cluster.network.host_copy_bytes_per_s > 0.0
    if not job.model.is_moe:
        keeps &= (flags & (Offload.EXPERT_FC1 | Offload.MOE_ACT)) == 0
    mask: Bools = (flags == Offload.NONE) | keeps
    return mask


# --- experts ---------------------------------------------------------------------------------------------------------


@_rule(
    "exchange_overlap ep recompute",
    reason="overlapped expert exchange needs ep > 1 and no full recompute (Megatron-Core transformer_config.py)",
)
def exchange_overlap_exchanges(job: GridJob, c: Cells) -> Bools:
    exchanges = (c["ep"] > 1) & job.model.is_moe & (job.model.num_mtp_layers <= MOST_OVERLAPPED_MTP)
    is_full = (c.ints("recompute") & Recompute.FULL) != 0
    mask: Bools = ~c["exchange_overlap"].astype(bool) | (exchanges & ~is_full)
    return mask


_holds(
    "exchange_overlap_interleaves",
    "not exchange_overlap or pp == 1 or schedule == 'interleaved'",
    "overlapped expert exchange needs the interleaved schedule where pp > 1 (Megatron-Core)",
)


@_rule(
    "cuda_graph deepep dispatch_backend",
    reason="a graph of the whole iteration keeps token counts on the device: experts need the fused dispatcher "
    "HybridEP (NVIDIA-NeMo/Megatron-Bridge#3983; Megatron-Core moe_expert_rank_capacity_factor); graphs of the router "
    "need experts",
)
def graph_has_fused_dispatch(job: GridJob, c: Cells) -> Bools:
    graph = c.ints("cuda_graph")
    is_legal: Bools = (graph == CudaGraph.NONE) | (graph == CudaGraph.FULL)
    if job.model.is_moe:
        backend, is_usual = c.ints("dispatch_backend"), job.cluster.stack.memory.group_buffer_copies > 0
        is_hybrid = (backend == DispatchBackend.HYBRIDEP) | ((backend == DispatchBackend.STACK) & is_usual)
        is_legal = (graph != CudaGraph.FULL) | (c["deepep"].astype(bool) & is_hybrid)
    return is_legal


@_rule(
    "cuda_graph fp8 etp",
    reason="a graph of the whole iteration with experts needs products of device-side token counts, fused with the "
    "activation: Blackwell devices, MXFP8 or NVFP4, whole experts (Megatron-LM docs/user-guide/features/paged_stash.md "
    "and core/transformer/moe/experts.py _is_fused_impl_supported; TransformerEngine pytorch/ops/_common.py)",
)
def graph_has_grouped_products(job: GridJob, c: Cells) -> Bools:
    # Fused grouped products whose sizes are on the device came with the FP4 units of Blackwell.
    is_blackwell = is_nvidia(job.cluster.accelerator) and job.cluster.accelerator.fp4_peak_flops_per_s > 0
    is_fused = np.isin(c.ints("fp8"), (Fp8.MXFP8, Fp8.NVFP4)) & (c["etp"] == 1) & is_blackwell
    mask: Bools = (c.ints("cuda_graph") != CudaGraph.FULL) | (not job.model.is_moe) | is_fused
    return mask


_holds(
    "graph_suits_memory_savers",
    "(cuda_graph in ['none', 'full'] or ('full' not in recompute and offload_layers == 0)) "
    "and (cuda_graph == 'none' or sharding in ['none', 'distributed_optimizer'])",
    "graphs of modules run without full recompute and without offloading, and no graph with sharded weights "
    "(Megatron-Core transformer_config.py, training.py)",
)


@_rule("optimizer_offload", reason="a hardware file with host_copy_GBps and host_update_GBps says what the host takes")
def host_updates(job: GridJob, c: Cells) -> Bools:
    network = job.cluster.network
    is_known = min(network.host_copy_bytes_per_s, network.host_update_bytes_per_s) > 0.0
    mask: Bools = (c["optimizer_offload"] == 0) | is_known
    return mask


# --- precision and sharding ------------------------------------------------------------------------------------------


def is_nvidia(accelerator: Accelerator) -> bool:
    """Whether NVIDIA made it: CUDA-only kernels and formats."""
    return accelerator.vendor.lower() == "nvidia"


@_rule("fp8", reason="the accelerator has matrix units for the low-precision format")
def device_has_format(job: GridJob, c: Cells) -> Bools:
    accelerator, fp8 = job.cluster.accelerator, c["fp8"]
    has_fp8, has_fp4 = accelerator.fp8_peak_flops_per_s > 0, accelerator.fp4_peak_flops_per_s > 0
    mask: Bools = (fp8 == Fp8.NONE) | (has_fp8 & ~np.isin(fp8, (Fp8.MXFP8, Fp8.NVFP4, Fp8.MXFP4)))
    # Block scales in the matrix instruction itself arrived with FP4 (Blackwell, CDNA 4).
    block_formats = (Fp8.MXFP8, Fp8.NVFP4 if is_nvidia(accelerator) else Fp8.MXFP4)
    mask |= has_fp4 & np.isin(fp8, block_formats)
    return mask


@_rule(
    "fp8_attention fp8",
    reason="attention in FP8 needs an FP8 recipe other than block or row scales and a kernel of known rate on the "
    "device (NVIDIA/TransformerEngine pytorch/attention/dot_product_attention/utils.py get_attention_backend)",
)
def attention_has_format(job: GridJob, c: Cells) -> Bools:
    cluster = job.cluster
    has_kernel = bool(cluster.accelerator.attention.in_fp8(cluster.stack.kernels.attention_kernel))
    suits = has_kernel & np.isin(c.ints("fp8"), (Fp8.HYBRID, Fp8.DELAYED, Fp8.MXFP8, Fp8.NVFP4))
    return ~c["fp8_attention"].astype(bool) | suits


_holds(
    "shard_group_divides",
    "sharding != 'hsdp' or (1 < shard_group < dp * cp and dp * cp % shard_group == 0)",
    "HSDP shards over a proper divisor of the dp * cp replicas",
)


def has_replicas(job: GridJob, c: Cells) -> Bools:
    """Of the dense part, or of experts: without experts their replicas are a quotient of degrees and no ranks."""
    return (c.ints("dp") * c.ints("cp") > 1) | ((c.ints("edp") > 1) & job.model.is_moe)


@_rule("sharding dp cp edp", reason="with one replica the first sharding stands for all (doubles)")
def nothing_to_shard(job: GridJob, c: Cells) -> Bools:
    return has_replicas(job, c) | c.is_first_choice("sharding")


@_rule("overlap_grad_reduce dp cp edp", reason="with one replica there is no gradient traffic to overlap (doubles)")
def nothing_to_reduce(job: GridJob, c: Cells) -> Bools:
    return has_replicas(job, c) | c.is_first_choice("overlap_grad_reduce")


# --- rules of single frameworks ---------------------------------------------------------------------------------------


def _has_no_split_recompute(job: GridJob, c: Cells) -> Bools:
    splits = np.array([algorithm.splits_weight for algorithm in job.algorithms])
    mask: Bools = ~splits[c.ints("schedule")] | (c["recompute"] == Recompute.NONE)
    return mask


UNION_RULES = (
    Rule.of(
        "experts_need_sequence_parallel",
        "not has_experts or tp == 1 or sequence_parallel",
        "a model with experts under tensor parallelism needs sequence parallelism (Megatron-LM)",
    ),
    Rule.of(
        "interleaving_rounds",
        "schedule != 'interleaved' or microbatches % pp == 0",
        "interleaved needs micro-batches to be a multiple of pp (Megatron-LM)",
    ),
    Rule(
        name="split_weight_recompute",
        reads=("schedule", "recompute"),
        reason="schedules that split the weight gradient run without recompute (AMD Primus)",
        keeps=_has_no_split_recompute,
    ),
    Rule.of("deepep_has_experts", "not deepep or (ep > 1 and has_experts)", "DeepEP needs experts and ep > 1"),
    Rule.of(
        "sync_free_has_experts",
        "sync_free_stage == 0 or (ep > 1 and has_experts)",
        "sync-free stages need experts and ep > 1",
    ),
    Rule.of(
        "sync_free_implies_deepep",
        "sync_free_stage < 2 or (deepep and grouped_gemm == 'turbo')",
        "sync-free stages 2 and 3 bring DeepEP and the turbo grouped GEMM with them (AMD Primus)",
    ),
    Rule.of(
        "sharded_gradients_no_pipeline",
        "sharding in ['none', 'distributed_optimizer'] or pp == 1",
        "ZeRO-2, FSDP2 and HSDP run without pipeline parallelism (Megatron-LM, DeepSpeed)",
    ),
)
"""Rules of single frameworks that bind a search over any framework; one framework brings its own instead."""


# --- axes that matter only sometimes --------------------------------------------------------------------------------

CONDITIONALS: tuple[tuple[str, Keeps], ...] = (
    ("recompute_num_layers", parse("'full' in recompute")),
    ("recompute_method", parse("'full' in recompute and recompute_num_layers > 0")),
    ("microbatch_group", parse("schedule == 'interleaved' and pp > 1")),
    ("shard_group", parse("sharding == 'hsdp'")),
    ("grouped_gemm", parse("has_experts")),
    ("dispatch_backend", parse("deepep")),
    ("sequence_parallel", parse("tp > 1")),
    # Overlapped tensor-parallel traffic is that of sequence parallelism (Megatron-LM training/arguments.py).
    ("tp_overlap", parse("tp > 1 and sequence_parallel")),
    ("cp_comm", parse("cp > 1")),
)
"""Every axis that matters only sometimes, and where: elsewhere one row stays, whose column holds the knob's default.
One that depends on another conditional axis comes after it."""
