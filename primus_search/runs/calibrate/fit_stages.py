"""What is fitted to measured kernels, in which order, and what is physically possible for each number.

A stage holds parameters that are fitted together and says which points they are fitted to; it rests on the ones before
it. Published points come from many frameworks (`stages`); a sweep that this package ran on one device has every kernel
forward and backward and no casts in between (`own_stages`). `fit` does the fitting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from primus_search.runs.calibrate.points import KERNELS, Direction, KernelKind, Point
from primus_search.values.candidates import Fp8


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


def _free(*paths: str, within: str = "", also: tuple[str, ...] = ()) -> tuple[KernelParameter, ...]:
    """Numbers of an accelerator; within: the mapping that holds them, where their ranges go by their last word."""
    ranges = KERNELS["ranges"]
    return tuple(
        KernelParameter(path=within + path, low=ranges[path][0], high=ranges[path][1], also=also) for path in paths
    )


def _kernel(family: str, *names: str) -> tuple[KernelParameter, ...]:
    """Numbers of an attention kernel."""
    return _free(*names, within=f"attention.kernels.{family}.")


def _products(table: str) -> tuple[FitStage, ...]:
    """Stages of `kernels.yaml` that are fitted to products."""
    return tuple(
        FitStage(name=row["name"], parameters=_free(*row["fits"]), uses=_is(row["kind"], row["recipes"]))
        for row in KERNELS[table]
    )


def _is(kind: str, recipes: Sequence[str]) -> Callable[[Point], bool]:
    codes = [Fp8[recipe.upper()] for recipe in recipes]
    return lambda point: point.kind is KernelKind[kind] and point.code in codes


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
        *_products("published"),
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
        both = _free("grouped_gemm.factor", also=("grouped_gemm.fp8_factor",))
        parameters = (*both, *_free("memory.permute_efficiency"))
        return (FitStage(name="MoE layer", parameters=parameters, uses=lambda point: point.kind in EXPERTS),)
    return _products("published_experts")


def own_stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """Stages of a sweep that this package ran on one device: every kernel forward and backward, no casts in between."""
    is_latent = any(point.kind is KernelKind.ATTENTION and point.qk_dim != point.v_dim for point in points)
    latent = ["latent_backward_factor"] if is_latent else []
    return (
        *_products("own_sweep"),
        FitStage(
            name="attention",
            parameters=(
                *_free("attention.ramp_tokens"),
                *_kernel(OWN_FAMILY, "forward_efficiency", "backward_efficiency", *latent),
            ),
            uses=lambda point: point.kind is KernelKind.ATTENTION and point.family == OWN_FAMILY,
        ),
        *_products("own_sweep_experts"),
    )


def _families(points: Sequence[Point]) -> dict[str, bool]:
    """Attention families to fit, and whether their backward was timed."""
    timed = {p.family for p in points if p.kind is KernelKind.ATTENTION}
    chosen = [family for family in NEWER_FAMILIES if family in timed] or [f for f in ("flash2",) if f in timed]
    return {f: any(p.family == f and p.direction is not Direction.FORWARD for p in points) for f in chosen}
