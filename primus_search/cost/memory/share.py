"""What one device sees of the model and of a micro-batch: the columns every memory formula is written in."""

from dataclasses import dataclass

import numpy as np

from primus_search.cost.parts.routing import busiest_over_mean
from primus_search.cost.state_formats import state_bytes
from primus_search.values.candidates import Bools, Candidates, Floats, Fp8, Ints, Sharding, degrees
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

BF16_BYTES, FP32_BYTES, FP8_BYTES, MASK_BYTES = 2.0, 4.0, 1.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """Degrees and sizes, one entry per candidate (or per distinct key of candidates).

    tokens          of one micro-batch on one context-parallel rank
    split_tokens    the same where sequence parallelism splits the residual stream over tensor-parallel ranks
    routed_rows     token copies that reach one device's experts: tokens/tp * top_k, times the imbalance of routing,
                    times etp because every rank of an expert's tensor-parallel group sees its group's tokens; those of
                    the whole group (times ep) where shapes are fixed ahead
    sent_rows       token copies a device permutes for sending
    offload         `Offload` flags
    is_delayed      FP8 with delayed scaling
    state_format    `StateFormat` codes; cp_comm  `CpComm` codes, none of them STACK
    kv_heads        key/value heads on one device, at least one
    shards          devices that share what is sharded of a dense parameter; expert_shards of an expert's
    """

    tp: Floats
    cp: Floats
    pp: Floats
    ep: Floats
    etp: Floats
    dp: Floats
    edp: Floats
    tokens: Floats
    split_tokens: Floats
    routed_rows: Floats
    sent_rows: Floats
    kv_heads: Floats
    shards: Floats
    expert_shards: Floats
    sharding: Ints
    recompute: Ints
    offload: Ints
    is_fp8: Bools
    is_delayed: Bools
    has_fused_dispatch: Bools
    has_group_buffers: Bools
    has_fused_loss: Bools
    state_format: Ints
    cp_comm: Ints


def share(model: Model, workload: Workload, stack: Stack, c: Candidates, world: int) -> Share:
    """The columns of `c`. Experts work on tokens split over tp whether or not the dense part is sequence parallel."""
    d = degrees(c, world=world, global_batch_size=workload.global_batch_size)
    tokens = c.micro_batch_size * (workload.seq_length / c.cp)
    sent = np.zeros_like(tokens)
    if model.moe is not None:
        sent = tokens / c.tp * model.moe.top_k
    has_all = stack.memory.has_room_for_every_row & (not workload.pads_to_capacity) & ~c.has_fused_dispatch
    has_all = has_all | c.has_fixed_expert_rows
    rows = np.where(has_all, c.ep, busiest_over_mean(workload, c)) * sent
    replicas = d.dp * c.cp
    group = c.shard_ranks(replicas)
    return Share(
        tp=_floats(c.tp),
        cp=_floats(c.cp),
        pp=_floats(c.pp),
        ep=_floats(c.ep),
        etp=_floats(c.etp),
        dp=_floats(d.dp),
        edp=_floats(d.edp),
        tokens=tokens,
        split_tokens=np.where(c.sequence_parallel, tokens / c.tp, tokens),
        routed_rows=rows * c.etp,
        sent_rows=sent,
        kv_heads=np.maximum(model.num_kv_heads / c.tp, 1.0),
        shards=_floats(group),
        expert_shards=np.maximum(d.edp * group / replicas, 1.0),
        sharding=c.sharding,
        recompute=c.recompute,
        offload=c.offload_modules,
        is_fp8=c.fp8 != Fp8.NONE,
        is_delayed=c.fp8 == Fp8.DELAYED,
        has_fused_dispatch=c.has_fused_dispatch,
        has_group_buffers=c.has_group_buffers(usual=stack.memory.group_buffer_copies > 0),
        has_fused_loss=c.loss_fusion,
        state_format=c.state_format,
        cp_comm=c.exchange_of_context(stack.communication.cp_comm),
    )


def shards_weights(s: Share) -> Bools:
    """Whether weights are gathered layer by layer: FSDP2, HSDP and Megatron-FSDP."""
    return np.greater_equal(s.sharding, Sharding.FSDP2)


def keeps_gathered(stack: Stack, s: Share) -> Bools:
    """Whether weights stay gathered in BF16 beside the FP32 shards that are updated: FSDP2 without resharding.

    GPT-OSS-20B on 64 GB300 takes 38 GiB more for it: 2 bytes of each of 20.9e9 parameters (LambdaLabsML/torchtitan
    gb300/TUNING_RESULTS.md).
    """
    master, weight = (state_bytes(stack, name, s.state_format) for name in ("master_weight_bytes", "weight_bytes"))
    updates_shards = (master == 0.0) & (weight > stack.memory.element_bytes)
    mask: Bools = np.equal(s.sharding, Sharding.ZERO2) & updates_shards
    return mask


def _floats(column: Ints) -> Floats:
    return column.astype(np.float64)
