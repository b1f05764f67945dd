"""Seconds of one attention call (scores, softmax, values) on one device, forward and backward.

Fused kernels never store the scores. Their rate rises with the head dimension (exponentials and rescaling cost the
same for every pair of query and key) and with the number of keys (prologue, partly masked blocks):

    rate    = peak * efficiency(kernel) * d / (d + d0) * s / (s + s0 + c0 [causal]) / wave
    forward = 2 * batch * heads * pairs * (qk_dim + v_dim) / rate
    pairs   = seq_q * seq_kv - seq_q^2 / 2 under a causal mask, cut by a sliding window
    d       = (qk_dim + v_dim) / 2,  s = pairs / seq_q
    wave    = (max(ceil(u), 1) / u)^p,  u = batch * heads * ceil(seq_q / 128) / units  (last wave, as in `gemm`)

Backward does five products where forward does two: 2.5 times the FLOPs at the kernel's backward rate.
The `unfused` family stores the scores: two batched GEMMs over the full square and passes of softmax, mask and dropout
over seq_q x seq_kv elements. Parameters: `accelerator.AttentionLaw`; errors: docs/cost/attention.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from primus_search.cost.laws.gemm import GemmPass, tiled_s
from primus_search.cost.laws.measured_correction import measured_over_law
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.values.candidates import Floats, Fp8
from primus_search.values.machine.accelerator import Accelerator, AttentionKernel
from primus_search.values.machine.stack import UNFUSED

# Backward recomputes the scores and forms dV, dP, dQ, dK: five products against two (FlashAttention, arXiv:2205.14135).
BACKWARD_FLOPS = 2.5

# Bytes per score element an unfused layer moves: forward writes scores, softmax reads and writes, dropout reads, writes
# and keeps a one-byte mask, the value product reads (BF16); backward the gradient of each (arXiv:2205.05198, sec. 4).
UNFUSED_FORWARD_BYTES = 2.0 + 4.0 + 5.0 + 2.0
UNFUSED_BACKWARD_BYTES = 2.0 + 2.0 + 5.0 + 6.0 + 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """Seconds of a call's forward and backward pass."""

    forward_s: Floats
    backward_s: Floats


def attended_pairs(seq_q: Floats, seq_kv: Floats, window: Floats, causal: np.ndarray) -> Floats:
    """Query-key pairs of one head; queries are the last `seq_q` of `seq_kv` positions when causal.

    A window w (0 = none) limits every query to w keys. For seq_q = seq_kv = S this is S times
    `model.mixer.attended_tokens`.
    """
    keys = np.where(window > 0, np.minimum(window, seq_kv), seq_kv)
    # Under a causal mask the first queries see fewer than `keys`: the ones before position `keys`.
    short = np.clip(keys - (seq_kv - seq_q), 0.0, seq_q)
    return seq_q * keys - np.where(causal, 0.5 * short * short, 0.0)


class AttentionCall(TypedDict):
    """Sizes of attention calls, each a number or a column. `heads` are the device's own; every call is causal and
    without a window unless it says otherwise."""

    batch: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    seq_q: ArrayLike
    seq_kv: ArrayLike
    qk_dim: ArrayLike
    v_dim: ArrayLike
    window: NotRequired[ArrayLike]
    causal: NotRequired[ArrayLike]


def attention_s(acc: Accelerator, kernel: str, **call: Unpack[AttentionCall]) -> ForwardBackward:
    """Seconds of one call on one device; 0 where batch, heads or a length is 0.

    `kernel` is a family in the accelerator's table, or `unfused`; KeyError names the families it has.
    """
    given = (call["batch"], call["heads"], call["kv_heads"], call["seq_q"], call["seq_kv"], call["qk_dim"])
    batch, heads, kv_heads, seq_q, seq_kv, qk_dim, v_dim, window = (
        np.asarray(x, np.float64) for x in (*given, call["v_dim"], call.get("window", 0))
    )
    if kernel == UNFUSED:
        return _unfused(acc, batch * heads, seq_q, seq_kv, qk_dim, v_dim)
    causal = np.asarray(call.get("causal", True), np.bool_)
    shape = (batch * heads, batch * kv_heads, seq_q, seq_kv, qk_dim, v_dim, window, causal)
    modelled = _law_s(acc, kernel, *shape)
    if not acc.tables:
        return modelled
    is_plain = causal & (window == 0) & (seq_q == seq_kv) & (qk_dim == v_dim)
    sizes = (batch * heads, seq_q, qk_dim)
    forward, backward = (
        np.where(is_plain, measured_over_law(acc.tables.of(f"attention/{kernel}/{word}"), law, *sizes), 1.0)
        for word, law in (("fwd", partial(_plain_s, acc, kernel, True)), ("bwd", partial(_plain_s, acc, kernel, False)))
    )
    return ForwardBackward(forward_s=modelled.forward_s * forward, backward_s=modelled.backward_s * backward)


def _plain_s(acc: Accelerator, kernel: str, is_forward: bool, heads: Floats, seq: Floats, dim: Floats) -> Floats:
    """The law of a causal call over whole sequences with as many key as query heads: what tables are measured with."""
    both = _law_s(acc, kernel, heads, heads, seq, seq, dim, dim, np.zeros_like(seq), np.asarray(True))
    return both.forward_s if is_forward else both.backward_s


def _law_s(
    acc: Accelerator,
    kernel: str,
    heads: Floats,
    kv_heads: Floats,
    seq_q: Floats,
    seq_kv: Floats,
    qk_dim: Floats,
    v_dim: Floats,
    window: Floats,
    causal: np.ndarray,
) -> ForwardBackward:
    """Seconds by the law; query and key heads are those of all sequences together."""
    family = kernel_family(acc, kernel)
    pairs = attended_pairs(seq_q, seq_kv, window, causal)
    keys = pairs / np.maximum(seq_q, 1.0)
    dims = 0.5 * (qk_dim + v_dim)
    law = acc.attention
    ramp = law.ramp_tokens + np.where(causal, law.causal_tokens, 0.0)
    shape = dims / (dims + law.softmax_dims) * keys / (keys + ramp) / _wave_loss(acc, heads, seq_q)
    flops = 4.0 * heads * pairs * dims
    small = np.where(dims <= SMALL_HEAD, family.small_head_factor, 1.0)
    rate = acc.bf16_peak_flops_per_s * np.where(shape > 0, shape, 1.0) * small
    latent = np.where(qk_dim != v_dim, family.latent_backward_factor, 1.0)
    q_bytes, kv_bytes = (heads * seq_q * (qk_dim + v_dim) * 2.0, kv_heads * seq_kv * (qk_dim + v_dim) * 2.0)
    traffic_s = (q_bytes + kv_bytes) / bandwidth_bytes_per_s(acc, Stream.ELEMENTWISE)
    forward_s = np.maximum(flops / (rate * family.forward_efficiency), traffic_s)
    backward_s = np.maximum(BACKWARD_FLOPS * flops / (rate * family.backward_efficiency * latent), 2.0 * traffic_s)
    exists = flops > 0
    return ForwardBackward(
        forward_s=np.where(exists, law.latency_s + forward_s, 0.0),
        backward_s=np.where(exists, 2.0 * law.latency_s + backward_s, 0.0),
    )


# Head dimensions up to which hand-written kernels of some families (aiter) do not exist.
SMALL_HEAD = 64.0

# Query rows one block of a fused kernel works on (FlashAttention-2/3, cuDNN and aiter use 128 for large heads).
BLOCK_ROWS = 128.0


def _wave_loss(acc: Accelerator, heads: Floats, seq_q: Floats) -> Floats:
    """Factor by which an incomplete last wave of query blocks slows a call down."""
    waves = np.maximum(heads * np.ceil(seq_q / BLOCK_ROWS), 1.0) / acc.num_compute_units
    return (np.maximum(np.ceil(waves), 1.0) / waves) ** acc.gemm.occupancy_power


def kernel_family(acc: Accelerator, kernel: str) -> AttentionKernel:
    """The rates of a kernel family on this device."""
    try:
        return acc.attention.kernels[kernel]
    except KeyError:
        known = ", ".join([*sorted(acc.attention.kernels), UNFUSED])
        raise KeyError(f"{acc.name} has no attention kernel '{kernel}'; it has: {known}") from None


def _unfused(
    acc: Accelerator, heads: Floats, seq_q: Floats, seq_kv: Floats, qk_dim: Floats, v_dim: Floats
) -> ForwardBackward:
    """Attention that stores its scores; the mask hides the upper half but the GEMMs still compute it."""
    bf16 = np.asarray(Fp8.NONE, np.int64)
    seq_q, seq_kv, qk_dim, v_dim, heads = np.broadcast_arrays(seq_q, seq_kv, qk_dim, v_dim, heads)

    def product_s(m: Floats, n: Floats, k: Floats, gemm_pass: GemmPass) -> Floats:
        return tiled_s(acc, m, n, k, heads, bf16, gemm_pass)

    forward, backward = GemmPass.FORWARD, GemmPass.INPUT_GRAD
    scores_s = product_s(seq_q, seq_kv, qk_dim, forward) + product_s(seq_q, v_dim, seq_kv, forward)
    gradients_s = (
        product_s(seq_q, seq_kv, v_dim, backward)
        + product_s(seq_kv, v_dim, seq_q, backward)
        + product_s(seq_q, qk_dim, seq_kv, backward)
        + product_s(seq_kv, qk_dim, seq_q, backward)
    )
    per_byte_s = heads * seq_q * seq_kv / bandwidth_bytes_per_s(acc, Stream.SOFTMAX)
    exists = heads * seq_q * seq_kv > 0
    return ForwardBackward(
        forward_s=np.where(exists, 4 * acc.memory.latency_s + scores_s + UNFUSED_FORWARD_BYTES * per_byte_s, 0.0),
        backward_s=np.where(exists, 6 * acc.memory.latency_s + gradients_s + UNFUSED_BACKWARD_BYTES * per_byte_s, 0.0),
    )
