"""Activations that wait for backward: every tensor one layer saves on one device, in bytes per micro-batch.

A layer is a list of saved tensors. Each says which recompute setting drops it, and whether it is the input of a
linear layer: that is what a weight gradient put off (zero-bubble schedules) keeps waiting, together with the gradient
of the linear's output. For GPT (F = 4H, no gating, dropout, no tensor parallelism) the list adds up to the
34 s b H + 5 a s^2 b of Korthikanti 2022 (arXiv:2205.05198) equation 1, to which a test holds it.

Symbols: t tokens, u tokens split by sequence parallelism, R routed rows (see `share`), H hidden, A heads, G key/value
heads, d head size, F inner size of an MLP, 2 bytes per BF16 element.
"""

from dataclasses import dataclass, replace

import numpy as np

from primus_search.cost.memory.adapter_memory import adapter_output_gradients, kept_beside_frozen, unpacked_bytes
from primus_search.cost.memory.mixer_memory import Saved, has_up_again, mixer_outputs, mixer_tensors
from primus_search.cost.memory.share import BF16_BYTES, FP8_BYTES, FP32_BYTES, MASK_BYTES, Share
from primus_search.cost.parts.mixer_operations import is_plain_attention
from primus_search.space.memo import in_order
from primus_search.values.candidates import INNER_RANKS, Bools, Candidates, CpComm, Floats, Offload, Recompute
from primus_search.values.machine.stack import UNFUSED, Stack
from primus_search.values.model import LayerKind, Mixer, Model, NoFeedForward, NoMixer

OFFLOADED_BY: dict[str, Offload] = {
    "layer input": Offload.ATTN_NORM,
    "attention norm output": Offload.QKV_LINEAR,
    "queries": Offload.CORE_ATTN,
    "keys": Offload.CORE_ATTN,
    "values": Offload.CORE_ATTN,
    "keys and values": Offload.CORE_ATTN,
    "attention output": Offload.ATTN_PROJ,
    "attention output of the kernel": Offload.CORE_ATTN,
    "attention residual": Offload.MLP_NORM,
    "expert input": Offload.EXPERT_FC1,
    "expert inner": Offload.MOE_ACT,
}
"""Saved tensors that a framework can send to the host until backward -> the module whose input each is.

Source: Megatron-Core developer guide 0.19, Fine-Grained Activation Offloading.
"""

CLAMPED_STEPS = 3.0
"""Tensors that a clamped gated activation saves besides the activated gate when it runs step by step: gate and up
clamped, up plus one. pytorch/torchtitan models/gpt_oss/model/moe.py, swiglu."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerActivations:
    """Bytes of one layer on one device, per micro-batch.

    kept        from forward to backward, recompute of modules considered, recompute of whole layers not
    waiting     from input gradient to weight gradient, where a schedule splits them
    recomputed  brought back in backward by the recompute of modules, or from the host
    backward    gradients of activations at the worst moment of the layer's backward
    """

    kept: Floats
    waiting: Floats
    recomputed: Floats
    backward: Floats


def layer_activations(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> LayerActivations:
    """The sums that the pipeline needs, from the list of saved tensors."""
    tensors = saved_tensors(model, stack, kind, s, seq_length)
    whole = in_order([tensor.bytes for tensor in tensors])
    kept = in_order([np.where(_is_dropped(tensor, s) | _is_away(tensor, s), 0.0, tensor.bytes) for tensor in tensors])
    kept = np.where((s.recompute & Recompute.OP_SAC) != 0, kept_by_operation(model, stack, kind, s), kept)
    inputs = in_order([tensor.bytes * tensor.weight_input for tensor in tensors])
    return LayerActivations(
        kept=kept,
        waiting=inputs + output_gradients(model, kind, s),
        recomputed=whole - kept + streams_beside(model, kind, s),
        backward=backward_transients(model, kind, s) + beside_backward(model, stack, kind, s, seq_length),
    )


def offloaded_bytes(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> Floats:
    """Bytes per micro-batch that one layer sends to the host in forward and brings back in backward."""
    tensors = saved_tensors(model, stack, kind, s, seq_length)
    away = in_order([np.where(_is_away(t, s) & ~_is_dropped(t, s), t.bytes, 0.0) for t in tensors])
    return np.where(has_inputs_away(s), layer_input(model, s), away)


def layer_input(model: Model, s: Share) -> Floats:
    """Bytes of what full recompute keeps of a layer and micro-batch."""
    return BF16_BYTES * s.split_tokens * model.hidden


def restores_stages(of: Candidates | Share) -> Bools:
    """Whether the residual streams of all layers of a stage come back together, from those into it."""
    mask: Bools = (of.recompute & Recompute.HYPER_CONNECTIONS) != 0
    return mask


def streams_beside(model: Model, kind: LayerKind, s: Share) -> Floats | float:
    """Bytes of the residual streams that come back with those of one layer.

    Source: NVIDIA/Megatron-LM d98e8a64 core/transformer/hyper_connection.py `build_mhc_recompute_layer_plan`: all
    layers of a chunk without mhc_recompute_layer_num; those of a group with it, which is not counted.
    """
    if not model.hyper_streams:
        return 0.0
    others = restores_stages(s) * (np.maximum(layers_restored(model, s), 1.0) - 1.0)
    return others * model.num_blocks(kind) * model.hyper_streams * layer_input(model, s)


def layers_restored(model: Model, s: Share) -> Floats:
    """Layers whose residual streams come back together: those of a virtual stage, their mean."""
    return np.where(restores_stages(s), model.num_layers / (s.pp * s.vpp), 1.0)


def has_inputs_away(s: Share) -> Bools:
    """Whether the inputs that full recompute keeps wait on the host."""
    mask: Bools = (s.offload & Offload.LAYER_INPUT) != 0
    return mask


def _is_away(tensor: Saved, s: Share) -> Bools:
    mask: Bools = (s.offload & OFFLOADED_BY.get(tensor.name, Offload.NONE)) != 0
    return mask


def saved_tensors(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> list[Saved]:
    """Every tensor one layer of that kind saves, in the order it is made."""
    tensors = _of_trained(model, stack, kind, s, seq_length)
    if model.adapters is None:
        return tensors
    of_kernel = ~exchanges_heads(s) & (stack.kernels.attention_kernel != UNFUSED)
    return kept_beside_frozen(model, kind, s, tensors, linear_input_bytes(stack, s), of_kernel)


def _of_trained(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> list[Saved]:
    """What a layer saves whose own weights are all trained."""
    own, streams, blocks = _own_mixer(kind), model.hyper_streams, model.num_blocks(kind)
    together = layers_restored(model, s)
    absent = ABSENT[isinstance(kind.mixer, NoMixer), isinstance(kind.feed_forward, NoFeedForward)]
    model, kind, s = seen(model, kind, s)
    tensors = [tensor for tensor in residual_stream(model, stack, kind, s) if tensor.name not in absent]
    if streams:
        kept, again = streams * layer_input(model, s), Recompute.HYPER_CONNECTIONS
        tensors += [
            Saved(name="residual streams of hyper-connections", bytes=blocks * kept, dropped_by=again),
            Saved(name="streams into a stage", bytes=restores_stages(s) * kept / together),
        ]
    if model.per_layer_embedding:
        # The gate's input and product, its part of the table, what is projected, and the input of the norm.
        kept = BF16_BYTES * s.split_tokens * (2.0 * model.hidden + 3.0 * model.per_layer_embedding)
        tensors.append(Saved(name="per-layer embedding", bytes=kept))
    if own is not None:
        tensors += mixer_tensors(own, model.hidden, s, linear_input_bytes(stack, s), attention_output_bytes(stack, s))
    else:
        tensors += latent_attention(model, stack, s) if model.latent else grouped_query_attention(model, stack, s)
        tensors += core_attention(model, stack, kind, s, seq_length)
    if "MLP norm output" in absent:
        return tensors
    if not kind.is_moe:
        return tensors + mlp(model, stack, s, model.ffn_hidden, "mlp", Recompute.MLP)
    return tensors + experts(model, stack, s)


ABSENT: dict[tuple[bool, bool], tuple[str, ...]] = {
    (False, False): (),
    (True, False): ("layer input", "attention norm output"),
    (False, True): ("attention residual", "MLP norm output"),
    (True, True): ("layer input", "attention norm output", "attention residual", "MLP norm output"),
}
"""Tensors of the residual stream that a layer without a mixer, or without a feed-forward, does not have."""


def seen(model: Model, kind: LayerKind, s: Share) -> tuple[Model, LayerKind, Share]:
    """The model, kind and share as the attention and feed-forward of layers of that kind have them."""
    view = model.layer_view(kind)
    if view is model:
        return model, kind, s
    return view, view.layers[0], s.replaced(kv_heads=np.maximum(view.num_kv_heads / s.tp, 1.0))


def _own_mixer(kind: LayerKind) -> Mixer | None:
    """The mixer of a layer that the model's attention fields cannot say."""
    return None if kind.mixer is None or is_plain_attention(kind.mixer) else kind.mixer


def residual_stream(model: Model, stack: Stack, kind: LayerKind, s: Share) -> list[Saved]:
    """Inputs of the two norms (2 u H bytes each), their outputs (inputs of linears), and dropout masks.

    A root-mean-square norm of several operations keeps, instead of its input, the FP32 copy of it and the normalised
    BF16 one that a trained weight multiplies (6 u H): transformers modeling_llama.py LlamaRMSNorm. A compiled
    one keeps no output where backward makes it again (`recomputes_norms`).

    The norm before a dense MLP is part of the MLP's first linear, so recomputing the MLP drops its output too. In FP8
    every linear keeps a cast of its own: MLA has two behind the first norm (queries, latents), of which one is the
    norm's output itself where it is projected again (`MLA_UP_PROJ`) without a latent. The router reads the second
    norm's output in BF16, shared experts in their precision, routed experts have their copies in `experts`.
    """
    mlp_norm = Recompute.LAYERNORM if kind.is_moe else Recompute.LAYERNORM | Recompute.MLP
    stream = s.split_tokens * model.hidden
    out = linear_input_bytes(stack, s) * stream
    is_cast = linear_input_bytes(stack, s) < BF16_BYTES
    attention_out = out
    if model.latent is not None:
        attention_out = out + np.where(is_cast, out, 0.0)
    mixer = model.mixer(kind)
    if any(p.k == model.hidden and p.group in mixer.core(model.hidden).up for p in mixer.projections(model.hidden)):
        goes_again = is_cast & has_up_again(mixer, model.hidden, s)
        attention_out = np.where(goes_again, out + BF16_BYTES * stream, attention_out)
    mlp_out = out
    if kind.is_moe:
        has_shared = model.beside_experts_hidden > 0
        mlp_out = BF16_BYTES * stream + np.where(is_cast & has_shared, out, 0.0)
    if stack.memory.recomputes_norms and stack.kernels.has_fused_norm:
        attention_out, mlp_out = 0.0 * attention_out, 0.0 * mlp_out
    mask = MASK_BYTES * stream * (1.0 if stack.kernels.has_dropout else 0.0)
    is_eager = model.norm == "rmsnorm" and not stack.kernels.has_fused_norm
    eager = FP32_BYTES + BF16_BYTES * (model.adapters is None)
    norm_input = (eager if is_eager else BF16_BYTES) * stream
    tensors = [
        Saved(name="layer input", bytes=norm_input),
        Saved(name="attention norm output", bytes=attention_out, dropped_by=Recompute.LAYERNORM, weight_input=True),
        Saved(name="attention residual", bytes=norm_input),
        Saved(name="MLP norm output", bytes=mlp_out, dropped_by=mlp_norm, weight_input=True),
        Saved(name="dropout masks", bytes=2.0 * mask),
    ]
    extra = model.num_norms - 2
    if extra > 0:
        tensors.append(Saved(name="outputs of blocks before their norm", bytes=extra * BF16_BYTES * stream))
    return tensors


def grouped_query_attention(model: Model, stack: Stack, s: Share) -> list[Saved]:
    """Queries, keys and values as attention saves them: 2 t (A + 2 G) d / tp bytes.

    A second copy of queries and keys lives on where values stay a view of the joint product, or where norms of
    queries and keys save their input (the same joint product).
    """
    queries = s.tokens * model.num_heads / s.tp * model.head_dim
    keys = s.tokens * s.kv_heads * model.head_dim
    tensors = [
        Saved(name="queries", bytes=BF16_BYTES * queries),
        Saved(name="keys and values", bytes=BF16_BYTES * 2.0 * keys),
    ]
    if model.has_qk_norm or (stack.memory.keeps_fused_qkv and not model.learned_positions):
        tensors.append(Saved(name="joint QKV beside its rotated copies", bytes=BF16_BYTES * (queries + keys)))
    return tensors


def latent_attention(model: Model, stack: Stack, s: Share) -> list[Saved]:
    """MLA: the latents before and after their norms, queries and keys assembled per head, values.

    Down-projections are not split by tp: they run on the tokens that the residual stream has, whose latents the
    up-projections gather. The norms of latents are part of the up-projections, and recomputed with them. Values are a
    tensor of their own: cut out of the up-projection, padded to the query/key size where the attention kernel wants
    equal sizes.
    Source: DeepSeek-V2 (arXiv:2405.04434) equations 9-19 for the shapes; Megatron-Core
    transformer/multi_latent_attention.py get_query_key_value_tensors (latents of s / TP tokens) and
    models/gpt/gpt_layer_specs.py (column_parallel_layer_norm_linear).
    """
    a = model.latent
    assert a is not None
    heads = model.num_heads / s.tp
    queries = s.tokens * heads * a.qk_head_dim
    values = s.tokens * heads * (a.qk_head_dim if stack.memory.latent_kv_padding else a.v_head_dim)
    latents = s.split_tokens * (a.q_lora_rank + a.kv_lora_rank)
    up = linear_input_bytes(stack, s) * latents
    return [
        Saved(name="latents before their norm", bytes=BF16_BYTES * (latents + s.split_tokens * a.qk_rope_head_dim)),
        Saved(name="latents", bytes=up, dropped_by=Recompute.MLA_UP_PROJ, weight_input=True),
        Saved(name="queries", bytes=BF16_BYTES * queries, dropped_by=Recompute.MLA_UP_PROJ),
        Saved(name="keys", bytes=BF16_BYTES * queries, dropped_by=Recompute.MLA_UP_PROJ),
        Saved(name="values", bytes=BF16_BYTES * values, dropped_by=Recompute.MLA_UP_PROJ),
    ]


def core_attention(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> list[Saved]:
    """Attention output (input of the output projection) and what the kernel keeps of the scores.

    A flash kernel keeps one FP32 log-sum-exp per query and head; without one, softmax output, dropout mask and
    dropout output are 2, 1 and 2 bytes per query, key and head (Korthikanti 2022: 5 a s^2 b), softmax in FP32 and its
    cast 6 where a stack says so. The kernel keeps its output in BF16. The projection saves the same tensor, or one of
    its own: the cast in FP8 (unless the stack shares the output), and behind the exchange of all-to-all context
    parallelism the output by tokens where the kernel's is by heads. Recompute of the core drops what the kernel keeps,
    not what the projection does.
    Source: Transformer Engine 2.8 to 2.14, attention/dot_product_attention/context_parallel.py (`out_part`), and
    Primus-Turbo ops/attention/flash_attn_usp_interface.py; Megatron-Core transformer/attention.py
    `_checkpointed_attention_forward`, which ends before the projection.
    """
    heads = model.num_heads / s.tp
    out = s.tokens * heads * model.v_head_dim
    read = attention_output_bytes(stack, s)
    of_kernel = np.where((read < BF16_BYTES) | exchanges_heads(s), BF16_BYTES * out, 0.0)
    tensors = [
        Saved(name="attention output", bytes=read * out, weight_input=True),
        Saved(name="attention output of the kernel", bytes=of_kernel, dropped_by=Recompute.CORE_ATTENTION),
    ]
    if stack.kernels.attention_kernel == UNFUSED:
        per_score = stack.memory.score_bytes + ((MASK_BYTES + BF16_BYTES) if stack.kernels.has_score_dropout else 0.0)
        scores = s.tokens * heads * float(seq_length)
        return [*tensors, Saved(name="scores", bytes=per_score * scores, dropped_by=Recompute.CORE_ATTENTION)]
    return [
        *tensors,
        Saved(name="log-sum-exp", bytes=FP32_BYTES * s.tokens * heads, dropped_by=Recompute.CORE_ATTENTION),
    ]


def attention_output_bytes(stack: Stack, s: Share) -> Floats:
    """Bytes per element of attention's output as the projection behind it saves it."""
    is_shared = stack.memory.shares_attention_output & ~s.is_delayed
    return np.where(is_shared, BF16_BYTES, linear_input_bytes(stack, s))


def exchanges_heads(s: Share) -> Bools:
    """Whether context parallelism exchanges tokens for heads around the kernel, among all its ranks or some."""
    mask: Bools = (s.cp > 1) & ((s.cp_comm == CpComm.A2A) | (INNER_RANKS[s.cp_comm] > 0))
    return mask


def mlp(model: Model, stack: Stack, s: Share, inner: float, name: str, dropped_by: Recompute) -> list[Saved]:
    """A dense MLP: what enters the activation function (gate and up, or up) and what leaves it."""
    width = s.tokens * inner / s.tp
    matrices = model.num_mlp_matrices - 1
    tensors = [
        Saved(name=f"{name} inner", bytes=BF16_BYTES * matrices * width, dropped_by=dropped_by),
        Saved(name=f"{name} activated", bytes=linear_input_bytes(stack, s) * width, dropped_by=dropped_by,
              weight_input=True),
    ]  # fmt: skip
    if model.is_gated and not stack.kernels.has_fused_activation:
        tensors.append(Saved(name=f"{name} gate activated", bytes=BF16_BYTES * width, dropped_by=dropped_by))
    return tensors


def experts(model: Model, stack: Stack, s: Share) -> list[Saved]:
    """A MoE layer after its norm: router, token copies as dispatched and permuted, expert MLPs, shared experts.

    Recompute of the activation drops its output, and in FP8 the cast of it, unless the stack's grouped GEMM keeps that.
    Recompute of the layer keeps its input alone, the output of the norm. The rows that enter the experts are a permuted
    copy of their own (R H), as are the copies that dispatch and combine keep for the gradient of the routing weights;
    how many depends on dispatcher and stack.
    """
    moe = model.moe
    assert moe is not None
    low = linear_input_bytes(stack, s)
    inner = s.routed_rows * moe.expert_ffn_hidden / s.etp
    masks = stack.memory.capacity_mask_bytes * s.capacity_places
    copies = np.where(s.has_fused_dispatch, stack.memory.deepep_expert_copies, stack.memory.expert_copies)
    is_cast = (low < BF16_BYTES) & stack.memory.keeps_fp8_activations
    cast = np.where(is_cast, low * inner, 0.0)
    router = s.split_tokens * moe.num_experts * (FP32_BYTES + FP32_BYTES + MASK_BYTES)
    tensors = [
        Saved(name="router", bytes=router + FP32_BYTES * s.routed_rows),
        Saved(name="expert input", bytes=low * s.routed_rows * model.expert_hidden, weight_input=True),
        Saved(
            name="permuted copies",
            bytes=np.where(masks > 0.0, 0.0, BF16_BYTES * copies * s.sent_rows * model.expert_hidden),
        ),
        Saved(name="expert inner", bytes=BF16_BYTES * (model.num_mlp_matrices - 1) * inner),
        Saved(
            name="expert activated", bytes=low * inner - cast, dropped_by=Recompute.MOE_ACTIVATION, weight_input=True
        ),
        Saved(name="expert activated in FP8", bytes=cast, weight_input=True),
        Saved(name="dispatch and combine masks", bytes=masks),
    ]
    if model.is_gated and not stack.kernels.has_fused_activation:
        steps = 1.0 + (CLAMPED_STEPS if model.activation_clamp else 0.0)
        width = BF16_BYTES * steps * inner
        tensors.append(Saved(name="expert activation, step by step", bytes=width, dropped_by=Recompute.MOE_ACTIVATION))
    if moe.has_shared_gate and moe.shared_ffn_hidden:
        tensors.append(Saved(name="shared experts before their gate", bytes=BF16_BYTES * s.split_tokens * model.hidden))
    if moe.latent_hidden:
        latents = s.tokens / s.tp * moe.latent_hidden
        latents = latents * (2.0 if moe.has_latent_norm else 1.0)
        tensors.append(Saved(name="latents of experts", bytes=BF16_BYTES * latents, weight_input=True))
    if model.beside_experts_hidden:
        tensors += mlp(model, stack, s, model.beside_experts_hidden, "shared experts", Recompute.SHARED_EXPERTS)
    return [replace(tensor, dropped_by=tensor.dropped_by | Recompute.MOE) for tensor in tensors]


def linear_input_bytes(stack: Stack, s: Share) -> Floats:
    """Bytes per element of a saved linear input: one under FP8 where the stack keeps the cast copy, else two."""
    return np.where(s.is_fp8 & stack.memory.saves_fp8_inputs, FP8_BYTES, BF16_BYTES)


def output_gradients(model: Model, kind: LayerKind, s: Share) -> Floats:
    """Gradients of the outputs of all trained linears of a layer, which a put-off weight gradient waits with."""
    if model.adapters is not None:
        return adapter_output_gradients(model, kind, s)
    return _all_output_gradients(model, kind, s)


def _all_output_gradients(model: Model, kind: LayerKind, s: Share) -> Floats:
    """BF16 bytes of the outputs of all linears of a layer."""
    own = _own_mixer(kind)
    model, kind, s = seen(model, kind, s)
    down = s.split_tokens + s.routed_rows if kind.is_moe else s.split_tokens
    stream = (s.split_tokens + down) * model.hidden
    if kind.is_moe and model.expert_hidden != model.hidden:
        stream = 2.0 * s.split_tokens * model.hidden + s.routed_rows * model.expert_hidden
    if own is not None:
        return BF16_BYTES * (stream + mixer_outputs(own, model.hidden, s) + _mlp_inner(model, kind, s))
    if model.latent is not None:
        a = model.latent
        per_head = a.qk_head_dim + a.qk_nope_head_dim + a.v_head_dim
        whole = a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim
        attention = s.tokens * (model.num_heads / s.tp * per_head + whole)
    else:
        attention = s.tokens * (model.num_heads / s.tp + 2.0 * s.kv_heads) * model.head_dim
    return BF16_BYTES * (stream + attention + _mlp_inner(model, kind, s))


def backward_transients(model: Model, kind: LayerKind, s: Share) -> Floats:
    """Gradients of activations while the MLP or the experts run backward, and sequences gathered over tp.

    Gradient of the activation's input and output, of the block's input and output; with sequence parallelism the
    norm output and its gradient exist gathered, over all tokens. A packed matrix is there in BF16.
    """
    own, unpacked = _own_mixer(kind), unpacked_bytes(model, kind, s)
    model, kind, s = seen(model, kind, s)
    matrices = model.num_mlp_matrices
    inner = _mlp_inner(model, kind, s) * matrices / (matrices - 1)
    rows = s.routed_rows + s.split_tokens if kind.is_moe else s.split_tokens
    gathered = np.where(s.split_tokens < s.tokens, 2.0 * s.tokens * model.hidden, 0.0)
    if own is not None:
        inner = np.maximum(inner, 2.0 * mixer_outputs(own, model.hidden, s))
    return BF16_BYTES * (inner + 2.0 * rows * model.hidden + gathered) + unpacked


def beside_backward(model: Model, stack: Stack, kind: LayerKind, s: Share, seq_length: int) -> Floats:
    """Query gradients that lie apart per part of the keys, and rows masked for every expert.

    FP32 tokens x heads x head size for each part. Source: ROCm/flash-attention csrc/flash_attn_ck/mha_bwd.cpp
    (`nsplits`, `dq_accum`); JAX lax `_ragged_dot_general_impl`, which broadcasts rows over groups and masks them.
    """
    m, parts = stack.memory, 0.0
    if m.query_split_keys and _own_mixer(kind) is None:
        parts = np.ceil(seq_length / m.query_split_keys)
    masked = s.local_experts * s.routed_rows * model.expert_hidden if kind.is_moe and m.masks_expert_rows else 0.0
    return (
        FP32_BYTES * parts * s.tokens * model.num_heads / s.tp * model.qk_head_dim
        + BF16_BYTES * m.masked_copies * masked
    )


def _mlp_inner(model: Model, kind: LayerKind, s: Share) -> Floats:
    """Elements of gate and up products of a layer, experts and shared experts included."""
    matrices = model.num_mlp_matrices - 1
    if not kind.is_moe:
        return matrices * s.tokens * model.ffn_hidden / s.tp
    assert model.moe is not None
    routed = s.routed_rows * model.moe.expert_ffn_hidden / s.etp
    return matrices * (routed + s.tokens * model.beside_experts_hidden / s.tp)


def kept_by_operation(model: Model, stack: Stack, kind: LayerKind, s: Share) -> Floats:
    """torchtitan's selective operation checkpointing: layer input, attention output, every second matmul's output.

    The products of routed experts are no `mm` but one grouped product, which the save list does not name. The modules
    of a layer with experts are compiled one by one inside the checkpoint, which sees what lies between them: of the
    list, the reduce-scatter of the experts' output where the stream is split. A linear with a bias is an `addmm`, which
    newer lists name without counting it: each is kept. So are tokens as dispatched and as combined (all_to_all_single,
    DeepEP), and grouped products where a list names them (OP_SAC_EXPERTS: save_grouped_mm of LambdaLabsML/torchtitan).
    Source: pytorch/torchtitan, torchtitan/models/llama3/infra/parallelize.py (`_op_sac_save_list`): every second `mm`
    recomputed; torchtitan/models/llama4/infra/parallelize.py (`apply_compile`); torch's
    `compute_intensive_ops` in torchtitan/distributed/activation_checkpoint.py.
    """
    products = _all_output_gradients(model, kind, s)
    model, kind, s = seen(model, kind, s)
    stream = BF16_BYTES * s.split_tokens * model.hidden
    if kind.is_moe and stack.memory.hides_expert_layers:
        return stream * np.where(s.split_tokens < s.tokens, 2.0, 1.0)
    heads = model.num_heads / s.tp
    attention = s.tokens * heads * (BF16_BYTES * model.v_head_dim + FP32_BYTES)
    products = products - _grouped_outputs(model, kind, s)
    if model.moe is not None and kind.is_moe and not model.beside_experts_hidden:
        products = products - stream
    share = 1.0 if model.has_linear_bias else 0.5
    exchanged = np.where((s.ep > 1) & kind.is_moe, 2.0 * BF16_BYTES * s.sent_rows * model.expert_hidden, 0.0)
    keeps_experts = np.not_equal(s.recompute & int(Recompute.OP_SAC_EXPERTS), 0)
    grouped = np.where(keeps_experts, _grouped_outputs(model, kind, s), 0.0)
    return stream + attention + share * products + exchanged + grouped


def _grouped_outputs(model: Model, kind: LayerKind, s: Share) -> Floats | float:
    """Outputs of the routed experts' products."""
    if not kind.is_moe:
        return 0.0
    assert model.moe is not None
    inner = (model.num_mlp_matrices - 1) * model.moe.expert_ffn_hidden / s.etp
    return BF16_BYTES * s.routed_rows * (model.expert_hidden + inner)


def _is_dropped(tensor: Saved, s: Share) -> Bools:
    mask: Bools = np.not_equal(s.recompute & int(tensor.dropped_by), 0)
    return mask
