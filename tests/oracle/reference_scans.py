"""State-space models and linear attention in chunks: the algorithms of the fused kernels, in plain torch.

All take [batch, seq, heads, size] tensors and pad the sequence to whole chunks. Sources: Dao and Gu 2024
(arXiv:2405.21060) section 6 for SSD; Yang, Kautz, Hatamizadeh 2024 (arXiv:2412.06464) section 3 for the gated delta
rule; Kimi Linear (arXiv:2510.26692) section 3 for a decay per channel; Qin et al. 2024 (arXiv:2401.04658) for blocked
linear attention with a fixed decay.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor

from tests.support.attention_kernel import without_kernel


def short_convolution(x: Tensor, weight: Tensor, *, activated: int = 1) -> Tensor:
    """Depthwise causal convolution over the sequence of [batch, seq, channels], then SiLU; weight [channels, 1, k]."""
    length, kernel = x.shape[1], weight.shape[-1]
    out = F.conv1d(F.pad(x.mT, (kernel - 1, 0)), weight, groups=weight.shape[0])[..., :length].mT.contiguous()
    return F.silu(out) if activated else out


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last dimension times SiLU of the gate."""
    normal = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5).to(x.dtype)
    return normal * weight * F.silu(gate)


def unit_length(x: Tensor) -> Tensor:
    """x over its Euclidean norm in the last dimension."""
    return F.normalize(x, dim=-1)


def mamba2(
    joint: Tensor,
    convolution: Tensor,
    step_bias: Tensor,
    decay_log: Tensor,
    skip: Tensor,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    chunk: int,
) -> Tensor:
    """Convolution, scan, skip and gate of Mamba-2 from the joint projection z | x B C | dt, as one kernel does it."""
    inner, width = heads * head_dim, heads * head_dim + 2 * groups * state
    gate, mixed, step = torch.split(joint, [inner, width, heads], dim=-1)
    x, b, c = torch.split(short_convolution(mixed, convolution), [inner, groups * state, groups * state], dim=-1)
    x, b, c = (torch.unflatten(part, -1, (each, -1)) for part, each in ((x, heads), (b, groups), (c, groups)))
    step = F.softplus(step.float() + step_bias.float())
    y = ssd(x * step[..., None].to(x.dtype), -step * decay_log.float().exp(), b, c, chunk)
    out: Tensor = (y + x * skip[:, None]).flatten(2) * F.silu(gate)
    return out


def ssd(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """The scan s_t = exp(log_decay_t) s_(t-1) + x_t b_t^T, y_t = s_t c_t, in chunks.

    x [B, S, H, P], log_decay [B, S, H], b and c [B, S, G, N], H a multiple of G.
    """
    length, repeats = x.shape[1], x.shape[2] // b.shape[2]
    chunk = min(chunk, length)
    x, b, c = (_chunked(part, chunk) for part in (x, b, c))
    total = _chunked(log_decay[..., None], chunk)[..., 0].cumsum(-1)
    scores = lower_scores(c, b).repeat_interleave(repeats, dim=2)
    y = lower_apply(scores * _decays(total).to(scores.dtype), x)
    wide_b, wide_c = b.repeat_interleave(repeats, dim=2), c.repeat_interleave(repeats, dim=2)
    to_end = (total[..., -1:] - total).exp()[..., None].to(x.dtype)
    before = _states_before((x * to_end).mT @ wide_b, total[..., -1].exp()[..., None, None])
    y = y + (wide_c @ before.mT) * total.exp()[..., None].to(x.dtype)
    return _joined(y, length)


def lightning(joint: Tensor, *, heads: int, head_dim: int, chunk: int) -> Tensor:
    """Linear attention with one decay per head from SiLU of the joint projection q | k | v, [B, S, H d]."""
    parts = torch.unflatten(F.silu(joint), -1, (3, heads, head_dim)).unbind(2)
    length = joint.shape[1]
    chunk = min(chunk, length)
    q, k, v = (_chunked(part, chunk) for part in parts)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=joint.device, dtype=torch.float32) / heads)
    total = -slopes[:, None] * torch.arange(1, chunk + 1, device=joint.device, dtype=torch.float32)
    y = lower_apply(lower_scores(q, k) * _decays(total).to(q.dtype), v)
    to_end = (total[..., -1:] - total).exp()[..., None].to(q.dtype)
    before = _states_before((v * to_end).mT @ k, total[..., -1].exp()[..., None, None])
    y = y + (q @ before.mT) * total.exp()[..., None].to(q.dtype)
    return _joined(y, length).flatten(2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, *, chunk: int) -> Tensor:
    """The gated delta rule in its WY form: [B, S, H, V].

    s_t = a_t s_(t-1) + beta_t k_t (v_t - k_t^T a_t s_(t-1))^T, y_t = s_t^T q_t, with a_t = exp(log_decay_t).
    q and k [B, S, H, K], v [B, S, H, V], log_decay [B, S, H, K] or [B, S, H, 1], beta [B, S, H].
    """
    length, dtype = q.shape[1], v.dtype
    chunk = min(chunk, length)
    q, k, v, log_decay, beta = (_chunked(part.float(), chunk) for part in (q, k, v, log_decay, beta[..., None]))
    total = log_decay.cumsum(-2)
    grown, faded = total.exp(), (-total).exp()
    strict = (lower_scores(k * grown, k * faded) * beta).tril(-1)
    inverse = unit_lower_inverse(strict)
    new, old = lower_apply(inverse, v * beta), lower_apply(inverse, k * grown * beta)
    scores = lower_scores(q * grown, k * faded)
    state = q.new_zeros(*q.shape[:1], *q.shape[2:3], q.shape[-1], v.shape[-1])
    out = []
    for i in range(q.shape[1]):
        corrected = new[:, i] - old[:, i] @ state
        out.append((q[:, i] * grown[:, i]) @ state + lower_apply(scores[:, i], corrected))
        last = total[:, i, :, -1:]
        state = state * last.exp().mT + (k[:, i] * (last - total[:, i]).exp()).mT @ corrected
    return _joined(torch.stack(out, dim=1), length).to(dtype)


def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, step: Tensor, beta: Tensor, decay_log: Tensor, *, chunk: int
) -> Tensor:
    """Delta rule with one decay per head: log decay -exp(decay_log) softplus(step), step and beta [B, S, H]."""
    log_decay = -decay_log.float().exp() * F.softplus(step.float())
    return delta_rule(q, k, v, log_decay[..., None], torch.sigmoid(beta), chunk=chunk)


def kimi_delta(q: Tensor, k: Tensor, v: Tensor, step: Tensor, beta: Tensor, decay_log: Tensor, *, chunk: int) -> Tensor:
    """Delta rule with a decay per channel, step [B, S, H, K]; queries and keys are normalised inside the kernel."""
    log_decay = -decay_log.float().exp()[:, None] * F.softplus(step.float())
    return delta_rule(unit_length(q), unit_length(k), v, log_decay, torch.sigmoid(beta), chunk=chunk)


def _chunked(x: Tensor, chunk: int) -> Tensor:
    """[B, S, H, D] as [B, chunks, H, chunk, D], the last chunk padded with zeros."""
    missing = -x.shape[1] % chunk
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    return torch.unflatten(x, 1, (-1, chunk)).transpose(2, 3)


def _joined(y: Tensor, length: int) -> Tensor:
    """The inverse of `_chunked`."""
    return y.transpose(2, 3).flatten(1, 2)[:, :length].contiguous()


def _decays(total: Tensor) -> Tensor:
    """exp(total_i - total_j) for j <= i, else 0; `total` is the summed log decay along the last dimension."""
    above = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(above, float("-inf")).exp()


def _states_before(added: Tensor, decays: Tensor) -> Tensor:
    """The state before each chunk, from what each chunk adds [B, chunks, H, P, N] and how much of the old one stays."""
    state, found = torch.zeros_like(added[:, 0]), []
    each = decays.to(added.dtype).expand(added.shape[0], added.shape[1], -1, 1, 1)
    for i in range(added.shape[1]):
        found.append(state)
        state = state * each[:, i] + added[:, i]
    return torch.stack(found, dim=1)


# --- products of a causal chunk -----------------------------------------------------------------------------------


def lower_scores(left: Tensor, right: Tensor) -> Tensor:
    """The lower triangle of left right^T, [.., C, K] each, diagonal included; zero above it."""
    if left.is_meta:
        out: Tensor = torch.ops.primus_search.lower_scores(left, right)
        return out
    return (left @ right.mT).tril()


def lower_apply(weights: Tensor, values: Tensor) -> Tensor:
    """weights values for a lower triangle of weights, [.., C, C] x [.., C, V]."""
    if weights.is_meta:
        out: Tensor = torch.ops.primus_search.lower_apply(weights, values)
        return out
    return weights @ values


def unit_lower_inverse(strict: Tensor) -> Tensor:
    """(1 + strict)^-1 for a strictly lower triangle, [.., C, C], in fp32."""
    if strict.is_meta:
        out: Tensor = torch.ops.primus_search.unit_lower_inverse(strict)
        return out
    one = torch.eye(strict.shape[-1], dtype=strict.dtype, device=strict.device)
    eye = one.expand_as(strict)
    found: Tensor = torch.linalg.solve_triangular(strict + one, eye, upper=False, unitriangular=True)
    return found


# Half of 2 C^2 K.
without_kernel(
    "lower_scores(Tensor left, Tensor right) -> Tensor",
    fake=lambda left, right: left.new_empty(*left.shape[:-1], right.shape[-2]),
    flops=lambda left, right, **_: math.prod(left) * right[-2],
)
# Half of 2 C^2 V.
without_kernel(
    "lower_apply(Tensor weights, Tensor values) -> Tensor",
    fake=lambda weights, values: values.new_empty(*weights.shape[:-1], values.shape[-1]),
    flops=lambda weights, values, **_: math.prod(weights) * values[-1],
)
# C^3 / 3: Golub and Van Loan, Matrix Computations, section 3.1, for the inverse of a triangle.
without_kernel(
    "unit_lower_inverse(Tensor strict) -> Tensor",
    fake=torch.empty_like,
    flops=lambda strict, **_: math.prod(strict) * strict[-1] // 3,
)
