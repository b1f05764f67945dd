"""Products as a rank holds them: plain, fed by a gathered sequence shard, on FP8 matrix units, grouped for experts."""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.autograd import Function

from primus_search.measure.modules.fused_operations import (
    DiscardedOutput,
    MissingKernelError,
    Trace,
    applied,
    gather,
    gathered_linear,
    is_shape_only,
    scatter,
)
from primus_search.values.candidates import Fp8

E4M3_MAX, E5M2_MAX = 448.0, 57344.0  # largest finite values, OCP 8-bit floating point specification 1.0
E4M3_FNUZ_MAX = 240.0  # of AMD's CDNA 3, whose matrix units read the formats without infinities and negative zero
TINY = 1e-12  # so that a tensor of zeros has a scale
MEASURABLE_FP8 = (Fp8.HYBRID, Fp8.DELAYED)


class Linear(nn.Module):
    """y = x W^T (+ bias) and what `adapters` add; `ranks` > 1: x is a sequence shard that so many ranks gather first.

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
        self.adapters = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        y = self._product(x)
        for adapter in self.adapters:
            y = y + adapter(x, y.shape[-1])
        return y

    def _product(self, x: Tensor) -> Tensor:
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
    if is_shape_only(x):  # one fused kernel: no intermediate to trace
        return x.new_empty(x.shape, dtype=dtype), x.new_empty((), dtype=torch.float32)
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
        kept = x if ctx.keeps_input else x8
        ctx.save_for_backward(kept if ctx.needs_input_grad[1] else None, x_scale, weight)
        ctx.ranks = ranks
        y = scaled_mm(full8, w8.t(), x_scale, w_scale, x.dtype)
        return y.view(x.shape[0], x.shape[1] * ranks, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x8, x_scale, weight = ctx.saved_tensors
        grad = grads[0].flatten(0, -2).contiguous()
        g8, g_scale = wide8(grad)
        w8, w_scale = precise8(weight)
        # The right-hand operand of the FP8 units is column-major.
        grad_x = scaled_mm(g8, w8.t().contiguous().t(), g_scale, w_scale, grad.dtype)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            x8 = precise8(x8)[0] if ctx.keeps_input else x8
            full8 = gather(x8, ctx.ranks).flatten(0, -2)
            grad_weight = scaled_mm(g8.t().contiguous(), full8.t().contiguous().t(), g_scale, x_scale, weight.dtype)
        return scatter(grad_x.view(grads[0].shape[0], -1, weight.shape[1]), ctx.ranks), grad_weight, None, None


def scaled_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype) -> Tensor:
    """a b on the FP8 units; a device without them raises MissingKernelError."""
    if Trace.is_open:  # on the meta device torch refuses shapes as a GPU does
        return a.new_empty(a.shape[0], b.shape[1], dtype=out)
    try:
        return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=out)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise MissingKernelError(f"torch._scaled_mm on {a.device.type}: {error}") from error


def fp8_linear(x: Tensor, weight: Tensor, ranks: int, recipe: Fp8, *, keeps_input: bool = False) -> Tensor:
    """A linear on the FP8 units; only per-tensor recipes have a kernel in torch itself."""
    if recipe not in MEASURABLE_FP8 and not is_shape_only(x):
        raise MissingKernelError(f"torch has no linear for the fp8 recipe {recipe.name.lower()}")
    return applied(_Fp8Linear, x, weight, ranks, keeps_input)


class _Fp8Grouped(Function):
    """`_Fp8Linear` for one weight per group: [groups, rows, K] x [groups, K, N]; one GEMM after another on a device."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, keeps_cast: bool) -> Tensor:
        rows8, scale = precise8(rows)
        ctx.keeps_input = DiscardedOutput.will_discard(rows) and not keeps_cast
        kept = rows if ctx.keeps_input else rows8
        ctx.save_for_backward(kept if ctx.needs_input_grad[1] else None, scale, weights)
        w8, w_scale = precise8(weights)
        return _grouped_mm(rows8, w8, scale, w_scale, rows.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        rows8, scale, weights = ctx.saved_tensors
        g8, g_scale = wide8(grads[0])
        w8, w_scale = precise8(weights)
        grad_rows = _grouped_mm(g8, w8.transpose(1, 2), g_scale, w_scale, grads[0].dtype)
        grad_weights = None
        if ctx.needs_input_grad[1]:
            rows8 = precise8(rows8)[0] if ctx.keeps_input else rows8
            grad_weights = _grouped_mm(rows8.transpose(1, 2), g8, scale, g_scale, weights.dtype)
        return grad_rows, grad_weights, None


def _grouped_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype) -> Tensor:
    if is_shape_only(a):
        # Operands without storage of their own: the kernel reads the 8-bit tensors directly.
        return torch.bmm(a.new_empty(1, dtype=out).expand(a.shape), b.new_empty(1, dtype=out).expand(b.shape))
    left, right = a.contiguous(), b.transpose(1, 2).contiguous().transpose(1, 2)
    return torch.stack([scaled_mm(left[i], right[i], a_scale, b_scale, out) for i in range(a.shape[0])])


def fp8_grouped(rows: Tensor, weights: Tensor, recipe: Fp8, *, keeps_cast: bool = False) -> Tensor:
    """One product per group on the FP8 units; torch has no grouped kernel with one scale per tensor.

    keeps_cast: the quantised rows are kept although recompute discards the rows.
    """
    if recipe not in MEASURABLE_FP8 and not is_shape_only(rows):
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
    if Trace.is_open or device == "cpu" or dtype != torch.bfloat16 or inner % ALIGNED or outer % ALIGNED:
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
