"""Measured collectives and dispatches, read from tables of points.

    points = read_points(Path("measurements.csv"), gpu="H100")

Points come from a CSV with the columns kind, gpu, dtype, op, m, k, message_bytes, num_gpus, nodes, value, unit, source
and notes (one row per measurement; bus bandwidth in GB/s as nccl-tests defines it, or microseconds of a dispatch).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from primus_search.base.units import BF16_BYTES, FP8_BYTES, GB
from primus_search.cost.laws import collectives
from primus_search.cost.laws.collectives import Group
from primus_search.cost.traffic.expert_parallel import distinct_destinations
from primus_search.runs.calibrate.points import rows_of
from primus_search.values.candidates import Floats, Ints
from primus_search.values.machine.cluster import Network

# The DeepEP and MORI benchmarks: experts and experts per token of the model they stand for (DeepSeek-V3).
BENCHMARK_EXPERTS, BENCHMARK_TOP_K = 256, 8

# One host thread launches the kernels of all its devices one after the other, and none finishes before the last has
# started: 50 us for 1 to 32 KiB over eight MI350X (sample log with -g 8 in ROCm/system-acceptance-docs@23e7312) where
# one process per device takes 13 us. Training has one process per device.
ONE_PROCESS_LAUNCH_S = 6.25e-6

RINGS: dict[str, Callable[[Network, Floats, Group], Floats]] = {
    "allreduce": collectives.all_reduce_s,
    "allgather": collectives.all_gather_s,
    "reducescatter": collectives.reduce_scatter_s,
    "alltoall": collectives.all_to_all_s,
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
    if row["op"] not in RINGS or row["unit"] != "GB/s busbw" or not row["message_bytes"] or not row["nodes"]:
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
