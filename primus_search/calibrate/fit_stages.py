"""What is fitted to measured kernels, in which order, and what is physically possible for each number.

A stage holds parameters that are fitted together and says which points they are fitted to; it rests on the ones before
it. Published points come from many frameworks (`stages`); a sweep that this package ran on one device has every kernel
forward and backward and no casts in between (`own_stages`). `fit` does the fitting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from primus_search.calibrate.points import Direction, KernelKind, Point
from primus_search.candidates import Fp8

SHARE = (0.05, 1.0)
"""Of a peak."""

KERNEL_SHARE = (0.05, 1.3)
"""Of what the published matrix rate allows an attention kernel; skipped blocks of a mask may bring it above 1."""

LIBRARY_FACTOR = (0.1, 1.5)
"""A kernel over a dense product of the same work."""

RANGES: dict[str, tuple[float, float]] = {
    "gemm.bf16_efficiency": SHARE,
    "gemm.backward_factor": (0.3, 1.5),
    "gemm.depth_overhead": (0.0, 600.0),
    "gemm.fp8_tensor_efficiency": SHARE,
    "gemm.fp8_block_efficiency": SHARE,
    "gemm.fp8_backward_factor": LIBRARY_FACTOR,
    "gemm.fp8_depth_overhead": (0.0, 1500.0),
    "gemm.mxfp8_efficiency": SHARE,
    "gemm.nvfp4_efficiency": SHARE,
    "attention.softmax_dims": (0.0, 200.0),
    "attention.ramp_tokens": (0.0, 2000.0),
    "forward_efficiency": KERNEL_SHARE,
    "backward_efficiency": KERNEL_SHARE,
    "latent_backward_factor": LIBRARY_FACTOR,
    "grouped_gemm.factor": LIBRARY_FACTOR,
    "grouped_gemm.fp8_factor": LIBRARY_FACTOR,
    "grouped_gemm.backward_factor": (0.3, 1.5),
    "grouped_gemm.gradient_depth_overhead": (0.0, 1000.0),
    "memory.cast_efficiency": (0.1, 1.0),
    "memory.permute_efficiency": (0.1, 1.0),
}
"""Path of a number in `Accelerator` (of a number of an attention kernel its name) -> what is physically possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameter:
    """One number that may be fitted: where it lives in `Accelerator`, and what is physically possible.

    `also` are further places that hold the same number.
    """

    path: str
    low: float
    high: float
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStage:
    """Parameters that are fitted together, and the points they are fitted to."""

    name: str
    parameters: tuple[KernelParameter, ...]
    uses: Callable[[Point], bool]


def _free(*paths: str) -> tuple[KernelParameter, ...]:
    return tuple(KernelParameter(path=path, low=RANGES[path][0], high=RANGES[path][1]) for path in paths)


def _kernel(family: str, *names: str) -> tuple[KernelParameter, ...]:
    """Numbers of an attention kernel."""
    return tuple(
        KernelParameter(path=f"attention.kernels.{family}.{name}", low=RANGES[name][0], high=RANGES[name][1])
        for name in names
    )


def _is(kind: KernelKind, *codes: Fp8) -> Callable[[Point], bool]:
    return lambda point: point.kind is kind and point.code in codes


RECIPES = (Fp8.HYBRID, Fp8.BLOCKWISE)
EXPERTS = (KernelKind.GROUPED_GEMM, KernelKind.MOE_LAYER)

NEWER_FAMILIES = ("cudnn", "flash3", "aiter", "turbo")
"""Of training stacks, the preferred first; FlashAttention-2 is fitted only where nothing newer has points."""

OWN_FAMILY = "sdpa"
"""The attention that this package measures: torch's own."""


def stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """The stages of published points, in their order. Attention families are those with points."""
    families = _families(points)
    attention = _free("attention.softmax_dims", "attention.ramp_tokens")
    for family, has_backward in families.items():
        attention += _kernel(family, "forward_efficiency", *(["backward_efficiency"] if has_backward else []))
    return (
        FitStage(
            name="BF16 GEMM",
            parameters=_free("gemm.bf16_efficiency", "gemm.depth_overhead"),
            uses=_is(KernelKind.GEMM, Fp8.NONE),
        ),
        FitStage(
            name="FP8 GEMM",
            parameters=_free(
                "gemm.fp8_tensor_efficiency",
                "gemm.fp8_block_efficiency",
                "gemm.fp8_depth_overhead",
                "memory.cast_efficiency",
            ),
            uses=_is(KernelKind.GEMM, *RECIPES),
        ),
        FitStage(name="MXFP8 GEMM", parameters=_free("gemm.mxfp8_efficiency"), uses=_is(KernelKind.GEMM, Fp8.MXFP8)),
        FitStage(name="FP4 GEMM", parameters=_free("gemm.nvfp4_efficiency"), uses=_is(KernelKind.GEMM, Fp8.NVFP4)),
        FitStage(
            name="attention",
            parameters=attention if families else (),
            uses=lambda point: point.kind is KernelKind.ATTENTION and point.family in families,
        ),
        *_expert_stages(points),
    )


def _expert_stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """Grouped kernels say their rate per precision; whole MoE layers one rate for all, and what permuting costs."""
    if any(point.kind is KernelKind.MOE_LAYER for point in points):
        low, high = LIBRARY_FACTOR
        both = KernelParameter(path="grouped_gemm.factor", low=low, high=high, also=("grouped_gemm.fp8_factor",))
        parameters = (both, *_free("memory.permute_efficiency"))
        return (FitStage(name="MoE layer", parameters=parameters, uses=lambda point: point.kind in EXPERTS),)
    return (
        FitStage(
            name="BF16 grouped GEMM",
            parameters=_free("grouped_gemm.factor", "grouped_gemm.gradient_depth_overhead"),
            uses=_is(KernelKind.GROUPED_GEMM, Fp8.NONE),
        ),
        FitStage(
            name="FP8 grouped GEMM",
            parameters=_free("grouped_gemm.fp8_factor"),
            uses=_is(KernelKind.GROUPED_GEMM, *RECIPES),
        ),
    )


def own_stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """Stages of a sweep that this package ran on one device: every kernel forward and backward, no casts in between."""
    is_latent = any(point.kind is KernelKind.ATTENTION and point.qk_dim != point.v_dim for point in points)
    latent = ["latent_backward_factor"] if is_latent else []
    return (
        FitStage(
            name="BF16 GEMM",
            parameters=_free("gemm.bf16_efficiency", "gemm.backward_factor", "gemm.depth_overhead"),
            uses=_is(KernelKind.GEMM, Fp8.NONE),
        ),
        FitStage(
            name="FP8 GEMM",
            parameters=_free("gemm.fp8_tensor_efficiency", "gemm.fp8_backward_factor", "gemm.fp8_depth_overhead"),
            uses=_is(KernelKind.GEMM, Fp8.HYBRID),
        ),
        FitStage(
            name="attention",
            parameters=(
                *_free("attention.ramp_tokens"),
                *_kernel(OWN_FAMILY, "forward_efficiency", "backward_efficiency", *latent),
            ),
            uses=lambda point: point.kind is KernelKind.ATTENTION and point.family == OWN_FAMILY,
        ),
        FitStage(
            name="BF16 grouped GEMM",
            parameters=_free("grouped_gemm.factor", "grouped_gemm.backward_factor"),
            uses=_is(KernelKind.GROUPED_GEMM, Fp8.NONE),
        ),
    )


def _families(points: Sequence[Point]) -> dict[str, bool]:
    """Attention families to fit, and whether their backward was timed."""
    timed = {p.family for p in points if p.kind is KernelKind.ATTENTION}
    chosen = [family for family in NEWER_FAMILIES if family in timed] or [f for f in ("flash2",) if f in timed]
    return {f: any(p.family == f and p.direction is not Direction.FORWARD for p in points) for f in chosen}
