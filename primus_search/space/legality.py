"""What makes a cell of the grid legal, one vectorised predicate per rule; `rules` names them and says why."""

import numpy as np

from primus_search.candidates import Bools, Fp8, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.space.context import Cells, Column, Job

INTERLEAVED = "interleaved"
SYNC_FREE_NEEDS_DEEPEP = 2  # from this stage on Primus turns on DeepEP and the turbo grouped GEMM itself


def everywhere(cells: Cells, claim: bool) -> Bools:
    return np.full(len(cells), claim)


def divides_all(degree: Column, sizes: list[int]) -> Bools:
    mask: Bools = np.logical_and.reduce([size % degree == 0 for size in sizes])
    return mask


# --- parallel degrees ----------------------------------------------------------------------------------------------


def tp_divides(job: Job, c: Cells) -> Bools:
    model, tp = job.model, c["tp"]
    sizes = [model.num_heads, model.hidden]
    if not all(model.moe_layers):
        sizes.append(model.ffn_hidden)
    if model.moe and model.moe.shared_ffn_hidden:
        sizes.append(model.moe.shared_ffn_hidden)
    mask = divides_all(tp, sizes)
    if model.latent is None:
        mask &= (model.num_kv_heads % tp == 0) | (tp % model.num_kv_heads == 0)
    return mask


def etp_divides(job: Job, c: Cells) -> Bools:
    return divides_all(c["etp"], [job.model.moe.expert_ffn_hidden if job.model.moe else 1])


def ep_divides(job: Job, c: Cells) -> Bools:
    return divides_all(c["ep"], [job.model.moe.num_experts if job.model.is_moe and job.model.moe else 1])


def cp_splits_sequence(job: Job, c: Cells) -> Bools:
    cp = c["cp"]
    mask: Bools = (cp == 1) | (job.workload.seq_length % (2 * cp) == 0)
    return mask


def sequence_parallel_splits(job: Job, c: Cells) -> Bools:
    mask: Bools = ~c["sequence_parallel"].astype(bool) | (job.workload.seq_length % (c["tp"] * c["cp"]) == 0)
    return mask


def experts_need_sequence_parallel(job: Job, c: Cells) -> Bools:
    if not job.model.is_moe:
        return everywhere(c, True)
    mask: Bools = (c["tp"] == 1) | c["sequence_parallel"].astype(bool)
    return mask


def degrees_whole(job: Job, c: Cells) -> Bools:
    return c.degrees.is_whole


# --- pipeline ------------------------------------------------------------------------------------------------------


def single_stage(job: Job, c: Cells) -> Bools:
    plain = [i for i, a in enumerate(job.algorithms) if a.virtual_stages == (1,)]
    chosen = plain[0] if plain else -1
    mask: Bools = (c["pp"] > 1) | ((c["vpp"] == 1) & (c["schedule"] == chosen))
    return mask


def schedule_chunks(job: Job, c: Cells) -> Bools:
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


def schedule_serves(job: Job, c: Cells) -> Bools:
    mask = everywhere(c, True)
    for code, algorithm in enumerate(job.algorithms):
        mask &= (c["schedule"] != code) | (c["pp"] == 1) | algorithm.serves(c.ints("pp"), c.ints("microbatches"))
    return mask


def interleaving_rounds(job: Job, c: Cells) -> Bools:
    if INTERLEAVED not in job.schedules:
        return everywhere(c, True)
    interleaved = c["schedule"] == job.schedules.index(INTERLEAVED)
    mask: Bools = ~interleaved | (c["microbatches"] % c["pp"] == 0)
    return mask


def stages_have_layers(job: Job, c: Cells) -> Bools:
    mask: Bools = c["pp"] * c["vpp"] <= job.model.num_layers
    if any(layout.kind == "string" for layout in job.layouts):
        mask = everywhere(c, True)  # a layout string may leave stages without layers
    return mask


def layout_suits(job: Job, c: Cells) -> Bools:
    return job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout")) > 0


def layout_is_new(job: Job, c: Cells) -> Bools:
    return job.first_to_say_so(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))


# --- recompute and offload -----------------------------------------------------------------------------------------


def recompute_modules(job: Job, c: Cells) -> Bools:
    flags = c.ints("recompute")
    mask = everywhere(c, True)
    if job.model.latent is None:
        mask &= (flags & Recompute.MLA_UP_PROJ) == 0
    if not job.model.is_moe:
        mask &= (flags & Recompute.MOE_ACTIVATION) == 0
    mask &= ((flags & Recompute.FULL) == 0) | (flags == Recompute.FULL)
    return mask


def recompute_layers(job: Job, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["recompute_num_layers"] <= most
    return mask


def recompute_all_twice(job: Job, c: Cells) -> Bools:
    if not job.has("recompute_num_layers", 0):
        return everywhere(c, True)
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    block = c["recompute_method"] == RecomputeMethod.BLOCK
    mask: Bools = ~(block & (c["recompute_num_layers"] > 0) & (c["recompute_num_layers"] >= most))
    return mask


def split_weight_recompute(job: Job, c: Cells) -> Bools:
    splits = np.array([algorithm.splits_weight for algorithm in job.algorithms])
    mask: Bools = ~splits[c.ints("schedule")] | (c["recompute"] == Recompute.NONE)
    return mask


def offload_layers(job: Job, c: Cells) -> Bools:
    most = job.most_layers(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))
    mask: Bools = c["offload_layers"] <= most
    return mask


# --- experts -------------------------------------------------------------------------------------------------------


def deepep_has_experts(job: Job, c: Cells) -> Bools:
    mask: Bools = ~c["deepep"].astype(bool) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


def sync_free_has_experts(job: Job, c: Cells) -> Bools:
    mask: Bools = (c["sync_free_stage"] == 0) | ((c["ep"] > 1) & job.model.is_moe)
    return mask


def sync_free_implies(job: Job, c: Cells) -> Bools:
    turbo = c["grouped_gemm"] == GroupedGemm.TURBO
    mask: Bools = (c["sync_free_stage"] < SYNC_FREE_NEEDS_DEEPEP) | (c["deepep"].astype(bool) & turbo)
    return mask


# --- precision and sharding ----------------------------------------------------------------------------------------


def device_has_format(job: Job, c: Cells) -> Bools:
    accelerator, fp8 = job.cluster.accelerator, c["fp8"]
    has_fp8, has_fp4 = accelerator.fp8_peak_flops_per_s > 0, accelerator.fp4_peak_flops_per_s > 0
    is_nvidia = accelerator.vendor.lower() == "nvidia"
    mask: Bools = (fp8 == Fp8.NONE) | (has_fp8 & (fp8 != Fp8.NVFP4) & (fp8 != Fp8.MXFP8))
    # Block scales in the matrix instruction itself arrived with FP4 (Blackwell, CDNA 4).
    mask |= (has_fp4 & (fp8 == Fp8.MXFP8)) | (has_fp4 & is_nvidia & (fp8 == Fp8.NVFP4))
    return mask


def sharded_gradients_pipeline(job: Job, c: Cells) -> Bools:
    mask: Bools = (c["sharding"] < Sharding.ZERO2) | (c["pp"] == 1)
    return mask


def shard_group_divides(job: Job, c: Cells) -> Bools:
    hybrid = c["sharding"] == Sharding.HSDP
    replicas = c.ints("dp") * c.ints("cp")
    group = np.maximum(c.ints("shard_group"), 1)
    proper = (c["shard_group"] > 1) & (group < replicas) & (replicas % group == 0)
    mask: Bools = ~hybrid | proper
    return mask


def has_replicas(job: Job, c: Cells) -> Bools:
    """Of the dense part, or of experts: without experts their replicas are a quotient of degrees and no ranks."""
    mask: Bools = (c.ints("dp") * c.ints("cp") > 1) | ((c.ints("edp") > 1) & job.model.is_moe)
    return mask


def nothing_to_shard(job: Job, c: Cells) -> Bools:
    mask: Bools = has_replicas(job, c) | c.is_first_choice("sharding")
    return mask


def nothing_to_reduce(job: Job, c: Cells) -> Bools:
    mask: Bools = has_replicas(job, c) | c.is_first_choice("overlap_grad_reduce")
    return mask


def is_full(job: Job, c: Cells) -> Bools:
    full: Bools = (c.ints("recompute") & Recompute.FULL) != 0
    return full
