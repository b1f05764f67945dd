"""What one device sees of the model and of a micro-batch: the columns every memory formula is written in."""

from copy import copy
from functools import cached_property
from typing import Self

import numpy as np

from primus_search.cost.state_formats import state_bytes
from primus_search.cost.traffic.expert_parallel import busiest_over_mean
from primus_search.values.candidates import Bools, Candidates, Floats, Fp8, Ints, Sharding, degrees
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

BF16_BYTES, FP32_BYTES, FP8_BYTES, MASK_BYTES = 2.0, 4.0, 1.0, 1.0


class Share:
    """Degrees and sizes, one entry per candidate (or per distinct key of candidates).

    Each is worked out when a formula asks for it, so that a formula touches only the columns that it depends on.
    """

    def __init__(self, model: Model, workload: Workload, stack: Stack, c: Candidates, world: int) -> None:
        self._model, self._workload, self._stack, self._c = model, workload, stack, c
        self._degrees = degrees(c, world=world, global_batch_size=workload.global_batch_size)

    def replaced(self, **columns: Floats | Ints | Bools) -> Self:
        """The same with some of its columns replaced; those that follow from them stay as they were."""
        other = copy(self)
        other.__dict__.update(columns)
        return other

    @cached_property
    def tp(self) -> Floats:
        return _floats(self._c.tp)

    @cached_property
    def cp(self) -> Floats:
        return _floats(self._c.cp)

    @cached_property
    def pp(self) -> Floats:
        return _floats(self._c.pp)

    @cached_property
    def ep(self) -> Floats:
        return _floats(self._c.ep)

    @cached_property
    def etp(self) -> Floats:
        return _floats(self._c.etp)

    @cached_property
    def dp(self) -> Floats:
        return _floats(self._degrees.dp)

    @cached_property
    def edp(self) -> Floats:
        return _floats(self._degrees.edp)

    @cached_property
    def _tokens(self) -> Floats:
        return self._c.micro_batch_size * (self._workload.seq_length / self._c.cp)

    @cached_property
    def tokens(self) -> Floats:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self._tokens

    @cached_property
    def split_tokens(self) -> Floats:
        """The same where sequence parallelism splits the residual stream over tensor-parallel ranks."""
        return np.where(self._c.sequence_parallel, self._tokens / self._c.tp, self._tokens)

    @cached_property
    def routed_rows(self) -> Floats:
        """Token copies that reach one device's experts.

        tokens/tp * top_k, times the imbalance of routing, times etp because every rank of an expert's tensor-parallel
        group sees its group's tokens; those of the whole group (times ep) where shapes are fixed ahead. Experts work
        on tokens split over tp whether or not the dense part is sequence parallel.
        """
        c, memory = self._c, self._stack.memory
        has_all = memory.has_room_for_every_row & (not self._workload.pads_to_capacity) & ~c.has_fused_dispatch
        has_all = has_all | c.has_fixed_expert_rows
        moe = self._model.moe
        busiest = 1.0 if moe is None else busiest_over_mean(moe, self._workload, c)
        return np.where(has_all, c.ep, busiest) * self._sent_rows * c.etp

    @cached_property
    def _sent_rows(self) -> Floats:
        moe = self._model.moe
        return np.zeros_like(self._tokens) if moe is None else self._tokens / self._c.tp * moe.top_k

    @cached_property
    def sent_rows(self) -> Floats:
        """Token copies a device permutes for sending."""
        return self._sent_rows

    @cached_property
    def kv_heads(self) -> Floats:
        """Key/value heads on one device, at least one."""
        return np.maximum(self._model.num_kv_heads / self._c.tp, 1.0)

    @cached_property
    def _group(self) -> Ints:
        return self._c.shard_ranks(self._degrees.dp * self._c.cp)

    @cached_property
    def shards(self) -> Floats:
        """Devices that share what is sharded of a dense parameter."""
        return _floats(self._group)

    @cached_property
    def expert_shards(self) -> Floats:
        """Devices that share what is sharded of an expert's parameter."""
        return np.maximum(self._degrees.edp * self._group / (self._degrees.dp * self._c.cp), 1.0)

    @cached_property
    def sharding(self) -> Ints:
        return self._c.sharding

    @cached_property
    def recompute(self) -> Ints:
        return self._c.recompute

    @cached_property
    def offload(self) -> Ints:
        """`Offload` flags."""
        return self._c.offload_modules

    @cached_property
    def is_fp8(self) -> Bools:
        return np.not_equal(self._c.fp8, Fp8.NONE)

    @cached_property
    def is_delayed(self) -> Bools:
        """FP8 with delayed scaling."""
        return np.equal(self._c.fp8, Fp8.DELAYED)

    @cached_property
    def has_fused_dispatch(self) -> Bools:
        return self._c.has_fused_dispatch

    @cached_property
    def has_group_buffers(self) -> Bools:
        return self._c.has_group_buffers(usual=self._stack.memory.group_buffer_copies > 0)

    @cached_property
    def has_fused_loss(self) -> Bools:
        return self._c.loss_fusion

    @cached_property
    def state_format(self) -> Ints:
        """`StateFormat` codes."""
        return self._c.state_format

    @cached_property
    def optimizer(self) -> Ints:
        """`Optimizer` codes."""
        return self._c.optimizer

    @cached_property
    def kept_moments(self) -> Floats:
        """Share of the optimizer's moments that the device holds."""
        return 1.0 - self._c.optimizer_offload / 100.0

    @cached_property
    def cp_comm(self) -> Ints:
        """`CpComm` codes, none of them STACK."""
        return self._c.exchange_of_context(self._stack.communication.cp_comm)


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
