"""Fit named, bounded efficiencies of one accelerator to measured kernels, and refuse what the data does not identify.

Each stage fits a few parameters to the points that depend on them, by least squares on log(predicted / measured) with
a soft-L1 loss, so that a kernel that took a slow path does not bend the law. A parameter is kept only if the data says
what it is: its standard error in log units is below `MAX_STANDARD_ERROR` and it does not sit on a bound. Otherwise it
goes back to the hardware file's value, the stage is fitted again without it, and the reason is reported. Errors are
those of points left out: whole shapes at a time, in `FOLDS` folds.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from primus_search.base.field_paths import value_at, with_value
from primus_search.runs.calibrate.fit_stages import FitStage, KernelParameter, own_stages, stages
from primus_search.runs.calibrate.points import Point
from primus_search.runs.calibrate.predict import PointTable
from primus_search.values.candidates import Bools, Floats
from primus_search.values.machine.accelerator import Accelerator

MAX_STANDARD_ERROR = 0.125
MIN_POINTS_PER_PARAMETER = 4
MAX_FITTED = 12
FOLDS = 5
_LOSS_SCALE = 0.05  # residuals beyond 5 % count linearly
_BOUND_MARGIN = 0.005  # share of the range within which a value counts as sitting on its bound


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A number the data does not identify, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What one stage found. Errors are of points left out of the fit that predicted them."""

    name: str
    num_points: int
    median_error: float
    p90_error: float
    bias: float
    fitted: tuple[Fitted, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A calibrated accelerator and how it came about."""

    accelerator: Accelerator
    stages: tuple[StageResult, ...]


def calibrate(acc: Accelerator, points: Sequence[Point], *, is_own_sweep: bool = False) -> Calibration:
    """Fit every stage that has points of this device; `acc` gives the starting values and what is not fitted.

    is_own_sweep  the points are of one sweep by this package (`own_stages`)
    """
    results = []
    for stage in own_stages(points) if is_own_sweep else stages(points):
        chosen = [point for point in points if stage.uses(point)]
        if not chosen or not stage.parameters:
            reason = "no points of this device"
            refused = tuple(Refused(path=p.path, reason=reason) for p in stage.parameters)
            nan = float("nan")
            results.append(
                StageResult(
                    name=stage.name, num_points=0, median_error=nan, p90_error=nan, bias=nan, fitted=(), refused=refused
                )
            )
            continue
        room = MAX_FITTED - sum(len(result.fitted) for result in results)
        acc, result = _fit_stage(acc, stage, chosen, room)
        results.append(result)
    return Calibration(accelerator=acc, stages=tuple(results))


def _fit_stage(
    acc: Accelerator, stage: FitStage, points: Sequence[Point], room: int
) -> tuple[Accelerator, StageResult]:
    """Fit one stage; `room` is how many numbers may still be fitted for this device."""
    table = PointTable(points)
    free = list(stage.parameters[:room])
    refused = [
        Refused(path=p.path, reason=f"{MAX_FITTED} numbers of this device are fitted already")
        for p in stage.parameters[room:]
    ]
    everything = np.ones(len(table), np.bool_)
    while True:
        values, errors = _solve(acc, free, table, everything)
        worst = _least_identified(free, values, errors, len(table))
        if worst is None:
            break
        index, reason = worst
        refused.append(Refused(path=free[index].path, reason=reason))
        del free[index]
    left_out = _left_out_errors(acc, free, table)
    sources = tuple(sorted({point.source.split(" ")[0] for point in points}))
    fitted = tuple(
        Fitted(
            path=p.path,
            value=float(value),
            low=p.low,
            high=p.high,
            standard_error=float(error),
            num_points=len(table),
            sources=sources,
            also=p.also,
        )
        for p, value, error in zip(free, values, errors, strict=True)
    )
    result = StageResult(
        name=stage.name,
        num_points=len(table),
        median_error=float(np.median(np.abs(left_out))),
        p90_error=float(np.quantile(np.abs(left_out), 0.9)),
        bias=float(np.median(left_out)),
        fitted=fitted,
        refused=tuple(refused),
    )
    return with_values(acc, free, values), result


def _solve(acc: Accelerator, free: Sequence[KernelParameter], table: PointTable, rows: Bools) -> tuple[Floats, Floats]:
    """Values of the free parameters that fit `rows` best, and their standard errors in log units."""
    if not free:
        return np.empty(0), np.empty(0)
    low, high = np.array([p.low for p in free]), np.array([p.high for p in free])
    start = np.clip(
        np.array([number_at(acc, p.path) for p in free]), low + 0.01 * (high - low), high - 0.01 * (high - low)
    )

    def residuals(x: Floats) -> Floats:
        predicted_s = table.predict_s(with_values(acc, free, low + x * (high - low)))
        chosen: Floats = np.log(predicted_s / table.measured_s)[rows]
        return chosen

    found = least_squares(
        residuals, (start - low) / (high - low), bounds=(0.0, 1.0), loss="soft_l1", f_scale=_LOSS_SCALE, max_nfev=60
    )
    values: Floats = low + found.x * (high - low)
    scale = 1.4826 * float(np.median(np.abs(found.fun)))
    information = found.jac.T @ found.jac
    spread = np.sqrt(np.diag(np.linalg.pinv(information))) * scale * (high - low)
    dead = np.diag(information) < 1e-9
    errors: Floats = np.where(dead, np.inf, spread / np.maximum(values, 1e-9))
    return values, errors


def _least_identified(
    free: Sequence[KernelParameter], values: Floats, errors: Floats, num_points: int
) -> tuple[int, str] | None:
    """The parameter to give up next and why; None when all are identified."""
    if not free:
        return None
    if num_points < MIN_POINTS_PER_PARAMETER * len(free):
        return len(free) - 1, f"{num_points} points are too few for {len(free)} parameters"
    dead = [i for i, error in enumerate(errors) if not np.isfinite(error)]
    if dead:
        return dead[0], "no point depends on it"
    on_bound = [
        i
        for i, (p, value) in enumerate(zip(free, values, strict=True))
        if not _BOUND_MARGIN < (value - p.low) / (p.high - p.low) < 1.0 - _BOUND_MARGIN
    ]
    if on_bound:
        p = free[on_bound[0]]
        return on_bound[0], f"the fit runs into its bound ({values[on_bound[0]]:.3g} of {p.low:g}..{p.high:g})"
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
