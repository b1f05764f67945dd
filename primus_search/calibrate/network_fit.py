"""Fits a network's latencies, ramp and efficiencies to measured collectives, and says how well left-out points agree.

    points = read_points(Path("measurements.csv"), gpu="H100")
    fitted = fit_network(network, points, names)
    errors = left_out_errors(network, points, names)

Points come from a CSV with the columns kind, gpu, dtype, op, m, k, message_bytes, num_gpus, nodes, value, unit, source
and notes (one row per
measurement; bus bandwidth in GB/s as nccl-tests defines it, or microseconds of a dispatch). Only named, bounded fields
of `Network` are fitted, in the logarithm of the time, with a loss that a few outliers do not bend; a field the points
do not move is refused. Nothing is written here: the caller puts figures, with date and source, into `hardware/*.yaml`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from primus_search.calibrate.points import rows_of
from primus_search.candidates import Bools, Floats, Ints
from primus_search.cost.laws.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    reduce_scatter_s,
)
from primus_search.cost.traffic.expert_parallel import BF16_BYTES, FP8_BYTES, distinct_destinations
from primus_search.network import Network
from primus_search.units import GB

# Fields that points can tell, with their bounds.
BOUNDS = {
    "link_latency_s": (1e-6, 1e-4),
    "link_hop_latency_s": (1e-7, 2e-5),
    "link_half_speed_bytes": (1e4, 1e9),
    "nic_half_speed_bytes": (1e4, 1e9),
    "ring_efficiency": (0.1, 1.0),
    "pair_loss": (0.01, 1.0),
    "in_network_efficiency": (0.1, 1.0),
    "all_to_all_efficiency": (0.1, 1.0),
    "dispatch_efficiency": (0.1, 1.0),
    "nic_dispatch_efficiency": (0.1, 1.0),
}
# Relative residual from which a point counts less, and the least share of the residual a field has to explain.
OUTLIER, LEAST_SENSITIVITY = 0.1, 1e-3

# The DeepEP and MORI benchmarks: experts and experts per token of the model they stand for (DeepSeek-V3).
BENCHMARK_EXPERTS, BENCHMARK_TOP_K = 256, 8

# One host thread launches the kernels of all its devices one after the other, and none finishes before the last has
# started: 50 us for 1 to 32 KiB over eight MI350X (sample log with -g 8 in ROCm/system-acceptance-docs@23e7312) where
# one process per device takes 13 us. Training has one process per device.
ONE_PROCESS_LAUNCH_S = 6.25e-6

_RINGS: dict[str, Callable[[Network, Floats, Group], Floats]] = {
    "allreduce": all_reduce_s,
    "allgather": all_gather_s,
    "reducescatter": reduce_scatter_s,
    "alltoall": all_to_all_s,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Measured exchanges, one per row. message_bytes: as `cost.laws.collectives` counts it; of a dispatch, tokens once.

    launch_s: the least time the benchmark itself allows, however small the message.
    """

    op: tuple[str, ...]
    members: Ints
    nodes: Ints
    message_bytes: Floats
    seconds: Floats
    launch_s: Floats
    source: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: Bools | Ints) -> "Points":
        """The rows of a mask or index."""
        index = np.arange(len(self))[rows]
        return Points(
            op=tuple(self.op[i] for i in index),
            members=self.members[index],
            nodes=self.nodes[index],
            message_bytes=self.message_bytes[index],
            seconds=self.seconds[index],
            launch_s=self.launch_s[index],
            source=tuple(self.source[i] for i in index),
        )


COLUMNS = ("kind", "gpu", "op", "m", "message_bytes", "num_gpus", "nodes", "value", "unit", "source", "notes")
"""What a CSV of measured collectives has."""


def read_points(path: Path, gpu: str) -> Points:
    """Every collective and dispatch of one accelerator that says its message, its ranks and its time."""
    rows = []
    for row in rows_of(path, COLUMNS):
        if row["gpu"] == gpu and row["num_gpus"]:
            point = _collective(row) if row["kind"] == "collective" else _dispatch(row)
            if point:
                is_one_process = "single process" in row["notes"]
                launch_s = ONE_PROCESS_LAUNCH_S * point[1] / point[2] if is_one_process else 0.0
                rows.append((*point, launch_s, row["source"]))
    return Points(
        op=tuple(r[0] for r in rows),
        members=np.array([r[1] for r in rows], dtype=np.int64),
        nodes=np.array([r[2] for r in rows], dtype=np.int64),
        message_bytes=np.array([r[3] for r in rows], dtype=np.float64),
        seconds=np.array([r[4] for r in rows], dtype=np.float64),
        launch_s=np.array([r[5] for r in rows], dtype=np.float64),
        source=tuple(r[6] for r in rows),
    )


def _collective(row: dict[str, str]) -> tuple[str, int, int, float, float] | None:
    if row["op"] not in _RINGS or row["unit"] != "GB/s busbw" or not row["message_bytes"] or not row["nodes"]:
        return None
    members, size, bus = int(row["num_gpus"]), float(row["message_bytes"]), float(row["value"]) * GB
    turns = (2.0 if row["op"] == "allreduce" else 1.0) * (members - 1) / members
    return row["op"], members, int(row["nodes"]), size, size * turns / bus


def _dispatch(row: dict[str, str]) -> tuple[str, int, int, float, float] | None:
    """A normal-mode dispatch (FP8 unless it says BF16) or combine (BF16), at the compute units training gives it.

    GB/s are logical: every byte a rank receives, its own node's included, per second.
    """
    op = row["op"].removesuffix("_normal")
    is_slow = "SMs" in row["notes"] and "24 SMs" not in row["notes"]
    if row["kind"] != "dispatch_combine" or op not in ("dispatch", "combine") or is_slow or not row["m"]:
        return None
    if "normalised" in row["notes"] or not row["op"].endswith("_normal"):
        return None
    members, nodes = int(row["num_gpus"]), int(row["nodes"])
    element = BF16_BYTES if op == "combine" or row["dtype"] == "bf16" else FP8_BYTES
    token_bytes = float(row["m"]) * float(row["k"]) * element
    if row["unit"] == "us":
        return op, members, nodes, token_bytes, float(row["value"]) * 1e-6
    parts = nodes if nodes > 1 else members
    logical = token_bytes * float(distinct_destinations(BENCHMARK_EXPERTS, BENCHMARK_TOP_K, np.array(parts)))
    return op, members, nodes, token_bytes, logical / (float(row["value"]) * GB)


def predict_s(network: Network, points: Points) -> Floats:
    """Seconds the cost model gives every point."""
    seconds = np.zeros(len(points))
    op = np.array(points.op)
    group = Group(points.members, np.ones_like(points.members))
    for name, collective in _RINGS.items():
        rows = op == name
        if rows.any():
            seconds[rows] = collective(network, points.message_bytes, group)[rows]
    rows = (op == "dispatch") | (op == "combine")
    if rows.any():
        seconds[rows] = dispatch_s(
            network,
            points.message_bytes,
            group,
            destinations=lambda parts: distinct_destinations(BENCHMARK_EXPERTS, BENCHMARK_TOP_K, parts),
        )[rows]
    return np.maximum(seconds, points.launch_s)


def fit_network(network: Network, points: Points, names: Sequence[str]) -> Network:
    """The network with the named fields fitted to the points; the others stay.

    Raises ValueError naming the fields that the points cannot tell: their time does not depend on them.
    """
    free = [name for name in names if network.__getattribute__(name) > 0.0]
    lower, upper = (np.log([BOUNDS[name][side] for name in free]) for side in (0, 1))
    start = np.clip(np.log([network.__getattribute__(name) for name in free]), lower + 1e-6, upper - 1e-6)
    target = np.log(points.seconds)

    def residuals(x: Floats) -> Floats:
        return np.log(predict_s(_with(network, free, x), points)) - target

    found = least_squares(residuals, start, bounds=(lower, upper), loss="soft_l1", f_scale=OUTLIER)
    idle = [n for n, column in zip(free, np.abs(found.jac).max(axis=0), strict=True) if column < LEAST_SENSITIVITY]
    if idle:
        raise ValueError(f"these points cannot tell {', '.join(idle)}; leave it out of the fit")
    return _with(network, free, found.x)


def _with(network: Network, names: Sequence[str], logs: Floats) -> Network:
    changes: dict[str, Any] = {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}
    return replace(network, **changes)


def relative_errors(network: Network, points: Points) -> Floats:
    """Signed error of every point: predicted over measured, less one."""
    return predict_s(network, points) / points.seconds - 1.0


def left_out_errors(network: Network, points: Points, names: Sequence[str], *, folds: int = 5) -> Floats:
    """Signed error of every point by a fit that did not see it: every `folds`-th point is left out in turn."""
    errors = np.zeros(len(points))
    fold = np.arange(len(points)) % folds
    for k in range(folds):
        fitted = fit_network(network, points.take(fold != k), names)
        errors[fold == k] = relative_errors(fitted, points.take(fold == k))
    return errors
