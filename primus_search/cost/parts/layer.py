"""What one transformer layer runs on one device, per micro-batch: the list of its kernels at their true shapes.

Shapes (t tokens of a micro-batch on a context-parallel rank, u tokens where sequence parallelism splits them by tp):
QKV (t, (A + 2G) d / tp, H), output (t, H, A d / tp), gate and up in one product (t, 2F / tp, H), down (t, H, F / tp).
Tensor parallelism therefore narrows N or K, never the tokens. Keys and values are replicated where tp > G.
Context parallelism splits tokens with the zigzag balance, so each rank owns 1/cp of the causal pairs.
Bytes of memory-bound steps count every read and write of the kernels the stack has; see docs/cost/layer.md.

Forward work that backward repeats because its activations were not kept.

    core attention (Megatron's `selective`)  scores, softmax, values
    full                                     the whole layer, its collectives included
    modules                                  the named modules of Megatron-Core: MLA up-projections, MLP, expert
                                             activation, norms
    per-operation (torchtitan)               everything but attention's core and every second matrix product; grouped
                                             products of experts and their exchanges too
Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; Megatron-Core `recompute_modules`; torchtitan
`activation_checkpoint.selective_ac_option = "op"` and the operations it keeps, models/*/infra/parallelize.py.
"""

from functools import partial

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.attention import AttentionCall, ForwardBackward, attention_s
from primus_search.cost.laws.expert_products import expert_precision
from primus_search.cost.laws.gemm import operand_cast_s
from primus_search.cost.laws.memory_bound import Stream, stream_s
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.adapter_operations import with_adapters
from primus_search.cost.parts.mixer_operations import (
    attention_call,
    hyper_operations,
    is_plain_attention,
    latent_expert_operations,
    mixer_operations,
    per_layer_operations,
)
from primus_search.cost.parts.operations import (
    ELEMENTWISE,
    Call,
    GroupedLinear,
    LinearOp,
    Module,
    Operation,
    Part,
    Producer,
    Traffic,
    streamed,
)
from primus_search.cost.parts.routing import SCATTERED_ROWS, router_operations
from primus_search.cost.traffic.tensor_parallel import num_split_blocks
from primus_search.space.memo import in_order
from primus_search.values.candidates import Bools, Candidates, CudaGraph, Floats, Fp8, Ints, Recompute
from primus_search.values.job import Job
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.stack import UNFUSED, Stack
from primus_search.values.model import LayerKind, Model, NoFeedForward
from primus_search.values.workload import Workload

# Reads and writes of one element per kernel, forward and backward. A fused norm reads and writes once, and backward
# reads input and gradient and writes one; eager code runs one kernel per arithmetic step, in FP32 where the norm is.
_NORM = {True: (2.0, 3.0, 1, 2), False: (8.0, 14.0, 6, 9)}
_RESIDUAL = {True: (3.0, 3.0, 1, 1), False: (6.0, 5.0, 2, 2)}
_GATED = {True: (3.0, 5.0, 1, 1), False: (5.0, 9.0, 2, 4)}
_PLAIN = {True: (2.0, 3.0, 1, 1), False: (5.0, 6.0, 2, 2)}
_ROPE = {True: (2.0, 2.0, 1, 1), False: (8.0, 8.0, 6, 6)}
_COPY_PASSES = 2.0
# Bytes per score that mask and softmax in FP32, one by one, move beyond one kernel of both: cast 6, mask in place 5,
# softmax 8, cast back 6, less 4; backward cast 6, softmax 12, mask 5, cast 6, less 6. Source: NVIDIA/Megatron-LM
# megatron/model/fused_softmax.py forward_torch_softmax.
_FP32_SOFTMAX_BYTES = (21.0, 23.0)
DROPOUT_BYTES = 1.0 + 2.0

# Expert biases and clamps that no kernel fuses, in Megatron-Core 0.16.1. TEGroupedMLP._apply_bias adds the bias of the
# down projection expert by expert, times the routing weight, in FP32, and joins the pieces: bytes of an element of the
# output forward (split 0, product 4 + 4, sum 2 + 4 + 4, cast 4 + 2, join 2 + 2) and backward (casts, both gradients of
# the product, reductions over rows, join); kernels per expert and per call. weighted_bias_quick_geglu_impl clamps gate
# and up one by one and joins them before the fused kernel: passes over an inner element, kernels.
_EXPERT_BIAS_BYTES, _EXPERT_BIAS_KERNELS = (28.0, 40.0), ((2.0, 2.0), (5.0, 3.0))
_CLAMP = (8.0, 12.0, 3, 5)
# torch's grouped experts (pytorch/torchtitan models/gpt_oss/moe.py), compiled or eager. Every row gathers its expert's
# two biases and adds them: passes over an element of the output, of gate and up together, kernels; compiled, those of
# gate and up are in the activation's kernel. Eager steps of the activation beyond a plain one's (`_GATED`): clamps of
# strided halves, scale, addition of one; backward their gradients, written to zeros and summed.
_TORCH_BIAS = {True: (2.0, 0.0, 1.0), False: (4.0, 4.0, 4.0)}
_TORCH_CLAMP = {True: (0.0, 0.0, 0, 0), False: (12.0, 37.0, 4, 11)}


def layer_operations(job: Job, kind: LayerKind, c: Candidates) -> list[Operation]:
    """Every kernel of one layer of that kind, collectives apart; where weights are frozen, those of adapters too."""
    kernels = _base_operations(job, kind, c)
    return kernels if job.model.adapters is None else with_adapters(job, kind, c, kernels)


def _base_operations(job: Job, kind: LayerKind, c: Candidates) -> list[Operation]:
    """Every kernel of the model's own weights."""
    blocks, mixer = job.model.num_blocks(kind), kind.mixer
    has_feed_forward = not isinstance(kind.feed_forward, NoFeedForward)
    streams, split_blocks = job.model.hyper_streams, num_split_blocks(job.model, kind)
    job, kind = job.layer(kind)
    model, stack, s = job.model, job.stack, Share.of(job, c)
    copies = gathered_copies(model, split_blocks, stack, c, s)
    ops = [*norm_operations(model, stack, s, blocks), *copies]
    if mixer is not None and not is_plain_attention(mixer):
        ops += mixer_operations(job, mixer, kind.window, c, s)
    else:
        ops += latent_projections(model, stack, c, s) if model.latent else projections(model, stack, c, s)
        ops.append(core_attention(job, kind, c))
    if streams:
        ops += hyper_operations(model, c, s, streams)
    if model.per_layer_embedding:
        ops += per_layer_operations(model, s)
    if not has_feed_forward:
        return ops
    if kind.is_moe:
        return ops + expert_operations(model, job.workload, stack, c, s)
    return ops + mlp_operations(model, stack, c, s, model.ffn_hidden)


def norm_operations(model: Model, stack: Stack, s: Share, blocks: int = 2) -> list[Operation]:
    """Norms over the hidden size and residual additions of a layer with so many blocks on the residual stream."""
    elements = s.split_tokens * model.hidden * BF16_BYTES
    add_forward, add_backward, add_fk, add_bk = _RESIDUAL[stack.kernels.has_fused_residual]
    dropout = s.split_tokens * model.hidden * DROPOUT_BYTES * (1.0 if stack.kernels.has_dropout else 0.0)
    passes = [model.num_norms * one for one in _NORM[stack.kernels.has_fused_norm]]
    norms = streamed(Part.NORMS, Module.NORM, s.split_tokens * model.hidden, passes)
    residuals = Traffic(
        Part.NORMS,
        Module.ELEMENTWISE,
        (blocks * (add_forward * elements + dropout), blocks * (add_backward * elements + dropout)),
        kernels=(blocks * add_fk, blocks * add_bk),
    )
    return [norms, residuals]


def gathered_copies(model: Model, split_blocks: int, stack: Stack, c: Candidates, s: Share) -> list[Operation]:
    """Copies that put a gathered sequence in order before a block and parts of one after it, where a stack needs them.

    Source: "we can accelerate Sequence Parallel by folding (and unfolding) the batch dimension and the sequence
    dimension" (pytorch/torchtitan models/llama3/infra/parallelize.py): torch gathers along the first dimension, then
    splits and joins along the second. Compiled code does so in the kernel that comes next.
    """
    if not stack.communication.copies_gathered:
        return []
    copied = np.where(c.sequence_parallel & (c.tp > 1), 2.0 * s.tokens * model.hidden * BF16_BYTES, 0.0)
    count = 2.0 * split_blocks
    return [Traffic(Part.TENSOR_COMM, Module.COMM, (count * copied, count * copied), kernels=(count, count))]


def projections(model: Model, stack: Stack, c: Candidates, s: Share) -> list[Operation]:
    """Fused QKV, rotary embedding and the output projection of multi-head or grouped-query attention."""
    q_out = model.num_heads * model.head_dim / c.tp
    kv_out = s.kv_heads * model.head_dim
    linear = partial(LinearOp, Part.ATTENTION, Module.LINEAR, s.tokens, precision=c.fp8)
    ops: list[Operation] = [
        linear(q_out + 2 * kv_out, model.hidden, producer=Producer.NORM, input_share=s.split_share),
        linear(model.hidden, q_out, gradient_share=s.split_share),
    ]
    if not model.learned_positions:
        ops.append(_rope(stack, s.tokens * (q_out + kv_out)))
    if model.has_qk_norm:
        ops.append(_small_norm(stack, s.tokens * (q_out + kv_out)))
    return ops


def latent_projections(model: Model, stack: Stack, c: Candidates, s: Share) -> list[Operation]:
    """The low-rank projections of multi-head latent attention; down-projections are not split by tensor parallelism.

    Queries and keys are then assembled from their rotary and plain halves: one copy each.
    """
    a = model.latent
    assert a is not None
    q_out, v_out = model.num_heads * a.qk_head_dim / c.tp, model.num_heads * a.v_head_dim / c.tp
    kv_out = model.num_heads * (a.qk_nope_head_dim + a.v_head_dim) / c.tp

    linear = partial(LinearOp, Part.ATTENTION, Module.LINEAR, precision=c.fp8)
    split = partial(LinearOp, Part.ATTENTION, m=s.tokens, precision=c.fp8, input_share=s.split_share)
    if a.q_lora_rank:
        ops: list[Operation] = [
            linear(s.split_tokens, a.q_lora_rank, model.hidden, producer=Producer.NORM),
            _small_norm(stack, s.split_tokens * a.q_lora_rank),
            split(Module.MLA_UP, n=q_out, k=a.q_lora_rank, producer=Producer.NORM),
        ]
    else:
        ops = [split(Module.MLA_UP, n=q_out, k=model.hidden, producer=Producer.NORM)]
    return [
        *ops,
        linear(s.split_tokens, a.kv_lora_rank + a.qk_rope_head_dim, model.hidden),
        _small_norm(stack, s.split_tokens * a.kv_lora_rank),
        split(Module.MLA_UP, n=kv_out, k=a.kv_lora_rank, producer=Producer.NORM),
        linear(s.tokens, model.hidden, v_out, gradient_share=s.split_share),
        _latent_rope(stack, s.tokens * 2.0 * q_out, a.qk_rope_head_dim / a.qk_head_dim),
    ]


def _rope(stack: Stack, elements: Floats) -> Traffic:
    return streamed(Part.ATTENTION, Module.MLA_UP, elements, _ROPE[stack.kernels.has_fused_rope])


def _latent_rope(stack: Stack, elements: Floats, rotated: float) -> Traffic:
    """Rotation of a share of every head; without a kernel for it a copy joins the rotated and the plain part."""
    if stack.kernels.has_fused_latent_rope:
        return _rope(stack, elements)
    forward, backward, forward_kernels, backward_kernels = _ROPE[False]
    passes = (rotated * forward + _COPY_PASSES, rotated * backward + _COPY_PASSES)
    return streamed(Part.ATTENTION, Module.MLA_UP, elements, (*passes, forward_kernels + 2, backward_kernels + 2))


def _small_norm(stack: Stack, elements: Floats) -> Traffic:
    return streamed(Part.NORMS, Module.NORM, elements, _NORM[stack.kernels.has_fused_norm])


def core_attention(job: Job, kind: LayerKind, c: Candidates) -> Call:
    """Scores, softmax and values, in FP8 where the candidate says so and the device has the kernel."""
    model, stack, acc = job.model, job.stack, job.accelerator
    kv_heads = model.num_heads if model.latent else model.num_kv_heads
    kernel, call = attention_call(job, c, model.num_heads, kv_heads, model.qk_head_dim, model.v_head_dim, kind.window)
    times = attention_s(acc, kernel, **call)
    rate = stack.efficiencies.attention_efficiency * acc.training_rate
    forward_s, backward_s = times.forward_s / rate, times.backward_s / rate
    low_kernel = acc.attention.in_fp8(kernel)
    if low_kernel and c.fp8_attention.any():
        low, casts = attention_s(acc, low_kernel, **call), attention_casts_s(acc, c, call)
        forward_s = np.where(c.fp8_attention, low.forward_s / rate + casts.forward_s, forward_s)
        backward_s = np.where(c.fp8_attention, low.backward_s / rate + casts.backward_s, backward_s)
    kernels = (6.0, 9.0) if kernel == UNFUSED else (1.0, 3.0)
    if kernel == UNFUSED and not stack.kernels.has_fused_softmax:
        sizes = (call["batch"], call["heads"], call["seq_q"], call["seq_kv"])
        scores = np.prod(np.broadcast_arrays(*(np.asarray(one, np.float64) for one in sizes)), axis=0)
        forward_s = forward_s + stream_s(acc, _FP32_SOFTMAX_BYTES[0] * scores, Stream.SOFTMAX) / acc.training_rate
        backward_s = backward_s + stream_s(acc, _FP32_SOFTMAX_BYTES[1] * scores, Stream.SOFTMAX) / acc.training_rate
    return Call(Part.ATTENTION, Module.CORE, (forward_s, backward_s), kernels=kernels)


def attention_casts_s(acc: Accelerator, c: Candidates, call: AttentionCall) -> ForwardBackward:
    """Seconds of the casts of attention in FP8: queries, keys and values forward, the gradient of its output backward.

    Block scales run along one direction, so MXFP8 writes both layouts; one scale per tensor serves both. NVFP4 runs
    attention with one scale per tensor (NVIDIA-NeMo/Megatron-Bridge#5394).
    """
    heads, kv_heads, qk_dim, v_dim = (np.asarray(call[x], np.float64) for x in ("heads", "kv_heads", "qk_dim", "v_dim"))
    tokens = np.asarray(call["batch"]) * np.asarray(call["seq_q"])
    recipe = np.where(c.fp8 == Fp8.NVFP4, Fp8.HYBRID, c.fp8)
    inputs = tokens * (heads * qk_dim + kv_heads * (qk_dim + v_dim))
    forward_s, backward_s = (
        operand_cast_s(acc, elements, 1.0, recipe, np.False_)[0] for elements in (inputs, tokens * heads * v_dim)
    )
    return ForwardBackward(forward_s=forward_s, backward_s=backward_s)


def mlp_operations(model: Model, stack: Stack, c: Candidates, s: Share, ffn_hidden: float) -> list[Operation]:
    """A dense MLP (or all shared experts as one) split by tensor parallelism."""
    inner = ffn_hidden / c.tp
    gates = model.num_mlp_matrices - 1
    linear = partial(LinearOp, Part.MLP, Module.MLP, s.tokens, precision=c.fp8)
    return [
        linear(gates * inner, model.hidden, producer=Producer.NORM, input_share=s.split_share),
        _activation(model, stack, s.tokens * inner, Part.MLP, Module.ACTIVATION),
        linear(model.hidden, inner, producer=Producer.ACTIVATION, gradient_share=s.split_share),
    ]


def _activation(model: Model, stack: Stack, elements: Floats, part: Part, module: Module) -> Traffic:
    passes = (_GATED if model.is_gated else _PLAIN)[stack.kernels.has_fused_activation]
    return streamed(part, module, elements, passes, ELEMENTWISE)


def expert_operations(model: Model, workload: Workload, stack: Stack, c: Candidates, s: Share) -> list[Operation]:
    """Router, permutation, local experts and shared experts of a MoE layer."""
    moe = model.moe
    assert moe is not None
    inner, gates = moe.expert_ffn_hidden / c.etp, model.num_mlp_matrices - 1
    routed, is_joined = s.expert_rows * s.local_experts, _joins_experts(model, stack, c)
    grouped = partial(
        GroupedLinear,
        part=Part.EXPERTS,
        module=Module.EXPERTS,
        rows=s.expert_rows,
        groups=s.local_experts,
        precision=c.fp8,
        mode=c.grouped_gemm,
        is_joined=is_joined,
    )
    outer = np.full_like(inner, float(model.expert_hidden))
    ops = router_operations(model, workload, stack, c, expert_tokens=s.expert_tokens, routed_rows=routed)
    ops += [
        grouped(n=gates * inner, k=outer, consumer=Producer.ACTIVATION),
        _activation(model, stack, np.where(is_joined, 0.0, routed * inner), Part.EXPERTS, Module.EXPERT_ACTIVATION),
        grouped(n=outer, k=inner, producer=Producer.ACTIVATION),
    ]
    if model.has_linear_bias:
        ops += _biases(stack, routed * model.expert_hidden, gates * routed * inner, s.local_experts)
    if model.activation_clamp:
        is_torch = stack.experts.permutation.startswith("indexed")
        passes = _TORCH_CLAMP[stack.kernels.has_fused_activation] if is_torch else _CLAMP
        elements = np.where(is_joined, 0.0, routed * inner)
        ops.append(streamed(Part.EXPERTS, Module.EXPERT_ACTIVATION, elements, passes, ELEMENTWISE))
    if moe.latent_hidden:
        ops += latent_expert_operations(model, c, s)
    if model.beside_experts_hidden:
        ops += mlp_operations(model, stack, c, s, model.beside_experts_hidden)
    return ops


def _biases(stack: Stack, outputs: Floats, inner: Floats, experts: Floats) -> list[Operation]:
    """Biases of a rank's experts: of down projections, added expert by expert, or of both products, gathered by row and
    added, with the gradients of the two gathers."""
    if not stack.experts.permutation.startswith("indexed"):
        (forward_each, forward_once), (backward_each, backward_once) = _EXPERT_BIAS_KERNELS
        kernels = (forward_each * experts + forward_once, backward_each * experts + backward_once)
        moved = (_EXPERT_BIAS_BYTES[0] * outputs, _EXPERT_BIAS_BYTES[1] * outputs)
        return [Traffic(Part.EXPERTS, Module.EXPERTS, moved, kernels)]
    of_output, of_inner, launches = _TORCH_BIAS[stack.kernels.has_fused_activation]
    added = (of_output * outputs + of_inner * inner) * BF16_BYTES
    scattered = SCATTERED_ROWS * (outputs + inner) * BF16_BYTES
    return [
        Traffic(Part.EXPERTS, Module.EXPERTS, (added, np.zeros_like(added)), (launches, 0.0)),
        Traffic(Part.EXPERTS, Module.EXPERTS, (np.zeros_like(added), scattered), (0.0, 2.0), (Stream.GATHER,) * 2),
    ]


def _joins_experts(model: Model, stack: Stack, c: Candidates) -> Bools:
    """Where the experts' products write activation and casts themselves: gated MXFP8 experts whose token counts stay
    on the device, as a graph of the whole step needs them (NVIDIA-NeMo/Megatron-Bridge#3983 and #4249).

    Clamps are part of it (TransformerEngine pytorch/ops/_common.py, fuse_grouped_mlp_ops: ScaledClampedQGeGLU), the
    bias of the down projection, times the routing weight, is taken as added outside (docs/cost/grouped_gemm.md).
    """
    is_on = stack.experts.has_fused_graphed_experts and model.is_gated
    is_graphed = c.graph_scope(stack.host.cuda_graph) == CudaGraph.FULL
    mask: Bools = (expert_precision(c.fp8, c.grouped_gemm) == Fp8.MXFP8) & is_graphed & is_on
    return mask


_REPEATS: dict[Recompute, dict[Module, float]] = {
    Recompute.CORE_ATTENTION: {Module.CORE: 1.0},
    Recompute.MLA_UP_PROJ: {Module.MLA_UP: 1.0},
    Recompute.MOE_ACTIVATION: {Module.EXPERT_ACTIVATION: 1.0},
    Recompute.LAYERNORM: {Module.NORM: 1.0},
    Recompute.HYPER_CONNECTIONS: {Module.ELEMENTWISE: 1.0},
    Recompute.MOE: dict.fromkeys((Module.EXPERTS, Module.EXPERT_ACTIVATION, Module.ROUTER, Module.EXPERT_COMM), 1.0),
    Recompute.OP_SAC: {
        Module.LINEAR: 0.5,
        Module.MLA_UP: 0.5,
        Module.MLP: 0.5,
        Module.EXPERTS: 1.0,  # one grouped product, not an `mm`: never kept
        Module.NORM: 1.0,
        Module.ACTIVATION: 1.0,
        Module.EXPERT_ACTIVATION: 1.0,
        Module.ROUTER: 1.0,
        Module.ELEMENTWISE: 1.0,
        Module.EXPERT_COMM: 1.0,  # of collectives only reduce-scatters are kept
    },
    Recompute.FULL: dict.fromkeys(Module, 1.0),
}


def recompute_shares(forward_module_s: Floats, recompute: Ints) -> Floats:
    """Share of each module's forward that one recomputed layer repeats in backward, (modules, candidates).

    forward_module_s  (modules, rows) of `work.Work`
    """
    shares = np.zeros((len(Module), len(recompute)))
    for flag, repeats in _REPEATS.items():
        is_on = ((recompute & int(flag)) > 0).astype(np.float64)
        for module, share in repeats.items():
            shares[module] = np.maximum(shares[module], share * is_on)
    beside = Recompute.MOE | Recompute.SHARED_EXPERTS  # in a layer with experts the MLP is that of shared ones
    repeats_mlp = (recompute & np.where(forward_module_s[Module.EXPERTS] > 0.0, int(beside), int(Recompute.MLP))) > 0
    for module in (Module.MLP, Module.ACTIVATION):
        shares[module] = np.maximum(shares[module], repeats_mlp)
    keeps_experts = ((recompute & int(Recompute.OP_SAC_EXPERTS)) > 0) & ((recompute & int(Recompute.FULL)) == 0)
    shares[Module.EXPERTS] = np.where(keeps_experts, 0.0, shares[Module.EXPERTS])
    return shares


def recompute_s(forward_module_s: Floats, recompute: Ints) -> Floats:
    """Seconds one recomputed layer adds to its backward on the device; 0 where nothing is recomputed."""
    return in_order([np.zeros(len(recompute)), *(recompute_shares(forward_module_s, recompute) * forward_module_s)])
