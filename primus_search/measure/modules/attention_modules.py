"""The score and value product of attention, on a device or under a trace.

On a device torch's own `scaled_dot_product_attention` picks the kernel (cuDNN, flash, memory-efficient, CPU flash).
Under `FakeTensorMode` an operation without kernel stands in for it: it keeps what flash attention keeps (queries,
keys, values, output and one fp32 log-sum per query and head; Dao 2023, arXiv:2307.08691) and counts the causal FLOPs
exactly, where torch's own counter takes the full square.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from primus_search.measure.modules.fused_operations import gather


class MissingKernelError(RuntimeError):
    """This device has no kernel for the operation; its time cannot be measured here."""


def core_attention(q: Tensor, k: Tensor, v: Tensor, *, seq_length: int, window: int) -> Tensor:
    """Causal attention of [batch, heads, seq, dim] tensors, grouped key/value heads allowed; same shape out as q x v.

    seq_length is the whole sequence. Where q holds only a context-parallel share of it, each query meets S/2 keys on
    average whatever the rank (zigzag split), so one device times it as full attention over S/2 gathered keys.
    """
    if isinstance(q, FakeTensor):
        traced: Tensor = _TracedAttention.apply(q, k, v, seq_length, window)  # type: ignore[no-untyped-call]
        return traced
    ranks = seq_length // q.shape[2]
    if 0 < window < seq_length:
        if q.device.type == "cpu" or ranks > 1 or v.shape[-1] != q.shape[-1]:
            raise MissingKernelError(f"no windowed attention kernel in torch for {q.device.type} (window {window})")
        return _windowed(q, k, v, window)
    if ranks > 1:
        k, v = (gather(part.transpose(1, 2), ranks)[:, : seq_length // 2].transpose(1, 2) for part in (k, v))
    is_grouped, v_dim = q.shape[1] != k.shape[1], v.shape[-1]
    if v_dim != q.shape[-1] and not _takes_two_dims(q, k, v, is_grouped):
        v = F.pad(v, (0, q.shape[-1] - v_dim))  # flash attention wants one head dimension
    out = F.scaled_dot_product_attention(q, k, v, is_causal=ranks == 1, enable_gqa=is_grouped)
    return out[..., :v_dim]


def _takes_two_dims(q: Tensor, k: Tensor, v: Tensor, is_grouped: bool) -> bool:
    """Whether a fast kernel takes values of another head dimension than queries: cuDNN's on NVIDIA may.

    torch's memory-efficient kernel does too, but is slower than flash attention on padded values.
    """
    if q.device.type == "cpu" or torch.version.hip is not None:
        return False
    asked = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, is_grouped)
    return torch.backends.cuda.can_use_cudnn_attention(asked)


def _windowed(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention of every query to the `window` keys before it, its own included: flash attention's kernel.

    torch has it for sequences packed one after another (`torch.nn.attention.varlen`).
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise MissingKernelError(f"torch {torch.__version__} has no windowed attention") from error
    batch, heads, seq, dim = q.shape
    ends = torch.arange(0, (batch + 1) * seq, seq, dtype=torch.int32, device=q.device)
    query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    sight, is_grouped = (window - 1, 0), heads != k.shape[1]
    try:
        out = varlen_attn(query, key, value, ends, ends, seq, seq, window_size=sight, enable_gqa=is_grouped)
    except TypeError as error:  # an older torch, whose packed attention knows neither windows nor groups
        raise MissingKernelError(f"torch {torch.__version__} has no windowed attention: {error}") from error
    assert isinstance(out, Tensor)
    return out.view(batch, seq, heads, dim).transpose(1, 2)


@torch.library.custom_op("primus_search::attention", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor, seq_length: int, window: int) -> tuple[Tensor, Tensor]:
    raise MissingKernelError("traced attention has no kernel")


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, seq_length: int, window: int) -> tuple[Tensor, Tensor]:
    # Kernels write [batch, seq, heads, dim], which the output projection then reads without a copy.
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("primus_search::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, seq_length: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    raise MissingKernelError("traced attention has no kernel")


@_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, seq_length: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def attended_pairs(seq_length: int, window: int) -> float:
    """Query-key pairs of one head over one whole causal sequence, diagonal halved: S^2/2, less with a window w < S.

    Formula: S^2/2, or w S - w^2/2 for a window; the convention of `Model.attention_flops`.
    """
    if window == 0 or window >= seq_length:
        return seq_length * seq_length / 2.0
    return window * seq_length - window * window / 2.0


@register_flop_formula(torch.ops.primus_search.attention)
def _attention_flops(q: list[int], k: list[int], v: list[int], seq_length: int, window: int, **_: Any) -> int:
    batch, heads, seq, qk_dim = q
    share = seq / seq_length
    return round(2.0 * batch * heads * share * attended_pairs(seq_length, window) * (qk_dim + v[-1]))


@register_flop_formula(torch.ops.primus_search.attention_backward)
def _attention_backward_flops(
    grad: list[int],
    q: list[int],
    k: list[int],
    v: list[int],
    out: list[int],
    log_sum: list[int],
    seq_length: int,
    window: int,
    **_: Any,
) -> int:
    """Twice the forward: four products of the algorithm; the fifth, which flash kernels redo, is no model FLOP."""
    return 2 * _attention_flops(q, k, v, seq_length, window)


class _TracedAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seq_length: int, window: int) -> Tensor:
        out, log_sum = torch.ops.primus_search.attention(q, k, v, seq_length, window)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.sizes = (seq_length, window)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        grad_q, grad_k, grad_v = torch.ops.primus_search.attention_backward(grads[0], *ctx.saved_tensors, *ctx.sizes)
        return grad_q, grad_k, grad_v, None, None
