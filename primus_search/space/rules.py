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

import numpy as np

from primus_search.candidates import Bools, Fp8, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.space.context import Cells, Column, Job

INTERLEAVED = "interleaved"
SYNC_FREE_NEEDS_DEEPEP = 2  # from this stage on Primus turns on DeepEP and the turbo grouped GEMM itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a row legal. `reads` are column names; `keeps` gets the job and the cells and returns a mask.

    A monotone rule may be asked before all its columns are known: what it drops at their neutral values it would drop
    at any value.
    """

    name: str
    reads: tuple[str, ...]
    reason: str
    keeps: Callable[[Job, Cells], Bools]
    is_monotone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An axis that matters only where `is_active`; elsewhere one row stays and its column holds `neutral`."""

    axis: str
    reads: tuple[str, ...]
    neutral: int | bool
    is_active: Callable[[Job, Cells], Bools]


def _everywhere(cells: Cells, claim: bool) -> Bools:
    return np.full(len(cells), claim)


def _divides_all(degree: Column, sizes: list[int]) -> Bools:
    mask: Bools = np.logical_and.reduce([size % degree == 0 for size in sizes])
    return mask


# --- parallel degrees ----------------------------------------------------------------------------------------------


def _tp_divides(job: Job, c: Cells) -> Bools:
    model, tp = job.model, c["tp"]
    sizes = [model.num_heads, model.hidden]
    if not all(model.moe_layers):
        sizes.append(model.ffn_hidden)
    if model.moe and model.moe.shared_ffn_hidden:
        sizes.append(model.moe.shared_ffn_hidden)
    mask = _divides_all(tp, sizes)
    if model.latent is None:
        mask &= (model.num_kv_heads % tp == 0) | (tp % model.num_kv_heads == 0)
    return mask


def _etp_divides(job: Job, c: Cells) -> Bools:
    return _divides_all(c["etp"], [job.model.moe.expert_ffn_hidden if job.model.moe else 1])


def _ep_divides(job: Job, c: Cells) -> Bools:
    return _divides_all(c["ep"], [job.model.moe.num_experts if job.model.is_moe and job.model.moe else 1])


def _cp_splits_sequence(job: Job, c: Cells) -> Bools:
    cp = c["cp"]
    mask: Bools = (cp == 1) | (job.workload.seq_length % (2 * cp) == 0)
    return mask


def _sequence_parallel_splits(job: Job, c: Cells) -> Bools:
    mask: Bools = ~c["sequence_parallel"].astype(bool) | (job.workload.seq_length % (c["tp"] * c["cp"]) == 0)
    return mask


def _experts_need_sequence_parallel(job: Job, c: Cells) -> Bools:
    if not job.model.is_moe:
        return _everywhere(c, True)
    mask: Bools = (c["tp"] == 1) | c["sequence_parallel"].astype(bool)
    return mask


def _degrees_whole(job: Job, c: Cells) -> Bools:
    return c.degrees.is_whole


# --- pipeline ------------------------------------------------------------------------------------------------------


def _single_stage(job: Job, c: Cells) -> Bools:
    plain = [i for i, a in enumerate(job.algorithms) if a.virtual_stages == (1,)]
    chosen = plain[0] if plain else -1
    mask: Bools = (c["pp"] > 1) | ((c["vpp"] == 1) & (c["schedule"] == chosen))
    return mask


def _schedule_chunks(job: Job, c: Cells) -> Bools:
    vpp, schedule = c["vpp"], c["schedule"]
    mask = _everywhere(c, False)
    for code, algorithm in enumerate(job.algorithms):
        if algorithm.name == INTERLEAVED:
            suits: Bools = vpp > 1
        elif algorithm.virtual_stages is None:
            suits = vpp >= 1
        else:
            suits = np.isin(vpp, algorithm.virtual_stages)
        mask |= (schedule == code) & suits
    return mask


def _schedule_serves(job: Job, c: Cells) -> Bools:
    mask = _everywhere(c, True)
    for code, algorithm in enumerate(job.algorithms):
        mask &= (c["schedule"] != code) | (c["pp"] == 1) | algorithm.serves(c.ints("pp"), c.ints("microbatches"))
    return mask


def _interleaving_rounds(job: Job, c: Cells) -> Bools:
    if INTERLEAVED not in job.schedules:
        return _everywhere(c, True)
    interleaved = c["schedule"] == job.schedules.index(INTERLEAVED)
    mask: Bools = ~interleaved | (c["microbatches"] % c["pp"] == 0)
    return mask


def _stages_have_layers(job: Job, c: Cells) -> Bools:
    mask: Bools = c["pp"] * c["vpp"] <= job.model.num_layers
    if any(layout.kind == "string" for layout in job.layouts):
        mask = _everywhere(c, True)  # a layout string may leave stages without layers
    return mask


def _layout_suits(job: Job, c: Cells) -> Bools:
    return job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout")) > 0


def _layout_is_new(job: Job, c: Cells) -> Bools:
    return job.first_to_say_so(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))


# --- recompute and offload -----------------------------------------------------------------------------------------


def _recompute_modules(job: Job, c: Cells) -> Bools:
    flags = c.ints("recompute")
    mask = _everywhere(c, True)
    if job.model.latent is None:
        mask &= (flags & Recompute.MLA_UP_PROJ) == 0
    if not job.model.is_moe:
        mask &= (flags & Recompute.MOE_ACTIVATION) == 0
    mask &= ((flags & Recompute.FULL) == 0) | (flags == Recompute.FULL)
    return mask


def _recompute_layers(job: Job, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["recompute_num_layers"] <= most
    return mask


def _recompute_all_twice(job: Job, c: Cells) -> Bools:
    if not job.has("recompute_num_layers", 0):
        return _everywhere(c, True)
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    block = c["recompute_method"] == RecomputeMethod.BLOCK
    mask: Bools = ~(block & (c["recompute_num_layers"] > 0) & (c["recompute_num_layers"] >= most))
    return mask


def _split_weight_recompute(job: Job, c: Cells) -> Bools:
    splits = np.array([algorithm.splits_weight for algorithm in job.algorithms])
    mask: Bools = ~splits[c.ints("schedule")] | (c["recompute"] == Recompute.NONE)
    return mask


def _offload_layers(job: Job, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["offload_layers"] <= most
    return mask


# --- experts -------------------------------------------------------------------------------------------------------


def _deepep_has_experts(job: Job, c: Cells) -> Bools:
    mask: Bools = ~c["deepep"].astype(bool) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


def _sync_free_has_experts(job: Job, c: Cells) -> Bools:
    mask: Bools = (c["sync_free_stage"] == 0) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


def _sync_free_implies(job: Job, c: Cells) -> Bools:
    turbo = c["grouped_gemm"] == GroupedGemm.TURBO
    mask: Bools = (c["sync_free_stage"] < SYNC_FREE_NEEDS_DEEPEP) | (c["deepep"].astype(bool) & turbo)
    return mask


# --- precision and sharding ----------------------------------------------------------------------------------------


def _device_has_format(job: Job, c: Cells) -> Bools:
    accelerator, fp8 = job.cluster.accelerator, c["fp8"]
    has_fp8, has_fp4 = accelerator.fp8_peak_flops_per_s > 0, accelerator.fp4_peak_flops_per_s > 0
    is_nvidia = accelerator.vendor.lower() == "nvidia"
    mask: Bools = (fp8 == Fp8.NONE) | (has_fp8 & (fp8 != Fp8.NVFP4) & (fp8 != Fp8.MXFP8))
    # Block scales in the matrix instruction itself arrived with FP4 (Blackwell, CDNA 4).
    mask |= (has_fp4 & (fp8 == Fp8.MXFP8)) | (has_fp4 & is_nvidia & (fp8 == Fp8.NVFP4))
    return mask


def _sharded_gradients_pipeline(job: Job, c: Cells) -> Bools:
    mask: Bools = (c["sharding"] < Sharding.ZERO2) | (c["pp"] == 1)
    return mask


def _shard_group_divides(job: Job, c: Cells) -> Bools:
    hybrid = c["sharding"] == Sharding.HSDP
    replicas = c.ints("dp") * c.ints("cp")
    group = np.maximum(c.ints("shard_group"), 1)
    proper = (c["shard_group"] > 1) & (group < replicas) & (replicas % group == 0)
    mask: Bools = ~hybrid | proper
    return mask


def _has_replicas(c: Cells) -> Bools:
    mask: Bools = (c.ints("dp") * c.ints("cp") > 1) | (c.ints("edp") > 1)
    return mask


def _nothing_to_shard(job: Job, c: Cells) -> Bools:
    mask: Bools = _has_replicas(c) | c.is_first_choice("sharding")
    return mask


def _nothing_to_reduce(job: Job, c: Cells) -> Bools:
    mask: Bools = _has_replicas(c) | c.is_first_choice("overlap_grad_reduce")
    return mask


RULES: tuple[Rule, ...] = (
    Rule(
        name="tp_divides_model",
        reads=("tp",),
        keeps=_tp_divides,
        reason="tp divides heads, hidden and ffn sizes, and divides kv heads or is a multiple of them",
    ),
    Rule(
        name="ep_divides_experts",
        reads=("ep",),
        keeps=_ep_divides,
        reason="ep divides the number of experts; a dense model has ep = 1",
    ),
    Rule(
        name="etp_divides_expert",
        reads=("etp",),
        keeps=_etp_divides,
        reason="etp divides the inner size of one expert; a dense model has etp = 1",
    ),
    Rule(
        name="cp_splits_sequence",
        reads=("cp",),
        keeps=_cp_splits_sequence,
        reason="the sequence splits into 2 * cp equal parts (causal load balance)",
    ),
    Rule(
        name="sequence_parallel_splits",
        reads=("sequence_parallel", "tp", "cp"),
        keeps=_sequence_parallel_splits,
        reason="the sequence splits into tp * cp equal parts under sequence parallelism",
    ),
    Rule(
        name="experts_need_sequence_parallel",
        reads=("sequence_parallel", "tp"),
        keeps=_experts_need_sequence_parallel,
        reason="a model with experts under tensor parallelism needs sequence parallelism (Megatron-LM)",
    ),
    Rule(
        name="whole_degrees",
        reads=("tp", "pp", "cp", "ep", "etp", "micro_batch_size"),
        keeps=_degrees_whole,
        reason="world = tp*cp*dp*pp = etp*ep*edp*pp and global batch = micro_batch_size*dp*microbatches, all whole",
    ),
    Rule(
        name="single_stage",
        reads=("pp", "vpp", "schedule"),
        keeps=_single_stage,
        reason="pp = 1 has no pipeline: vpp = 1 and the first plain schedule stand for all (doubles)",
    ),
    Rule(
        name="stages_have_layers",
        reads=("pp", "vpp"),
        keeps=_stages_have_layers,
        reason="every virtual stage holds at least one layer",
    ),
    Rule(
        name="schedule_chunks",
        reads=("vpp", "schedule"),
        keeps=_schedule_chunks,
        reason="interleaved needs vpp >= 2, V schedules vpp = 2, the others vpp = 1",
    ),
    Rule(
        name="schedule_serves",
        reads=("schedule", "pp", "microbatches"),
        keeps=_schedule_serves,
        reason="the schedule has an order for that many stages and micro-batches (DualPipe: at least 2 * pp)",
    ),
    Rule(
        name="interleaving_rounds",
        reads=("schedule", "pp", "microbatches"),
        keeps=_interleaving_rounds,
        reason="interleaved needs micro-batches to be a multiple of pp (Megatron-LM)",
    ),
    Rule(
        name="layout_suits",
        reads=("pp", "vpp", "pipeline_layout"),
        keeps=_layout_suits,
        reason="the pipeline layout deals all layers to exactly pp * vpp virtual stages",
    ),
    Rule(
        name="layout_is_new",
        reads=("pp", "vpp", "pipeline_layout"),
        keeps=_layout_is_new,
        reason="an earlier layout of the axis deals the layers in the same way (doubles)",
    ),
    Rule(
        name="recompute_modules",
        reads=("recompute",),
        keeps=_recompute_modules,
        reason="recomputed modules exist in the model, and full recompute stands alone",
    ),
    Rule(
        name="recompute_layers",
        reads=("recompute_num_layers", "pp", "vpp", "pipeline_layout"),
        keeps=_recompute_layers,
        reason="recompute_num_layers is at most the layers of the fullest virtual stage",
    ),
    Rule(
        name="recompute_all_twice",
        reads=("recompute_num_layers", "recompute_method", "pp", "vpp", "pipeline_layout"),
        keeps=_recompute_all_twice,
        reason="recomputing every layer by count is already there as 'all' (doubles)",
    ),
    Rule(
        name="split_weight_recompute",
        reads=("schedule", "recompute"),
        keeps=_split_weight_recompute,
        reason="schedules that split the weight gradient run without recompute (AMD Primus)",
    ),
    Rule(
        name="offload_layers",
        reads=("offload_layers", "pp", "vpp", "pipeline_layout"),
        keeps=_offload_layers,
        reason="offload_layers is at most the layers of the fullest virtual stage",
    ),
    Rule(
        name="deepep_has_experts",
        reads=("deepep", "ep"),
        keeps=_deepep_has_experts,
        reason="DeepEP needs experts and ep > 1",
    ),
    Rule(
        name="sync_free_has_experts",
        reads=("sync_free_stage", "ep"),
        keeps=_sync_free_has_experts,
        reason="sync-free stages need experts and ep > 1",
    ),
    Rule(
        name="sync_free_implies_deepep",
        reads=("sync_free_stage", "deepep", "grouped_gemm"),
        keeps=_sync_free_implies,
        reason="sync-free stages 2 and 3 bring DeepEP and the turbo grouped GEMM with them (AMD Primus)",
    ),
    Rule(
        name="device_has_format",
        reads=("fp8",),
        keeps=_device_has_format,
        reason="the accelerator has matrix units for the low-precision format",
    ),
    Rule(
        name="sharded_gradients_no_pipeline",
        reads=("sharding", "pp"),
        keeps=_sharded_gradients_pipeline,
        reason="ZeRO-2, FSDP2 and HSDP run without pipeline parallelism (Megatron-LM, DeepSpeed)",
    ),
    Rule(
        name="shard_group_divides",
        reads=("sharding", "shard_group", "dp", "cp"),
        keeps=_shard_group_divides,
        reason="HSDP shards over a proper divisor of the dp * cp replicas",
    ),
    Rule(
        name="nothing_to_shard",
        reads=("sharding", "dp", "cp", "edp"),
        keeps=_nothing_to_shard,
        reason="with one replica the first sharding stands for all (doubles)",
    ),
    Rule(
        name="nothing_to_reduce",
        reads=("overlap_grad_reduce", "dp", "cp", "edp"),
        keeps=_nothing_to_reduce,
        reason="with one replica there is no gradient traffic to overlap (doubles)",
    ),
)


def _is_full(job: Job, c: Cells) -> Bools:
    full: Bools = (c.ints("recompute") & Recompute.FULL) != 0
    return full


CONDITIONALS: tuple[Conditional, ...] = (
    Conditional(axis="recompute_num_layers", reads=("recompute",), neutral=0, is_active=_is_full),
    Conditional(
        axis="recompute_method",
        reads=("recompute", "recompute_num_layers"),
        neutral=int(RecomputeMethod.UNIFORM),
        is_active=lambda job, c: _is_full(job, c) & (c["recompute_num_layers"] > 0),
    ),
    Conditional(
        axis="shard_group",
        reads=("sharding",),
        neutral=0,
        is_active=lambda job, c: c["sharding"] == Sharding.HSDP,
    ),
    Conditional(
        axis="grouped_gemm",
        reads=(),
        neutral=int(GroupedGemm.TURBO),
        is_active=lambda job, c: _everywhere(c, job.model.is_moe),
    ),
    Conditional(
        axis="sequence_parallel",
        reads=("tp",),
        neutral=False,
        is_active=lambda job, c: c["tp"] > 1,
    ),
)
