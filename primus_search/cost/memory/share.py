"""What one device sees of the model and of a micro-batch: the columns every memory formula is written in."""

from copy import copy
from functools import cached_property
from typing import Self

import numpy as np

from primus_search.cost.traffic.expert_parallel import busiest_over_mean
from primus_search.values.candidates import Bools, Candidates, Floats, Fp8, Ints, Sharding, degrees
from primus_search.values.job import Job
from primus_search.values.layout import Layout
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import state_bytes
from primus_search.values.model import MixtureOfExperts, Model
from primus_search.values.workload import Workload

BF16_BYTES, FP32_BYTES, FP8_BYTES, MASK_BYTES = 2.0, 4.0, 1.0, 1.0


class Share:
    """Degrees and sizes, one entry per candidate (or per distinct key of candidates).

    tokens, split_tokens   of one micro-batch on one context-parallel rank; on a tensor-parallel rank of it where
                           sequence parallelism splits the residual stream
    split_share            share of a micro-batch's tokens that a rank has outside the matrices
    expert_tokens          tokens of one rank that its router looks at
    expert_rows            rows of each of its `local_experts`
    sent_rows              token copies that a device permutes for sending
    shards, expert_shards  devices that share what is sharded of a dense parameter, of an expert's
    sums_gradients         whether whole gradients are summed until the last micro-batch, then sharded
    optimizer_groups       groups of HSDP that share the optimizer once more
    kept_moments           share of the optimizer's moments that the device holds
    kv_heads               on one device, at least one       cp_comm  `CpComm` codes, none of them STACK

    Each is worked out when a formula asks for it, so that a formula touches only the columns that it depends on.
    """

    def __init__(self, model: Model, workload: Workload, stack: Stack, c: Candidates, world: int) -> None:
        self._model, self._workload, self._stack, self._c = model, workload, stack, c
        self._degrees = degrees(c, world=world, global_batch_size=workload.global_batch_size)

    @classmethod
    def of(cls, job: Job, c: Candidates) -> Self:
        """What a device of a job sees."""
        return cls(job.model, job.workload, job.stack, c, job.cluster.world)

    def replaced(self, **columns: Floats | Ints | Bools) -> Self:
        """The same with some of its columns replaced; what was not worked out before follows from them."""
        other = copy(self)
        other.__dict__.update(columns)
        return other

    tp: cached_property[Floats] = cached_property(lambda s: _floats(s._c.tp))
    cp: cached_property[Floats] = cached_property(lambda s: _floats(s._c.cp))
    pp: cached_property[Floats] = cached_property(lambda s: _floats(s._c.pp))
    vpp: cached_property[Floats] = cached_property(lambda s: _floats(s._c.vpp))
    ep: cached_property[Floats] = cached_property(lambda s: _floats(s._c.ep))
    etp: cached_property[Floats] = cached_property(lambda s: _floats(s._c.etp))
    dp: cached_property[Floats] = cached_property(lambda s: _floats(s._degrees.dp))
    edp: cached_property[Floats] = cached_property(lambda s: _floats(s._degrees.edp))
    sharding: cached_property[Ints] = cached_property(lambda s: s._c.run_sharding(once=s._stack.sharding.gathers_once))
    sums_gradients: cached_property[Bools] = cached_property(lambda s: s.sharding != s._c.sharding)
    recompute: cached_property[Ints] = cached_property(lambda s: s._c.recompute)
    offload: cached_property[Ints] = cached_property(lambda s: s._c.offload_modules)
    state_format: cached_property[Ints] = cached_property(lambda s: s._c.state_format)
    optimizer: cached_property[Ints] = cached_property(lambda s: s._c.optimizer)
    layouts: cached_property[list[Layout]] = cached_property(lambda s: [s._c.layouts[n] for n in s._c.pipeline_layout])
    has_buckets: cached_property[Bools] = cached_property(lambda s: s._c.overlap_grad_reduce)
    has_fused_dispatch: cached_property[Bools] = cached_property(lambda s: s._c.has_fused_dispatch)
    has_fused_loss: cached_property[Bools] = cached_property(lambda s: s._c.loss_fusion)
    fp8: cached_property[Ints] = cached_property(lambda s: s._c.fp8)
    is_fp8: cached_property[Bools] = cached_property(lambda s: s._c.fp8 != Fp8.NONE)
    is_delayed: cached_property[Bools] = cached_property(lambda s: s._c.fp8 == Fp8.DELAYED)
    kept_moments: cached_property[Floats] = cached_property(lambda s: 1.0 - s._c.optimizer_offload / 100.0)
    kv_heads: cached_property[Floats] = cached_property(lambda s: np.maximum(s._model.num_kv_heads / s._c.tp, 1.0))
    cp_comm: cached_property[Ints] = cached_property(lambda s: s._c.exchange_of_context(s._stack.communication.cp_comm))
    has_group_buffers: cached_property[Bools] = cached_property(
        lambda s: s._c.has_group_buffers(usual=s._stack.memory.group_buffer_copies > 0)
    )

    @cached_property
    def tokens(self) -> Floats:
        return self._c.micro_batch_size * (self._workload.seq_length / self._c.cp)

    @cached_property
    def split_tokens(self) -> Floats:
        return np.where(self._c.sequence_parallel, self.tokens / self._c.tp, self.tokens)

    @cached_property
    def sent_rows(self) -> Floats:
        moe = self._model.moe
        return np.zeros_like(self.tokens) if moe is None else self.tokens / self._c.tp * moe.top_k

    @cached_property
    def routed_rows(self) -> Floats:
        """Token copies that reach one device's experts.

        tokens/tp * top_k, times the imbalance of routing, times etp because every rank of an expert's tensor-parallel
        group sees its group's tokens; those of the whole group (times ep) where shapes are fixed ahead. Experts work
        on tokens split over tp whether or not the dense part is sequence parallel.
        """
        c, memory, moe = self._c, self._stack.memory, self._model.moe
        has_all = memory.has_room_for_every_row and not self._workload.pads_to_capacity
        room = np.where(c.has_fused_dispatch, memory.deepep_room_copies, memory.room_copies) * has_all * (c.ep > 1)
        room = np.where(c.has_fixed_expert_rows, 1.0, room)
        busiest = 1.0 if moe is None else busiest_over_mean(moe, self._workload, c)
        return np.where(room > 0.0, room * c.ep, busiest) * self.sent_rows * c.etp

    @cached_property
    def capacity_places(self) -> Floats:
        """Tokens times the places that one sequence's tokens have at all padded experts; 0 without such experts."""
        places = self._workload.seq_length / self._c.cp * self._workload.routing_imbalance
        return self.sent_rows * places * self._workload.pads_to_capacity

    expert_rows: cached_property[Floats] = cached_property(lambda s: s._expert_rows(s._model.moe))
    local_experts: cached_property[Floats] = cached_property(lambda s: s._model.moe.num_experts / s._c.ep)
    split_share: cached_property[Floats] = cached_property(lambda s: s.split_tokens / s.tokens)

    @cached_property
    def optimizer_groups(self) -> Floats:
        is_across = self._stack.sharding.shards_optimizer_across & (self.sharding == Sharding.HSDP)
        return np.where(is_across, self.dp * self.cp / self.shards, 1.0)

    def _expert_rows(self, moe: MixtureOfExperts) -> Floats:
        c = self._c
        routed = self.tokens / c.tp * c.ep * c.etp * moe.top_k / moe.num_experts
        return routed * busiest_over_mean(moe, self._workload, c)

    @cached_property
    def expert_tokens(self) -> Floats:
        return self.tokens / self._c.tp * (self._c.etp if self._stack.experts.gathers_before_experts else 1)

    @cached_property
    def shards(self) -> Floats:
        copies = self._c.optimizer_copies(self._stack.sharding.optimizer_copies)
        return np.maximum(self._c.shard_ranks(self._degrees.dp * self._c.cp) / copies, 1.0)

    @cached_property
    def expert_shards(self) -> Floats:
        found = np.maximum(self._degrees.edp * self.shards / (self._degrees.dp * self._c.cp), 1.0)
        return np.where(self._c.shards_whole_layers, np.minimum(found, self.shards), found)


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


def in_layer_buffers(stack: Stack, s: Share) -> Bools:
    """Whether a layer's weights are in buffers of Megatron-FSDP."""
    mask: Bools = (s.sharding >= Sharding.ZERO2) & (s.sharding != Sharding.FSDP2)
    mask &= stack.memory.shard_queue_params > 0.0
    mask |= (s.sharding <= Sharding.DISTRIBUTED_OPTIMIZER) & stack.memory.has_layer_buffers
    return mask


def fp8_layouts(stack: Stack, s: Share) -> Floats:
    """Copies in FP8 of a matrix whose weights are gathered so: by rows, of MXFP8 and outside Megatron-FSDP by columns
    as well; 0 where weights are not in FP8.

    Source: NVIDIA/Megatron-LM core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py:2637 of d98e8a64;
    NVIDIA/TransformerEngine pytorch/tensor/float8_tensor.py `_transpose`.
    """
    in_buffers = in_layer_buffers(stack, s)
    is_held = np.isin(s.fp8, (Fp8.HYBRID, Fp8.DELAYED, Fp8.BLOCKWISE, Fp8.MXFP8)) & stack.precision.has_fp8_param_gather
    is_held &= in_buffers | (s.sharding == Sharding.DISTRIBUTED_OPTIMIZER)
    layouts: Floats = np.where(in_buffers & (s.fp8 != Fp8.MXFP8), 1.0, 2.0) * is_held
    return layouts


def _floats(column: Ints) -> Floats:
    return column.astype(np.float64)
