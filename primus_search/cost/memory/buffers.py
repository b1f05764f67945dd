"""Buffers of collectives on one device, in bytes: FSDP's gathered layers, pipeline hops, context rings, DeepEP."""

import numpy as np

from primus_search.cost.memory.share import BF16_BYTES, Share, keeps_gathered, shards_weights
from primus_search.space.memo import in_order
from primus_search.values.candidates import INNER_RANKS, CpComm, Floats, Sharding
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import state_bytes
from primus_search.values.model import Mixer, Model

RING_DEPTH = 2.0
"""Key/value blocks a ring holds beside its own: the one attended to and the one arriving."""
GROUP_COPIES = 2.0
"""Copies of a group's tokens that HybridEP has room for under software whose own dispatch is another: one each for
dispatch and combine (deepseek-ai/DeepEP csrc/hybrid_ep)."""
HOP_TENSORS = 2.0
"""Activations and gradients each have one tensor on its way over a pipeline hop."""


def gathered_bytes(
    stack: Stack, s: Share, layer_params: Floats, trained_params: Floats, layers: int, packed_bytes: float = 0.0
) -> Floats:
    """FSDP while one layer runs backward: BF16 weights of the layers gathered, and gradients not yet reduced.

    Formula: 2 bytes * min(P, max(gathered layers * P_layer, P_layer + Q/2))
             + bytes per gradient * min(P, max(layers in reduction * P_layer, P_layer + Q)), P = layers/pp * P_layer
    Of frozen weights no gradient waits: the second term is of those that are trained. Packed ones travel as they are.
    The counts from the stack: current and prefetched layer, a BF16 gradient and its FP32 copy for the reduction.
    Weights that stay gathered are not counted here. Q: Megatron-FSDP frees a gradient only when more than its queue
    waits behind it, and prefetches half as much. Source: NVIDIA/Megatron-LM param_and_grad_buffer.py
    `wait_for_previous_grad_reduce`, megatron_fsdp.py `suggested_communication_unit_size`: at least 1e9 until #7134.
    Under ZeRO-2 its queue holds whole gradients beside the shards, in the bytes that gradients are kept in.
    """
    m = stack.memory
    queue = np.where(s.sharding >= Sharding.ZERO2, m.shard_queue_params, 0.0) * (s.sharding != Sharding.FSDP2)

    def at_once(params: Floats, number: float, waiting: Floats) -> Floats:
        return np.minimum(np.maximum(number * params, params + waiting), params * layers / s.pp)

    gathered = np.where(keeps_gathered(stack, s), 0.0, at_once(layer_params, m.shard_gather_layers, queue / 2.0))
    held = (packed_bytes or BF16_BYTES) * gathered + m.shard_gradient_bytes * at_once(
        trained_params, m.shard_gradient_layers, queue
    )
    whole = state_bytes(stack, "gradient_bytes", s.state_format) * at_once(trained_params, 1.0, queue)
    beside_shards = np.where((s.sharding == Sharding.ZERO2) & (queue > 0.0), whole, 0.0)
    return np.where(shards_weights(s) | keeps_gathered(stack, s), held, beside_shards)


def gathered_head_bytes(stack: Stack, s: Share, params: Floats, *, has_gradient: bool) -> Floats:
    """FSDP while head and loss run: the output matrix in BF16 and one unreduced gradient of it, if it is trained."""
    alone = shards_weights(s) & (not stack.sharding.gathers_ends)
    return np.where(alone, (BF16_BYTES + has_gradient * stack.memory.shard_gradient_bytes) * params, 0.0)


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


def context_buffer(model: Model, mixer: Mixer | None, s: Share) -> Floats:
    """Key/value blocks travelling round a ring, copies on both sides of an all-to-all, both, or all keys gathered.

    Of a scan what is sent and what arrived, before it is put in order; of what an indexer selects from the same.
    """
    core = None if mixer is None else mixer.core(model.hidden)
    if core is not None and core.exchanged:
        widths = in_order(core.exchanged_widths(s.tp * s.cp)[:-1])
        return np.where(s.cp > 1, 2.0 * BF16_BYTES * s.tokens / s.tp * widths, 0.0)
    if core is not None and core.gathered:
        return np.where(s.cp > 1, BF16_BYTES * s.tokens * s.cp * sum(core.gathered), 0.0)
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
