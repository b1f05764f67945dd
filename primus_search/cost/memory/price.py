"""Bytes per unit of `ranks`, split by the part of `Memory` each unit fills: one column per (part, unit) that counts.

Head and loss on one device, in bytes: what waits for backward and what exists only while they run.

Vocabulary is split over tp, tokens over cp. A fused loss writes the gradient over the BF16 logits (2 bytes per logit,
Transformer Engine); separate kernels upcast to FP32 and keep softmax beside the logits (stack's
`unfused_logit_bytes`); a softmax put together across tensor-parallel ranks is one of separate kernels, compiled or not
(`split_logit_bytes`). Where forward and backward of the head do not follow each other (GPipe: all micro-batches in
flight), each micro-batch keeps what its loss saved: the gradient written over the logits, or an FP32 softmax; where
weight gradients are put off, the gradient of the logits waits with the head's input. The head's weight gradient exists
in BF16 before, or as the placeholder of, its accumulation.
Where head and loss run piece by piece, each forward and backward before the next, logits of one piece exist at a time
and none waits; the gradient of the head's input gathers in FP32 (torchtitan's ChunkedLossWrapper, GradAccumulator).
Source: Megatron-Core tensor_parallel/cross_entropy.py, Transformer Engine common/triton/cross_entropy.py, PyTorch
distributed/tensor/parallel/loss.py.

Memory of vision towers on the first stage: their state, and what their layers keep for backward, in bytes.

Layers of an encoder keep what a dense decoder layer keeps, in BF16 and without recompute; a frozen tower keeps nothing.

Buffers of collectives on one device, in bytes: FSDP's gathered layers, pipeline hops, context rings, DeepEP.

Memory that no tensor of the model explains: device context and communicators. The driver counts both; torch's
`max_memory_reserved` does not, and `max_memory_allocated` leaves out allocator slack as well (`chunk_memory`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.memory.activations import layer_activations, seen
from primus_search.cost.memory.mixer_memory import mixer_share_params
from primus_search.cost.memory.parameters import (
    ModelState,
    attention_params,
    embedding_state,
    layer_dense_params,
    layer_expert_params,
    layer_state,
    mtp_state,
    state,
)
from primus_search.cost.memory.rank_moments import Units, memory_kinds
from primus_search.cost.memory.share import BF16_BYTES, FP32_BYTES, Share, keeps_gathered, shards_weights
from primus_search.values.candidates import INNER_RANKS, CpComm, Floats, Recompute
from primus_search.values.machine.cluster import Accelerator
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model, Tower, encoder_model
from primus_search.values.workload import Workload

RING_DEPTH = 2.0
"""Key/value blocks a ring holds beside its own: the one attended to and the one arriving."""
GROUP_COPIES = 2.0
"""Copies of a group's tokens that HybridEP has room for under software whose own dispatch is another: one each for
dispatch and combine (deepseek-ai/DeepEP csrc/hybrid_ep)."""
HOP_TENSORS = 2.0
"""Activations and gradients each have one tensor on its way over a pipeline hop."""


def gathered_bytes(stack: Stack, s: Share, layer_params: Floats) -> Floats:
    """FSDP while one layer runs backward: BF16 weights of the layers gathered, and gradients not yet reduced.

    Formula: P_layer (gathered layers * 2 bytes + layers in reduction * bytes per gradient), the counts from the
    stack: current and prefetched layer, a BF16 gradient and its FP32 copy for the reduction. Weights that stay gathered
    are not counted here.
    """
    m = stack.memory
    unreduced = m.shard_gradient_bytes * m.shard_gradient_layers
    per_param = np.where(keeps_gathered(stack, s), unreduced, BF16_BYTES * m.shard_gather_layers + unreduced)
    return np.where(shards_weights(s) | keeps_gathered(stack, s), per_param * layer_params, 0.0)


def gathered_head_bytes(stack: Stack, s: Share, params: Floats) -> Floats:
    """FSDP while head and loss run: the output matrix in BF16 and one unreduced gradient of it."""
    alone = shards_weights(s) & (not stack.sharding.gathers_ends)
    return np.where(alone, (BF16_BYTES + stack.memory.shard_gradient_bytes) * params, 0.0)


def gathered_ends_bytes(stack: Stack, s: Share, params: Floats, *, has_gradient: bool) -> Floats:
    """FSDP whose outermost group holds embedding and head, all through forward and backward.

    The outermost group is not freed after forward, as backward would gather it at once, and is reduced last. The
    head's gradient therefore waits for the embedding's, from the first thing that runs backward to the end.
    Source: PyTorch FSDP2, fully_shard: reshard_after_forward of the root module.
    """
    waits = BF16_BYTES + (BF16_BYTES if has_gradient else 0.0)
    return np.where(shards_weights(s) & stack.sharding.gathers_ends, waits * params, 0.0)


def weight_gradient_bytes(stack: Stack, s: Share, params: Floats) -> Floats:
    """Weight gradients of a family of weights (attention, MLP, expert) beside the main gradient, without FSDP.

    params: of one layer's attention or MLP, or of one expert. Where gradients are accumulated by the GEMM,
    Transformer Engine hands autograd one BF16 placeholder per distinct shape and keeps it for good; without fused
    accumulation a BF16 gradient exists until it is added.
    Source: Transformer Engine pytorch/module/base.py `get_dummy_wgrad`.
    """
    exists = stack.memory.caches_dummy_gradients or not stack.kernels.has_gradient_accumulation_fusion
    return np.where(shards_weights(s), 0.0, BF16_BYTES * params * float(exists))


def pipeline_buffer(model: Model, s: Share) -> Floats:
    """Tensors on their way between stages; zero where the pipeline has one stage."""
    return np.where(s.pp > 1, HOP_TENSORS * BF16_BYTES * s.split_tokens * model.hidden, 0.0)


def context_buffer(model: Model, s: Share) -> Floats:
    """Key/value blocks travelling round a ring, copies on both sides of an all-to-all, both, or all keys gathered."""
    if model.latent is not None:
        width = model.num_heads / s.tp * (model.latent.qk_head_dim + model.latent.v_head_dim)
    else:
        width = 2.0 * s.kv_heads * model.head_dim
    block = BF16_BYTES * s.tokens * width
    queries = BF16_BYTES * s.tokens * model.num_heads / s.tp * (model.qk_head_dim + model.v_head_dim)
    both_sides = np.where(s.cp_comm == CpComm.A2A, block + queries, RING_DEPTH * block)
    size = np.where(s.cp_comm == CpComm.ALL_GATHER, block * s.cp, both_sides)
    size = np.where(INNER_RANKS[s.cp_comm] > 0, block + queries + RING_DEPTH * block, size)
    return np.where(s.cp > 1, size, 0.0)


def expert_buffer(model: Model, stack: Stack, s: Share) -> Floats:
    """Communication buffers of DeepEP: room for dispatch and combine, in copies of the BF16 tokens a device routes.

    HybridEP's are as large as the worst case: every token of every rank of the group on one device.
    Source: AMD-AGI/Primus memory projection (extrapolation.py: two buffers of twice the routed tokens), which agrees
    with the DeepEP rungs of its DeepSeek-V2-Lite sweep on MI355X; NVIDIA/TransformerEngine pull request 3035 (tokens
    per rank times ranks) and deepseek-ai/DeepEP csrc/hybrid_ep (one buffer each for dispatch and combine).
    """
    top_k = model.moe.top_k if model.moe is not None else 1
    of_group = (stack.memory.group_buffer_copies or GROUP_COPIES) * s.ep * s.sent_rows / top_k
    rows = np.where(s.has_group_buffers, of_group, stack.memory.deepep_buffer_copies * s.sent_rows)
    return np.where(s.has_fused_dispatch & (s.ep > 1), BF16_BYTES * rows * model.expert_hidden, 0.0)


def context_bytes(accelerator: Accelerator, stack: Stack, s: Share) -> Floats:
    """Device context, buffers of one communicator per group with more than one member, what the stack adds to them.

    Groups: world, tensor, context, pipeline, data, expert and expert-data parallel. The world's own communicator is
    there as soon as there is more than one device.

    An allocator with a pool of its own (`device_share`) leaves the rest of the device to these, which is lost to it
    even where they need less. Source: JAX, "GPU memory allocation", XLA_PYTHON_CLIENT_MEM_FRACTION.
    """
    groups = [s.tp > 1, s.cp > 1, s.pp > 1, s.dp > 1, s.ep > 1, (s.ep > 1) & (s.edp > 1)]
    devices = s.tp * s.cp * s.dp * s.pp
    number = np.sum(groups, axis=0) + (devices > 1)
    footprint = accelerator.footprint
    fixed = footprint.context_bytes + stack.memory.driver_bytes
    beside_the_pool = accelerator.hbm_bytes * (1.0 - stack.memory.device_share)
    result: Floats = np.maximum(fixed + footprint.communicator_bytes * number, beside_the_pool)
    return result


PARTS = (
    "weights", "gradients", "optimizer", "activations", "recompute_workspace", "logits", "workspace",
    "collective_buffers",
)  # fmt: skip
"""Parts that are units times prices; context, expert buffers and allocator slack follow from the rest."""

STATIC_PARTS = ("weights", "gradients", "optimizer")
"""Parts that stay from step to step."""

EXPLICIT_PARTS = (*STATIC_PARTS, "logits")
"""Parts whose bytes per element the stack states; the others count activations at two bytes."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prices:
    """Bytes per unit: a list of (part, unit, bytes per candidate), always in the same order for a model.

    element_scale  bytes of an activation element over the two that the formulas count (FP32 training: 2)
    """

    rows: int
    element_scale: float = 1.0
    part: list[int] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    columns: list[Floats] = field(default_factory=list)

    def put(self, part: str, unit: int, bytes_per_unit: Floats) -> None:
        self.part.append(PARTS.index(part))
        self.unit.append(unit)
        scale = 1.0 if part in EXPLICIT_PARTS else self.element_scale
        self.columns.append(np.broadcast_to(bytes_per_unit * scale, (self.rows,)))

    def put_state(self, unit: int, bytes_of: ModelState) -> None:
        self.put("weights", unit, bytes_of.weights)
        self.put("gradients", unit, bytes_of.gradients)
        self.put("optimizer", unit, bytes_of.optimizer)

    @property
    def array(self) -> Floats:
        """(rows, entries)"""
        return np.stack(self.columns, axis=1)

    def per_unit(self, units: range, factor_of_part: NDArray[np.float64]) -> Floats:
        """(rows, units): all parts of a unit together, each times its factor."""
        total = np.zeros((self.rows, len(units)))
        for part, unit, column in zip(self.part, self.unit, self.columns, strict=True):
            total[:, unit - units.start] += column * factor_of_part[part]
        return total


def element_scale(stack: Stack) -> float:
    """Bytes of an activation element over the BF16 ones that the formulas count."""
    return stack.memory.element_bytes / BF16_BYTES


def state_prices(model: Model, stack: Stack, s: Share) -> Prices:
    """What follows from parameters: weights, gradients, optimizer, gradients in flight, FSDP's gathered layers."""
    kinds = memory_kinds(model)
    units, prices = Units(len(kinds)), Prices(rows=len(s.tp), element_scale=element_scale(stack))
    for k, kind in enumerate(kinds):
        prices.put_state(units.at("layers", k), layer_state(model, stack, kind, s))
        count = layer_dense_params(model, kind, s) + (layer_expert_params(model, s) if kind.is_moe else 0.0)
        prices.put("collective_buffers", units.at("gathers", k), gathered_bytes(stack, s, count))
    matrix, norm = model.head_params / s.tp, np.full_like(s.tp, model.norm_params)
    embedding, head = units.at("embedding"), units.at("head")
    rows = embedding_state(model, stack, s)
    for tower in model.towers:
        rows = rows.plus(tower_state(tower, stack, s))
    prices.put_state(embedding, rows)
    prices.put("collective_buffers", embedding, gathered_ends_bytes(stack, s, rows.count, has_gradient=False))
    prices.put("collective_buffers", head, gathered_ends_bytes(stack, s, matrix, has_gradient=True))
    prices.put_state(head, state(stack, s, matrix, s.shards, is_linear=False))
    prices.put_state(units.at("final_norm"), state(stack, s, norm, s.shards, is_linear=False))
    prices.put_state(units.at("mtp"), mtp_state(model, stack, s))
    moe, nothing = model.moe, np.zeros_like(s.tp)
    experts = nothing if moe is None else model.expert_params / s.etp + model.shared_expert_params / s.tp
    mixers = [mixer_share_params(kind.mixer, model.hidden, s) for kind in kinds if kind.mixer is not None]
    widest = attention_params(model, s) if not mixers else np.maximum.reduce(mixers)
    in_flight = {"attention": widest, "mlp": model.dense_mlp_params / s.tp, "experts": experts}
    for name, shapes in in_flight.items():
        prices.put("workspace", units.at(f"{name}_present"), weight_gradient_bytes(stack, s, shapes))
    runs = units.at("head_gathers")
    prices.put("workspace", runs, head_weight_gradient(model, s))
    prices.put("collective_buffers", runs, gathered_head_bytes(stack, s, matrix))
    return prices


def activation_prices(model: Model, stack: Stack, workload: Workload, s: Share) -> Prices:
    """What follows from tokens: saved activations, their gradients, recompute, logits, hops."""
    kinds = memory_kinds(model)
    units, prices = Units(len(kinds)), Prices(rows=len(s.tp), element_scale=element_scale(stack))
    for k, kind in enumerate(kinds):
        view, _, own = seen(model, kind, s)
        context = context_buffer(view, own)
        layer = layer_activations(model, stack, kind, s, workload.seq_length)
        prices.put("activations", units.at("live", k), layer.kept)
        prices.put("activations", units.at("waiting", k), layer.waiting)
        prices.put("recompute_workspace", units.at("working", k), layer.recomputed)
        prices.put("recompute_workspace", units.at("again", k), layer.kept)
        prices.put("workspace", units.at("working", k), layer.backward)
        prices.put("collective_buffers", units.at("working", k), context)
    head = head_memory(model, stack, s)
    prices.put("activations", units.at("inputs"), s.split_tokens * model.hidden * BF16_BYTES)
    prices.put("activations", units.at("head_live"), head.inputs)
    prices.put("activations", units.at("head_waiting"), head.waiting_input)
    prices.put("logits", units.at("head_live"), head.kept_logits)
    prices.put("logits", units.at("head_waiting"), head.waiting_logits)
    prices.put("logits", units.at("head_runs"), head.running_logits)
    prices.put("workspace", units.at("head_runs"), head.gathered)
    prices.put("workspace", units.at("head_present"), head.gathered_input)
    prices.put("collective_buffers", units.at("hop"), pipeline_buffer(model, s))
    prices.put("activations", units.at("tower_live"), towers_kept(model, stack, workload, s))
    return prices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadMemory:
    """Bytes of the head on one device.

    Per micro-batch from forward to backward: inputs of norm and matrix, kept_logits; from input to weight gradient:
    waiting_input, waiting_logits. While it runs: running_logits beyond those it keeps, and gathered: what exists over
    all tokens where sequence parallelism had split them, the gradient of the input and the input. The gathered input is
    for good (gathered_input) in Megatron's own linear, which has a buffer for it: Megatron-Core
    tensor_parallel/layers.py, get_global_memory_buffer; its layers are Transformer Engine's, which have none.
    """

    inputs: Floats
    kept_logits: Floats
    waiting_input: Floats
    waiting_logits: Floats
    running_logits: Floats
    gathered: Floats
    gathered_input: Floats


def head_memory(model: Model, stack: Stack, s: Share) -> HeadMemory:
    """Saved input of the final norm and of the output matrix; logits with upcasts."""
    m = stack.memory
    fused, unfused = m.fused_logit_bytes, m.unfused_logit_bytes
    at_worst = np.where(
        s.has_fused_loss,
        np.where(s.tp > 1, m.split_fused_logit_bytes or fused, fused),
        np.where(s.tp > 1, m.split_logit_bytes or unfused, unfused),
    )
    kept = np.where(s.has_fused_loss, m.element_bytes, FP32_BYTES)
    num_losses = 1 + model.num_mtp_layers
    logits = s.tokens * model.vocab_size / s.tp * num_losses
    is_whole = m.loss_chunks <= 1.0
    stream = s.split_tokens * model.hidden * num_losses
    whole = np.where(s.split_tokens < s.tokens, BF16_BYTES * s.tokens * model.hidden, 0.0)
    gathered_input = np.where(shards_weights(s), 0.0, whole)
    return HeadMemory(
        inputs=BF16_BYTES * 2.0 * stream,
        kept_logits=kept * logits * is_whole,
        waiting_input=BF16_BYTES * stream,
        waiting_logits=m.element_bytes * logits * is_whole,
        running_logits=np.maximum(at_worst - kept, 0.0) * logits
        if is_whole
        else at_worst * logits / m.loss_chunks + FP32_BYTES * stream,
        gathered=2.0 * whole - gathered_input,
        gathered_input=gathered_input,
    )


def head_weight_gradient(model: Model, s: Share) -> Floats:
    """Bytes of the weight gradient of the output matrix while it exists beside the main gradient."""
    return np.where(shards_weights(s), 0.0, BF16_BYTES * model.head_params / s.tp)


def tower_state(tower: Tower, stack: Stack, s: Share) -> ModelState:
    """A tower, split over tp where its heads are; a frozen one is BF16 weights alone, whole on every replica."""
    count = tower.params / tower.ranks(s.tp.astype(np.int64))
    if tower.is_trained:
        return state(stack, s, count, s.shards)
    nothing = np.zeros_like(count)
    return ModelState(weights=count * BF16_BYTES, gradients=nothing, optimizer=nothing, count=nothing)


def towers_kept(model: Model, stack: Stack, workload: Workload, s: Share) -> Floats:
    """Activations that one micro-batch's images keep for backward."""
    found = np.zeros_like(s.tokens)
    for tower in model.towers:
        if tower.is_trained:
            found = found + _kept(tower, stack, workload, s)
    return found


def _kept(tower: Tower, stack: Stack, workload: Workload, s: Share) -> Floats:
    """Inputs of the patch embedding and of the projector's matrices, and what every encoder layer keeps."""
    image_tokens = s.tokens * s.cp * (workload.image_tokens / workload.seq_length)
    tokens, ranks = image_tokens * tower.merge, tower.ranks(s.tp.astype(np.int64)).astype(np.float64)
    encoder = encoder_model(tower)
    own = s.replaced(
        tp=ranks,
        cp=np.ones_like(s.cp),
        tokens=tokens,
        split_tokens=tokens,
        kv_heads=tower.num_heads / ranks,
        recompute=np.full_like(s.recompute, int(Recompute.NONE)),
        is_fp8=np.zeros_like(s.is_fp8),
    )
    layer = layer_activations(encoder, stack, encoder.kinds[0], own, int(tower.patches(workload)))
    ends = tokens * tower.patch_inputs + image_tokens * float(sum(k for _, k in tower.projector))
    return tower.num_layers * layer.kept + BF16_BYTES * ends
