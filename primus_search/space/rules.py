"""Legality: named, vectorised rules with a reason a person can act on, and the axes that matter only sometimes.

A rule says which columns it reads, so that the enumerator can apply it the moment those are known. A rule that
removes doubles (two rows that mean the same run) says so in its reason.

Sources: Megatron-LM `megatron/training/arguments.py` and `core/transformer/transformer_config.py` (core 0.12-0.15) for
divisibility, interleaving, sequence parallelism with experts and FSDP2 without pipeline; AMD Primus
`tuning_agent/legality.py` for recompute with split weight gradients and sync-free stages, and its Megatron trainer for
what sync-free stages 2 and 3 switch on (DeepEP and the turbo grouped GEMM); arXiv:2504.14960 for parallel folding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from primus_search.candidates import Bools
from primus_search.knobs import (
    CpComm,
    CudaGraph,
    DispatchBackend,
    Fp8,
    GroupedGemm,
    Offload,
    Recompute,
    RecomputeMethod,
    Sharding,
)
from primus_search.layout import COUNTED_ENDS
from primus_search.model import Mamba2, Model
from primus_search.space.context import Cells, Column, GridJob

INTERLEAVED = "interleaved"
SYNC_FREE_NEEDS_DEEPEP = 2  # from this stage on Primus turns on DeepEP and the turbo grouped GEMM itself

MOST_OVERLAPPED_MTP = 1
"""MTP modules that overlapped expert exchange supports (Megatron-Core transformer_config.py)."""

BEFORE_BLACKWELL = ("sm80", "sm89", "sm90")
"""Architectures without fused grouped products whose sizes are on the device."""

Keeps = Callable[[GridJob, Cells], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a row legal. `reads` are column names; `keeps` gets the job and the cells and returns a mask."""

    name: str
    reads: tuple[str, ...]
    reason: str
    keeps: Keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An axis that matters only where `is_active`; elsewhere one row stays and its column holds the knob's default."""

    axis: str
    reads: tuple[str, ...]
    is_active: Keeps


RULES: list[Rule] = []
"""Rules of every job, in the order in which what they remove is counted."""
UNION_RULES: list[Rule] = []
"""Rules of single frameworks that bind a search over any framework; one framework brings its own instead."""
CONDITIONALS: list[Conditional] = []
"""Every axis that matters only sometimes; one that depends on another conditional axis comes after it."""


def _rule(reads: str, *, reason: str, rules: list[Rule] = RULES) -> Callable[[Keeps], Keeps]:
    """Add a predicate on some columns, blanks between, to the rules, named as the function."""

    def add(keeps: Keeps) -> Keeps:
        rules.append(Rule(name=keeps.__name__, reads=tuple(reads.split()), reason=reason, keeps=keeps))
        return keeps

    return add


_union_rule = partial(_rule, rules=UNION_RULES)
"""Add a predicate to the rules of a search over any framework."""


def _matters(axis: str, reads: str = "") -> Callable[[Keeps], Keeps]:
    """Add a predicate on some columns that tells where an axis has an effect."""

    def add(is_active: Keeps) -> Keeps:
        CONDITIONALS.append(Conditional(axis=axis, reads=tuple(reads.split()), is_active=is_active))
        return is_active

    return add


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
    reason="an all-to-all of context parallelism deals out whole heads: tp * cp divides heads and key-value heads "
    "(NVIDIA/TransformerEngine pytorch/attention/dot_product_attention/context_parallel.py)",
)
def exchanges_whole_heads(job: GridJob, c: Cells) -> Bools:
    model, ranks = job.model, c["tp"] * c["cp"]
    sizes = [model.num_heads] if model.latent is not None else [model.num_heads, model.num_kv_heads]
    mask: Bools = (c["cp_comm"] != CpComm.A2A) | divides_all(ranks, sizes)
    return mask


@_union_rule(
    "sequence_parallel tp",
    reason="a model with experts under tensor parallelism needs sequence parallelism (Megatron-LM)",
)
def experts_need_sequence_parallel(job: GridJob, c: Cells) -> Bools:
    if not job.model.is_moe:
        return everywhere(c, True)
    mask: Bools = (c["tp"] == 1) | c["sequence_parallel"].astype(bool)
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
    reason="the schedule has an order for that many stages and micro-batches (DualPipe: at least 2 * pp)",
)
def schedule_serves(job: GridJob, c: Cells) -> Bools:
    mask = everywhere(c, True)
    for code, algorithm in enumerate(job.algorithms):
        mask &= (c["schedule"] != code) | (c["pp"] == 1) | algorithm.serves(c.ints("pp"), c.ints("microbatches"))
    return mask


@_union_rule("schedule pp microbatches", reason="interleaved needs micro-batches to be a multiple of pp (Megatron-LM)")
def interleaving_rounds(job: GridJob, c: Cells) -> Bools:
    if INTERLEAVED not in job.schedules:
        return everywhere(c, True)
    interleaved = c["schedule"] == job.schedules.index(INTERLEAVED)
    mask: Bools = ~interleaved | (c["microbatches"] % c["pp"] == 0)
    return mask


@_rule(
    "microbatch_group pp microbatches",
    reason="a group of micro-batches has at least pp and leaves none or at least pp over (Megatron-LM "
    "megatron/core/pipeline_parallel/schedules.py)",
)
def groups_fill_the_pipeline(job: GridJob, c: Cells) -> Bools:
    group, microbatches = np.maximum(c.ints("microbatch_group"), 1), c.ints("microbatches")
    rest = microbatches % group
    fills = (group >= c["pp"]) & (group <= microbatches) & ((rest == 0) | (rest >= c["pp"]))
    mask: Bools = (c["microbatch_group"] == 0) | fills
    return mask


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


@_rule("recompute", reason="recomputed modules exist in the model, and full recompute stands alone")
def recompute_modules(job: GridJob, c: Cells) -> Bools:
    flags = c.ints("recompute")
    mask = everywhere(c, True)
    if job.model.latent is None:
        mask &= (flags & Recompute.MLA_UP_PROJ) == 0
    if not job.model.is_moe:
        mask &= (flags & Recompute.MOE_ACTIVATION) == 0
    mask &= ((flags & Recompute.FULL) == 0) | (flags == Recompute.FULL)
    return mask


@_rule(
    "recompute_num_layers pp vpp pipeline_layout",
    reason="recompute_num_layers is at most the layers of the fullest virtual stage",
)
def recompute_layers(job: GridJob, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["recompute_num_layers"] <= most
    return mask


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


@_union_rule("schedule recompute", reason="schedules that split the weight gradient run without recompute (AMD Primus)")
def split_weight_recompute(job: GridJob, c: Cells) -> Bools:
    splits = np.array([algorithm.splits_weight for algorithm in job.algorithms])
    mask: Bools = ~splits[c.ints("schedule")] | (c["recompute"] == Recompute.NONE)
    return mask


@_rule(
    "offload_layers pp vpp pipeline_layout", reason="offload_layers is at most the layers of the fullest virtual stage"
)
def offload_layers(job: GridJob, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["offload_layers"] <= most
    return mask


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


@_union_rule("deepep ep", reason="DeepEP needs experts and ep > 1")
def deepep_has_experts(job: GridJob, c: Cells) -> Bools:
    mask: Bools = ~c["deepep"].astype(bool) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


@_union_rule("sync_free_stage ep", reason="sync-free stages need experts and ep > 1")
def sync_free_has_experts(job: GridJob, c: Cells) -> Bools:
    mask: Bools = (c["sync_free_stage"] == 0) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


@_union_rule(
    "sync_free_stage deepep grouped_gemm",
    reason="sync-free stages 2 and 3 bring DeepEP and the turbo grouped GEMM with them (AMD Primus)",
)
def sync_free_implies_deepep(job: GridJob, c: Cells) -> Bools:
    turbo = c["grouped_gemm"] == GroupedGemm.TURBO
    mask: Bools = (c["sync_free_stage"] < SYNC_FREE_NEEDS_DEEPEP) | (c["deepep"].astype(bool) & turbo)
    return mask


@_rule(
    "exchange_overlap ep recompute",
    reason="overlapped expert exchange needs ep > 1 and no full recompute (Megatron-Core transformer_config.py)",
)
def exchange_overlap_exchanges(job: GridJob, c: Cells) -> Bools:
    exchanges = (c["ep"] > 1) & job.model.is_moe & (job.model.num_mtp_layers <= MOST_OVERLAPPED_MTP)
    is_full = (c.ints("recompute") & Recompute.FULL) != 0
    mask: Bools = ~c["exchange_overlap"].astype(bool) | (exchanges & ~is_full)
    return mask


@_rule(
    "exchange_overlap pp schedule",
    reason="overlapped expert exchange needs the interleaved schedule where pp > 1 (Megatron-Core)",
)
def exchange_overlap_interleaves(job: GridJob, c: Cells) -> Bools:
    mask: Bools = ~c["exchange_overlap"].astype(bool) | (c["pp"] == 1) | interleaves(job, c)
    return mask


@_rule(
    "cuda_graph deepep dispatch_backend",
    reason="a graph of the whole iteration keeps token counts on the device: experts need the fused dispatcher "
    "HybridEP (NVIDIA-NeMo/Megatron-Bridge#3983; Megatron-Core moe_expert_rank_capacity_factor); graphs of the router "
    "need experts",
)
def graph_has_fused_dispatch(job: GridJob, c: Cells) -> Bools:
    graph = c.ints("cuda_graph")
    if not job.model.is_moe:
        dense: Bools = (graph == CudaGraph.NONE) | (graph == CudaGraph.FULL)
        return dense
    backend, is_usual = c.ints("dispatch_backend"), job.cluster.stack.memory.group_buffer_copies > 0
    is_hybrid = (backend == DispatchBackend.HYBRIDEP) | ((backend == DispatchBackend.STACK) & is_usual)
    mask: Bools = (graph != CudaGraph.FULL) | (c["deepep"].astype(bool) & is_hybrid)
    return mask


@_rule(
    "cuda_graph fp8 etp",
    reason="a graph of the whole iteration with experts needs products of device-side token counts, fused with the "
    "activation: Blackwell devices, MXFP8 or NVFP4, whole experts (Megatron-LM docs/user-guide/features/paged_stash.md "
    "and core/transformer/moe/experts.py _is_fused_impl_supported; TransformerEngine pytorch/ops/_common.py)",
)
def graph_has_grouped_products(job: GridJob, c: Cells) -> Bools:
    is_newer = job.cluster.accelerator.arch not in BEFORE_BLACKWELL
    is_fused = np.isin(c.ints("fp8"), (Fp8.MXFP8, Fp8.NVFP4)) & (c["etp"] == 1) & is_newer
    mask: Bools = (c.ints("cuda_graph") != CudaGraph.FULL) | (not job.model.is_moe) | is_fused
    return mask


@_rule(
    "cuda_graph recompute offload_layers sharding",
    reason="graphs of modules run without full recompute and without offloading, and no graph with sharded weights "
    "(Megatron-Core transformer_config.py, training.py)",
)
def graph_suits_memory_savers(job: GridJob, c: Cells) -> Bools:
    graph = c.ints("cuda_graph")
    of_modules = (graph == CudaGraph.ROUTER) | (graph == CudaGraph.PARTIAL)
    is_full = (c.ints("recompute") & Recompute.FULL) != 0
    clashes = of_modules & (is_full | (c["offload_layers"] > 0)) | (graph > 0) & (c["sharding"] >= Sharding.ZERO2)
    mask: Bools = ~clashes
    return mask


# --- precision and sharding ------------------------------------------------------------------------------------------


@_rule("fp8", reason="the accelerator has matrix units for the low-precision format")
def device_has_format(job: GridJob, c: Cells) -> Bools:
    accelerator, fp8 = job.cluster.accelerator, c["fp8"]
    has_fp8, has_fp4 = accelerator.fp8_peak_flops_per_s > 0, accelerator.fp4_peak_flops_per_s > 0
    is_nvidia = accelerator.vendor.lower() == "nvidia"
    mask: Bools = (fp8 == Fp8.NONE) | (has_fp8 & (fp8 != Fp8.NVFP4) & (fp8 != Fp8.MXFP8))
    # Block scales in the matrix instruction itself arrived with FP4 (Blackwell, CDNA 4).
    mask |= (has_fp4 & (fp8 == Fp8.MXFP8)) | (has_fp4 & is_nvidia & (fp8 == Fp8.NVFP4))
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
    mask: Bools = ~c["fp8_attention"].astype(bool) | suits
    return mask


@_union_rule("sharding pp", reason="ZeRO-2, FSDP2 and HSDP run without pipeline parallelism (Megatron-LM, DeepSpeed)")
def sharded_gradients_no_pipeline(job: GridJob, c: Cells) -> Bools:
    mask: Bools = (c["sharding"] < Sharding.ZERO2) | (c["pp"] == 1)
    return mask


@_rule("sharding shard_group dp cp", reason="HSDP shards over a proper divisor of the dp * cp replicas")
def shard_group_divides(job: GridJob, c: Cells) -> Bools:
    hybrid = c["sharding"] == Sharding.HSDP
    replicas = c.ints("dp") * c.ints("cp")
    group = np.maximum(c.ints("shard_group"), 1)
    proper = (c["shard_group"] > 1) & (group < replicas) & (replicas % group == 0)
    mask: Bools = ~hybrid | proper
    return mask


def has_replicas(job: GridJob, c: Cells) -> Bools:
    """Of the dense part, or of experts: without experts their replicas are a quotient of degrees and no ranks."""
    mask: Bools = (c.ints("dp") * c.ints("cp") > 1) | ((c.ints("edp") > 1) & job.model.is_moe)
    return mask


@_rule("sharding dp cp edp", reason="with one replica the first sharding stands for all (doubles)")
def nothing_to_shard(job: GridJob, c: Cells) -> Bools:
    mask: Bools = has_replicas(job, c) | c.is_first_choice("sharding")
    return mask


@_rule("overlap_grad_reduce dp cp edp", reason="with one replica there is no gradient traffic to overlap (doubles)")
def nothing_to_reduce(job: GridJob, c: Cells) -> Bools:
    mask: Bools = has_replicas(job, c) | c.is_first_choice("overlap_grad_reduce")
    return mask


# --- axes that matter only sometimes --------------------------------------------------------------------------------


@_matters("recompute_num_layers", "recompute")
def is_full(job: GridJob, c: Cells) -> Bools:
    full: Bools = (c.ints("recompute") & Recompute.FULL) != 0
    return full


@_matters("recompute_method", "recompute recompute_num_layers")
def counts_layers(job: GridJob, c: Cells) -> Bools:
    return is_full(job, c) & (c["recompute_num_layers"] > 0)


@_matters("microbatch_group", "schedule pp")
def interleaves(job: GridJob, c: Cells) -> Bools:
    is_interleaved = np.array([name == INTERLEAVED for name in job.schedules])
    mask: Bools = is_interleaved[c.ints("schedule")] & (c["pp"] > 1)
    return mask


@_matters("shard_group", "sharding")
def shards_in_groups(job: GridJob, c: Cells) -> Bools:
    groups: Bools = c["sharding"] == Sharding.HSDP
    return groups


@_matters("grouped_gemm")
def has_experts(job: GridJob, c: Cells) -> Bools:
    return everywhere(c, job.model.is_moe)


@_matters("dispatch_backend", "deepep")
def dispatches_fused(job: GridJob, c: Cells) -> Bools:
    fused: Bools = c["deepep"].astype(bool)
    return fused


@_matters("sequence_parallel", "tp")
def splits_tensors(job: GridJob, c: Cells) -> Bools:
    splits: Bools = c["tp"] > 1
    return splits


@_matters("tp_overlap", "tp sequence_parallel")
def splits_sequence(job: GridJob, c: Cells) -> Bools:
    """Overlapped tensor-parallel traffic is that of sequence parallelism (Megatron-LM training/arguments.py)."""
    splits: Bools = (c["tp"] > 1) & c["sequence_parallel"].astype(bool)
    return splits


@_matters("cp_comm", "cp")
def splits_context(job: GridJob, c: Cells) -> Bools:
    splits: Bools = c["cp"] > 1
    return splits
