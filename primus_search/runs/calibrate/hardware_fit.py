"""Calibrate a named hardware file from points: which device of the CSV it is, and what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.declare.hardware_files import load_hardware
from primus_search.declare.search_path import FileKind, names
from primus_search.runs.calibrate.kernel_fit import Calibration, calibrate
from primus_search.runs.calibrate.points import Point, of_gpu
from primus_search.values.machine.accelerator import NO_TABLES


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
    chosen = of_gpu(points, found)
    # The laws are fitted to the points; tables of the same points would answer for them.
    calibration = calibrate(replace(hardware.accelerator, tables=NO_TABLES), chosen, is_own_sweep=is_own_sweep)
    return Result(name=name, gpu=found, path=hardware.path, num_points=len(chosen), calibration=calibration)
