"""A site against its hardware file: measured points of one device over what the file expects of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.cost.laws import collectives
from primus_search.files.hardware_files import Hardware
from primus_search.measure.calibrate.point_laws import PointTable
from primus_search.measure.calibrate.points import KernelKind, read_points, rows_of
from primus_search.values.candidates import Fp8

COLLECTIVES = {
    name: getattr(collectives, f"{name}_s")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
}
SLOW = 0.9
"""Share of the file's speed below which a site is called slow, for its median over one kind of call: a round number.

Below it lies none of 61 published sweeps of kernels (one device, kind and format each), the lowest at 0.91 and 19 of 20
above 0.95, 2026-11-24. Most laws were fitted to these sweeps, their single points lie at 0.2 to 1.6, and collectives
were not among them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteShare:
    """How fast a site runs one kind of call: its median speed over that of the hardware file, and the range of it."""

    what: str
    num_points: int
    share: float
    low: float
    high: float

    @property
    def is_slow(self) -> bool:
        return self.share < SLOW


def site_shares(path: Path, hardware: Hardware) -> tuple[list[SiteShare], int]:
    """Measured points of one device against what its hardware file expects of it, by kind of call and number format.

    Also how many of its rows are of no law's kind or format, and were compared with nothing.

    path  CSV of `calibrate --device` or `bench --site`: kernels in TFLOP/s, collectives of one node in microseconds
    Raises InputError where it holds no point of that device.
    """
    points = [point for point in read_points(path) if point.gpu == hardware.name]
    shares: dict[str, list[float]] = {}
    expected_s = PointTable(points).predict_s(hardware.accelerator) if points else ()
    for point, seconds in zip(points, expected_s, strict=True):
        form = "" if point.kind is KernelKind.ATTENTION else f" {'BF16' if point.code is Fp8.NONE else point.code.name}"
        name = point.kind.name.replace("_", " ").lower().replace("gemm", "GEMM")
        shares.setdefault(f"{name}{form}", []).append(float(seconds / point.seconds))
    rows = [row for row in rows_of(path) if row["gpu"] == hardware.name]
    for row in rows:
        if row["kind"] == "collective" and row["op"] in COLLECTIVES:
            group = collectives.Group(int(row["num_gpus"]), 1)
            seconds = float(COLLECTIVES[row["op"]](hardware.network, float(row["message_bytes"]), group))
            shares.setdefault(f"{row['op'].replace('_', '-')} in a node", []).append(
                seconds / (1e-6 * float(row["value"]))
            )
    if not shares:
        raise InputError([Problem("--site", f"{path} has no point of {hardware.name}")])
    found = [
        SiteShare(what=what, num_points=len(all_), share=float(np.median(all_)), low=min(all_), high=max(all_))
        for what, all_ in shares.items()
    ]
    return found, len(rows) - sum(one.num_points for one in found)
