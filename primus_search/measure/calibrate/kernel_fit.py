"""Fit named, bounded efficiencies of one accelerator to measured kernels, and refuse what the data does not identify.

Each stage fits a few parameters to the points that depend on them, by least squares on log(predicted / measured) with
a soft-L1 loss, so that a kernel that took a slow path does not bend the law. A parameter is kept only if the data says
what it is: its standard error in log units is below `MAX_STANDARD_ERROR` and it does not sit on a bound. Otherwise it
goes back to the hardware file's value, the stage is fitted again without it, and the reason is reported. Errors are
those of points left out: whole shapes at a time, in `FOLDS` folds.
"""

import math
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from primus_search.base.errors import InputError, Problem
from primus_search.base.field_paths import value_at, with_value
from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind, names
from primus_search.measure.calibrate.point_laws import PointTable
from primus_search.measure.calibrate.points import KERNELS, Direction, KernelKind, Point
from primus_search.values.candidates import Bools, Floats, Fp8
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.kernel_tables import NO_TABLES

MAX_STANDARD_ERROR = 0.125
MIN_POINTS_PER_PARAMETER = 4
MAX_FITTED = 12
FOLDS = 5
_LOSS_SCALE = 0.05  # residuals beyond 5 % count linearly
_BOUND_MARGIN = 0.005  # share of the range within which a value counts as sitting on its bound


EXPERTS = (KernelKind.GROUPED_GEMM, KernelKind.MOE_LAYER)

NEWER_FAMILIES = ("cudnn", "flash3", "aiter", "turbo")
"""Of training stacks, the preferred first; FlashAttention-2 is fitted only where nothing newer has points."""

OWN_FAMILY = "sdpa"
"""The attention that this package measures: torch's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameter:
    """One number that may be fitted: where it lives in `Accelerator`, and further places that hold the same number."""

    path: str
    also: tuple[str, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """What is physically possible; of an attention kernel by the number's name."""
        ranges = KERNELS["ranges"]
        low, high = ranges.get(self.path) or ranges[self.path.rpartition(".")[2]]
        return low, high


@dataclass(frozen=True, slots=True)
class FitStage:
    """Parameters that are fitted together, and the points they are fitted to. A stage rests on the ones before it.

    Published points come from many frameworks (`stages`); a sweep that this package ran on one device has every kernel
    forward and backward and no casts in between (`own_stages`).
    """

    name: str
    parameters: tuple[KernelParameter, ...]
    uses: Callable[[Point], bool]


def stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """The stages of published points, in their order. Attention families are those with points."""
    timed = {p.family for p in points if p.kind is KernelKind.ATTENTION}
    families = [one for one in NEWER_FAMILIES if one in timed] or [one for one in ("flash2",) if one in timed]
    paths = ["attention.softmax_dims", "attention.ramp_tokens"] if families else []
    for family in families:
        has_backward = any(p.family == family and p.direction is not Direction.FORWARD for p in points)
        numbers = ("forward_efficiency", "backward_efficiency")[: 1 + has_backward]
        paths += [f"attention.kernels.{family}.{number}" for number in numbers]
    dense = (*_products("published"), _attention(paths, families))
    if not any(point.kind is KernelKind.MOE_LAYER for point in points):
        return (*dense, *_products("published_experts"))
    # Grouped kernels say their rate per precision; whole MoE layers one rate for all, and what permuting costs.
    both = KernelParameter(path="grouped_gemm.factor", also=("grouped_gemm.fp8_factor",))
    numbers_of_layer = (both, KernelParameter(path="memory.permute_efficiency"))
    return (*dense, FitStage("MoE layer", numbers_of_layer, lambda point: point.kind in EXPERTS))


def own_stages(points: Sequence[Point]) -> tuple[FitStage, ...]:
    """Stages of a sweep that this package ran on one device: every kernel forward and backward, no casts in between."""
    is_latent = any(point.kind is KernelKind.ATTENTION and point.qk_dim != point.v_dim for point in points)
    numbers = ("forward_efficiency", "backward_efficiency", "latent_backward_factor")[: 2 + is_latent]
    paths = ["attention.ramp_tokens", *(f"attention.kernels.{OWN_FAMILY}.{number}" for number in numbers)]
    return (*_products("own_sweep"), _attention(paths, [OWN_FAMILY]), *_products("own_sweep_experts"))


def _attention(paths: Sequence[str], families: Sequence[str]) -> FitStage:
    parameters = tuple(KernelParameter(path=path) for path in paths)
    return FitStage("attention", parameters, lambda p: p.kind is KernelKind.ATTENTION and p.family in families)


def _products(table: str) -> Iterator[FitStage]:
    """Stages of `kernels.yaml` that are fitted to products."""
    for row in KERNELS[table]:
        kind, codes = KernelKind[row["kind"]], {Fp8[recipe.upper()] for recipe in row["recipes"]}
        uses = partial(_is_product, kind, codes)
        yield FitStage(row["name"], tuple(KernelParameter(path=path) for path in row["fits"]), uses)


def _is_product(kind: KernelKind, codes: Container[Fp8], point: Point) -> bool:
    return point.kind is kind and point.code in codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A number the data identifies. Errors are fractions; `standard_error` is in log units."""

    path: str
    value: float
    low: float
    high: float
    standard_error: float
    num_points: int
    sources: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A number the data does not identify, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What one stage found. Errors are of points left out of the fit that predicted them."""

    name: str
    num_points: int = 0
    median_error: float = math.nan
    p90_error: float = math.nan
    bias: float = math.nan
    fitted: tuple[Fitted, ...] = ()
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A calibrated accelerator and how it came about."""

    accelerator: Accelerator
    stages: tuple[StageResult, ...]


def calibrate(acc: Accelerator, points: Sequence[Point], *, is_own_sweep: bool = False) -> Calibration:
    """Fit every stage that has points of this device; `acc` gives the starting values and what is not fitted.

    is_own_sweep  the points are of one sweep by this package (`own_stages`)
    """
    results: list[StageResult] = []
    for stage in own_stages(points) if is_own_sweep else stages(points):
        chosen = [point for point in points if stage.uses(point)]
        if chosen and stage.parameters:
            acc, result = _fit_stage(acc, stage, chosen, MAX_FITTED - sum(len(one.fitted) for one in results))
        else:
            result = StageResult(
                name=stage.name, refused=tuple(Refused(p.path, "no points of this device") for p in stage.parameters)
            )
        results.append(result)
    return Calibration(accelerator=acc, stages=tuple(results))


def _fit_stage(
    acc: Accelerator, stage: FitStage, points: Sequence[Point], room: int
) -> tuple[Accelerator, StageResult]:
    """Fit one stage; `room` is how many numbers may still be fitted for this device."""
    table = PointTable(points)
    free = list(stage.parameters[:room])
    refused = [
        Refused(p.path, f"{MAX_FITTED} numbers of this device are fitted already") for p in stage.parameters[room:]
    ]
    while True:
        values, errors = _solve(acc, free, table, np.ones(len(table), np.bool_))
        worst = _least_identified(free, values, errors, len(table))
        if worst is None:
            break
        index, reason = worst
        refused.append(Refused(free.pop(index).path, reason))
    left_out = _left_out_errors(acc, free, table)
    common: dict[str, Any] = {"num_points": len(table)}
    common["sources"] = tuple(sorted({point.source.split(" ")[0] for point in points}))
    pairs = zip(free, values.tolist(), errors.tolist(), strict=True)
    result = StageResult(
        name=stage.name,
        num_points=len(table),
        median_error=float(np.median(np.abs(left_out))),
        p90_error=float(np.quantile(np.abs(left_out), 0.9)),
        bias=float(np.median(left_out)),
        fitted=tuple(
            Fitted(path=p.path, value=v, low=p.range[0], high=p.range[1], standard_error=e, also=p.also, **common)
            for p, v, e in pairs
        ),
        refused=tuple(refused),
    )
    return with_values(acc, free, values), result


def _solve(acc: Accelerator, free: Sequence[KernelParameter], table: PointTable, rows: Bools) -> tuple[Floats, Floats]:
    """Values of the free parameters that fit `rows` best, and their standard errors in log units."""
    if not free:
        return np.empty(0), np.empty(0)
    low, high = np.array([p.range for p in free]).T
    span = high - low
    start = np.clip([number_at(acc, p.path) for p in free], low + 0.01 * span, high - 0.01 * span)

    def residuals(x: Floats) -> Floats:
        predicted_s = table.predict_s(with_values(acc, free, low + x * span))
        chosen: Floats = np.log(predicted_s / table.measured_s)[rows]
        return chosen

    found = least_squares(
        residuals, (start - low) / span, bounds=(0.0, 1.0), loss="soft_l1", f_scale=_LOSS_SCALE, max_nfev=60
    )
    values: Floats = low + found.x * span
    scale = 1.4826 * float(np.median(np.abs(found.fun)))
    information = found.jac.T @ found.jac
    spread = np.sqrt(np.diag(np.linalg.pinv(information))) * scale * span
    errors: Floats = np.where(np.diag(information) < 1e-9, np.inf, spread / np.maximum(values, 1e-9))
    return values, errors


def _least_identified(
    free: Sequence[KernelParameter], values: Floats, errors: Floats, num_points: int
) -> tuple[int, str] | None:
    """The parameter to give up next and why; None when all are identified."""
    if not free:
        return None
    if num_points < MIN_POINTS_PER_PARAMETER * len(free):
        return len(free) - 1, f"{num_points} points are too few for {len(free)} parameters"
    if not np.isfinite(errors).all():
        return int(np.argmin(np.isfinite(errors))), "no point depends on it"
    for i, (p, value) in enumerate(zip(free, values, strict=True)):
        low, high = p.range
        if not _BOUND_MARGIN < (value - low) / (high - low) < 1.0 - _BOUND_MARGIN:
            return i, f"the fit runs into its bound ({value:.3g} of {low:g}..{high:g})"
    worst = int(np.argmax(errors))
    if errors[worst] > MAX_STANDARD_ERROR:
        return worst, f"standard error {errors[worst]:.0%} of its value: the points do not tell it from the others"
    return None


def _left_out_errors(acc: Accelerator, free: Sequence[KernelParameter], table: PointTable) -> Floats:
    """Relative error of every point when predicted by a fit that did not see its shape."""
    folds = np.array([zlib.crc32(group.encode()) % FOLDS for group in table.groups])
    errors = np.empty(len(table))
    for fold in np.unique(folds):
        out = folds == fold
        seen = ~out if (~out).any() else out
        values, _ = _solve(acc, free, table, seen)
        errors[out] = (table.predict_s(with_values(acc, free, values)) / table.measured_s - 1.0)[out]
    return errors


# --- reading and replacing a value by its path --------------------------------------------------------------------


def number_at(acc: Accelerator, path: str) -> float:
    """The number at a dotted path of an accelerator: `attention.kernels.cudnn.forward_efficiency`."""
    return float(value_at(acc, tuple(path.split("."))))


def with_values(acc: Accelerator, parameters: Sequence[KernelParameter], values: Floats) -> Accelerator:
    """The accelerator with the parameters' numbers replaced."""
    for parameter, value in zip(parameters, values, strict=True):
        for path in (parameter.path, *parameter.also):
            acc = with_value(acc, tuple(path.split(".")), float(value))
    return acc


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One calibrated hardware file."""

    name: str
    gpu: str
    path: Path
    num_points: int
    calibration: Calibration


def hardware_names(points: Sequence[Point]) -> list[str]:
    """Hardware files whose name is a device of the points, ignoring case."""
    timed = {point.gpu.lower() for point in points}
    return [name for name in names(FileKind.HARDWARE) if name in timed]


def calibrate_hardware(
    name: str, points: Sequence[Point], gpu: str | None = None, *, is_own_sweep: bool = False
) -> Result:
    """Fit one hardware file. The device's name in the points is the file's own name, or its part before the dash.

    is_own_sweep  the points are of a sweep by this package, `calibrate --device`

    Raises InputError when the points hold nothing of that device.
    """
    hardware = load_hardware(name, where="--hardware")
    known = sorted({point.gpu for point in points})
    wanted = [gpu] if gpu else [hardware.name, hardware.name.partition("-")[0]]
    found = next((other for other in wanted if other in known), None)
    if found is None:
        what = f"no points of {wanted[0]}; the file has {', '.join(known) or 'none'}"
        raise InputError([Problem("--measurements", what)])
    chosen = [point for point in points if point.gpu == found]
    # The laws are fitted to the points; tables of the same points would answer for them.
    calibration = calibrate(replace(hardware.accelerator, tables=NO_TABLES), chosen, is_own_sweep=is_own_sweep)
    return Result(name=name, gpu=found, path=hardware.path, num_points=len(chosen), calibration=calibration)
