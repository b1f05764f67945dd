"""Linear layers as a rank holds them: plain, fed by a gathered sequence shard, or through FP8 matrix units.

The routed experts of one rank under balanced routing: router, permutation, grouped GEMMs, un-permutation.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function

from primus_search.measure.modules.fused_operations import (
    DiscardedOutput,
    MissingKernelError,
    applied,
    combine,
    gather,
    gathered_linear,
    scatter,
    swiglu,
    weighted_gelu,
)
from primus_search.measure.modules.shard import Shard
from primus_search.values.candidates import Fp8, GroupedGemm, Recompute
from primus_search.values.model import Model

E4M3_MAX, E5M2_MAX = 448.0, 57344.0  # largest finite values, OCP 8-bit floating point specification 1.0
E4M3_FNUZ_MAX = 240.0  # of AMD's CDNA 3, whose matrix units read the formats without infinities and negative zero
TINY = 1e-12  # so that a tensor of zeros has a scale
MEASURABLE_FP8 = (Fp8.HYBRID, Fp8.DELAYED)


class Linear(nn.Module):
    """y = x W^T (+ bias); `ranks` > 1 says that x is a sequence shard and is gathered over that many ranks first.

    keeps_input: in FP8 the input itself is saved, not its cast.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        ranks: int = 1,
        fp8: Fp8 = Fp8.NONE,
        keeps_input: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.ranks, self.fp8, self.keeps_input = ranks, fp8, keeps_input

    def forward(self, x: Tensor) -> Tensor:
        if self.fp8 != Fp8.NONE:
            y = fp8_linear(x, self.weight, self.ranks, self.fp8, keeps_input=self.keeps_input)
        elif self.ranks > 1:
            y = gathered_linear(x, self.weight, self.ranks)
        else:
            y = F.linear(x, self.weight)
        return y if self.bias is None else y + self.bias


@lru_cache(maxsize=1)
def _is_fnuz() -> bool:
    if torch.version.hip is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx94")


def precise8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as E4M3, for activations and weights: `quantize`."""
    if _is_fnuz():
        return quantize(x, torch.float8_e4m3fnuz, E4M3_FNUZ_MAX)
    return quantize(x, torch.float8_e4m3fn, E4M3_MAX)


def wide8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as E5M2, for gradients: `quantize`."""
    return quantize(x, torch.float8_e5m2fnuz if _is_fnuz() else torch.float8_e5m2, E5M2_MAX)


def quantize(x: Tensor, dtype: torch.dtype, largest: float) -> tuple[Tensor, Tensor]:
    """x in an 8-bit format with one scale for the whole tensor, and the factor that undoes the scale (fp32)."""
    if isinstance(x, FakeTensor):  # one fused kernel: no intermediate to trace
        return torch.empty(x.shape, dtype=dtype), torch.empty((), dtype=torch.float32)
    amax = torch.linalg.vector_norm(x, float("inf")).float().clamp_min_(TINY)
    # The product exceeds the largest value by half a unit of BF16 at most, which the cast rounds back to it.
    return (x * (largest / amax).to(x.dtype)).to(dtype), amax / largest


class _Fp8Linear(Function):
    """Per-tensor current scaling: E4M3 forward, E5M2 gradients; all three products on the FP8 units.

    Keeps the quantised input (one byte per element) and quantises the weight again in backward from the parameter. An
    input that recompute discards, or that another operation keeps as well, is kept itself and quantised again, as
    Transformer Engine's `save_original_input` does (Megatron-Core transformer/attention.py).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ranks: int, keeps_input: bool) -> Tensor:
        x8, x_scale = precise8(x)
        w8, w_scale = precise8(weight)
        full8 = gather(x8, ranks).flatten(0, -2)
        ctx.keeps_input = keeps_input or DiscardedOutput.will_discard(x)
        ctx.save_for_backward(x if ctx.keeps_input else x8, x_scale, weight)
        ctx.ranks = ranks
        y = scaled_mm(full8, w8.t(), x_scale, w_scale, x.dtype)
        return y.view(x.shape[0], x.shape[1] * ranks, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x8, x_scale, weight = ctx.saved_tensors
        x8 = precise8(x8)[0] if ctx.keeps_input else x8
        grad = grads[0].flatten(0, -2).contiguous()
        g8, g_scale = wide8(grad)
        w8, w_scale = precise8(weight)
        # The right-hand operand of the FP8 units is column-major.
        grad_x = scaled_mm(g8, w8.t().contiguous().t(), g_scale, w_scale, grad.dtype)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            full8 = gather(x8, ctx.ranks).flatten(0, -2)
            grad_weight = scaled_mm(g8.t().contiguous(), full8.t().contiguous().t(), g_scale, x_scale, weight.dtype)
        return scatter(grad_x.view(x8.shape[0], -1, weight.shape[1]), ctx.ranks), grad_weight, None, None


def scaled_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype) -> Tensor:
    """a b on the FP8 units; a device without them raises MissingKernelError."""
    try:
        return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=out)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise MissingKernelError(f"torch._scaled_mm on {a.device.type}: {error}") from error


def fp8_linear(x: Tensor, weight: Tensor, ranks: int, recipe: Fp8, *, keeps_input: bool = False) -> Tensor:
    """A linear on the FP8 units; only per-tensor recipes have a kernel in torch itself."""
    if recipe not in MEASURABLE_FP8 and not isinstance(x, FakeTensor):
        raise MissingKernelError(f"torch has no linear for the fp8 recipe {recipe.name.lower()}")
    return applied(_Fp8Linear, x, weight, ranks, keeps_input)


class _Fp8Grouped(Function):
    """`_Fp8Linear` for one weight per group: [groups, rows, K] x [groups, K, N]; one GEMM after another on a device."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, keeps_cast: bool) -> Tensor:
        rows8, scale = precise8(rows)
        ctx.keeps_input = DiscardedOutput.will_discard(rows) and not keeps_cast
        ctx.save_for_backward(rows if ctx.keeps_input else rows8, scale, weights)
        w8, w_scale = precise8(weights)
        return _grouped_mm(rows8, w8, scale, w_scale, rows.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        rows8, scale, weights = ctx.saved_tensors
        rows8 = precise8(rows8)[0] if ctx.keeps_input else rows8
        g8, g_scale = wide8(grads[0])
        w8, w_scale = precise8(weights)
        grad_rows = _grouped_mm(g8, w8.transpose(1, 2), g_scale, w_scale, grads[0].dtype)
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = _grouped_mm(rows8.transpose(1, 2), g8, scale, g_scale, weights.dtype)
        return grad_rows, grad_weights, None


def _grouped_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype) -> Tensor:
    if isinstance(a, FakeTensor):
        # Operands without storage of their own: the kernel reads the 8-bit tensors directly.
        return torch.bmm(torch.empty(1, dtype=out).expand(a.shape), torch.empty(1, dtype=out).expand(b.shape))
    left, right = a.contiguous(), b.transpose(1, 2).contiguous().transpose(1, 2)
    return torch.stack([scaled_mm(left[i], right[i], a_scale, b_scale, out) for i in range(a.shape[0])])


def fp8_grouped(rows: Tensor, weights: Tensor, recipe: Fp8, *, keeps_cast: bool = False) -> Tensor:
    """One product per group on the FP8 units; torch has no grouped kernel with one scale per tensor.

    keeps_cast: the quantised rows are kept although recompute discards the rows.
    """
    if recipe not in MEASURABLE_FP8 and not isinstance(rows, FakeTensor):
        raise MissingKernelError(f"torch has no grouped GEMM for the fp8 recipe {recipe.name.lower()}")
    return applied(_Fp8Grouped, rows, weights, keeps_cast)


def grouped_product(rows: Tensor, weights: Tensor) -> Tensor:
    """One product per group, [groups, rows, K] x [groups, K, N], in one kernel.

    torch's grouped GEMM where it runs, which takes groups of any size as training has them; else a batched GEMM.
    """
    if not has_grouped_kernel(rows.device.type, rows.dtype, rows.shape[2], weights.shape[2]):
        return torch.bmm(rows, weights)
    groups, each = rows.shape[:2]
    ends = torch.arange(each, groups * each + 1, each, dtype=torch.int32, device=rows.device)
    return torch._grouped_mm(rows.flatten(0, 1), weights, offs=ends).view(groups, each, -1)


ALIGNED = 8  # elements of 16 bytes, which the kernel's rows must be a multiple of


def has_grouped_kernel(device: str, dtype: torch.dtype, inner: int, outer: int) -> bool:
    """Whether torch's grouped GEMM takes such operands on this device, forward and backward."""
    if device == "cpu" or dtype != torch.bfloat16 or inner % ALIGNED or outer % ALIGNED:
        return False
    return _runs_grouped(device)


@lru_cache(maxsize=4)
def _runs_grouped(device: str) -> bool:
    """Tried once: a product of two groups and its gradients."""
    groups, size = 2, 64
    with torch.device(device), torch.enable_grad():
        rows, weights = (torch.randn(groups, size, size, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        ends = torch.arange(size, groups * size + 1, size, dtype=torch.int32)
        try:
            out = torch._grouped_mm(rows.flatten(0, 1), weights, offs=ends).view(rows.shape)
            torch.autograd.grad(out, (rows, weights), torch.ones_like(out))
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        return True


class ExpertMlp(nn.Module):
    """Router, top-k, dispatch to this rank's experts, their MLPs, combine.

    Each rank of an expert-parallel group receives as many token copies as it sends when routing is balanced, so one
    rank alone can stand for the group: it feeds its own t*K permuted copies (once per expert-tensor-parallel rank) to
    its own experts. Rows that do not divide by the experts are dropped or repeated, as a capacity would. The ranks of
    an expert's tensor-parallel group add up their outputs and each keeps the rows it sent (reduce-scatter), so that
    only those meet the routing weights and the tokens: Megatron-Core transformer/moe/token_dispatcher.py,
    combine_preprocess.
    """

    def __init__(self, model: Model, shard: Shard) -> None:
        super().__init__()
        assert model.moe is not None
        self.moe, self.is_gated, self.etp = model.moe, model.is_gated, shard.etp
        self.num_local, self.rows = shard.local_experts(model), shard.rows_per_expert(model)
        self.returned = min(self.rows, shard.returned_per_expert(model))
        self.is_looped = shard.expert_kernel == GroupedGemm.LEGACY
        self.discards = bool(shard.recompute & Recompute.MOE_ACTIVATION)
        self.fp8, self.weights_at_combine = shard.fp8, shard.weights_at_combine
        self.keeps_cast = shard.keeps_fp8_activations
        ffn = max(1, -(-model.moe.expert_ffn_hidden // shard.etp))
        hidden, width = model.expert_hidden, ffn * (2 if model.is_gated else 1)
        self.exchange: Callable[[Tensor], Tensor] | None = None  # real all-to-all, where there are real ranks
        self.router = nn.Parameter(torch.randn(model.moe.num_experts, model.hidden) * model.hidden**-0.5)
        self.into = Linear(model.hidden, hidden) if model.moe.latent_hidden else None
        self.back = Linear(hidden, model.hidden) if model.moe.latent_hidden else None
        self.up = nn.Parameter(torch.randn(self.num_local, hidden, width) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(self.num_local, ffn, hidden) * ffn**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, _ = self._route(tokens)
        if self.into is not None:
            tokens = self.into(tokens)
        slots = self._balanced_slots(weights.numel(), self.rows, x.device)
        copies = tokens.index_select(0, slots // self.moe.top_k).view(self.num_local, self.rows, -1)
        back = slots if self.returned == self.rows else self._balanced_slots(weights.numel(), self.returned, x.device)
        row_weights = weights.flatten().index_select(0, back if self.weights_at_combine else slots)
        row_weights = row_weights.view(self.num_local, -1, 1)
        if self.weights_at_combine:
            out = self._own(self._experts(copies, None)) * row_weights.to(copies.dtype)
        elif self.exchange is None:
            out = self._own(self._experts(copies, row_weights))
        else:
            out = self.exchange(self._experts(self.exchange(copies), self.exchange(row_weights)))
        joined = combine(out.flatten(0, 1), back // self.moe.top_k, tokens.shape[0])
        return (joined if self.back is None else self.back(joined)).view(x.shape)

    def _own(self, out: Tensor) -> Tensor:
        """Of the rows of a tensor-parallel group, and of those that experts have room for, the ones sent from here."""
        return out if self.returned == self.rows else out[:, : self.returned].clone()

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Routing weights (fp32, [tokens, K]) and the experts chosen."""
        scores = torch.softmax(F.linear(tokens, self.router).float(), dim=-1)
        chosen, experts = scores.topk(self.moe.top_k, dim=-1)
        return chosen / chosen.sum(-1, keepdim=True), experts

    def _balanced_slots(self, slots: int, rows: int, device: torch.device) -> Tensor:
        """Which of the tokens x K routing slots each expert row takes: round robin, as many for every expert."""
        return torch.arange(self.num_local * rows, device=device) % slots

    def _experts(self, copies: Tensor, weights: Tensor | None) -> Tensor:
        if not self.is_looped:
            return self._one(copies, self.up, self.down, weights)
        parts = []
        for expert in range(self.num_local):
            one = slice(expert, expert + 1)
            own = None if weights is None else weights[one]
            parts.append(self._one(copies[one], self.up[one], self.down[one], own))
        return torch.cat(parts)

    def _one(self, copies: Tensor, up: Tensor, down: Tensor, weights: Tensor | None) -> Tensor:
        wide = self._product(copies, up)
        if not self.discards:
            return self._product(self._activate(wide, weights), down)
        owner = DiscardedOutput()
        hidden = owner.run(self._activate, wide) if weights is None else owner.run(self._activate, wide, weights)
        out = self._product(hidden, down)
        owner.discard_until_backward_of(out)
        return out

    def _product(self, rows: Tensor, weights: Tensor) -> Tensor:
        if self.fp8 == Fp8.NONE:
            return grouped_product(rows, weights)
        return fp8_grouped(rows, weights, self.fp8, keeps_cast=self.keeps_cast)

    def _activate(self, wide: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.is_gated:
            return swiglu(wide, weights)
        return F.gelu(wide) if weights is None else weighted_gelu(wide, weights)
