"""A device's own table of kernels: GEMM, attention and expert products over a sweep of shapes, as a CSV of points.

The CSV has the columns that `primus-search calibrate` reads, so a device measured here is fitted like a published
sweep. Every shape runs in a process of its own group of shapes; a kernel the device lacks leaves its rows out.
"""

import csv
import datetime
import io
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from primus_search.measure.device.clocks import Watch
from primus_search.measure.device.device_info import CUDA, clock, describe, on, synchronize
from primus_search.measure.device.sweeps import FAMILIES, SWEEPS, run_family
from primus_search.measure.processes.isolate import ProcessVerdict
from primus_search.measure.processes.rank_group import (
    RankJob,
    failure_of,
    join,
    leave,
    run_jobs,
    run_ranks,
    there_and_back,
)

COLUMNS = (
    "kind", "gpu", "dtype", "op", "m", "n", "k", "seq", "head_dim", "heads", "batch", "causal", "message_bytes",
    "num_gpus", "nodes", "value", "unit", "source", "notes",
)  # fmt: skip
START_S, OVERRUN = 60.0, 1.5  # seconds a process may take before its first call; its limit over its family's time
LINKS_LIMIT_S = 180.0
WARM = "primus_search.measure.processes.worker:warm"
CPU_RANKS = 2
LINK_REPEATS = 12


def measure_device(path: Path, *, kind: str, gpu: str, sweep: str = "full") -> list[str]:
    """Measure the device and write the CSV; what could not be measured, in words.

    GEMM, attention and experts are each a process of its own: a crash in one leaves the other two.
    """
    rows: list[dict[str, Any]] = []
    missing = []
    common = {"device": kind, "gpu": gpu, "sweep": sweep}
    function = "primus_search.measure.device.device_table:sweep_family"
    limit_s = START_S + OVERRUN * SWEEPS[sweep].family_s
    jobs = [RankJob(function=function, payload=common | {"family": family}, limit_s=limit_s) for family in FAMILIES]
    watch = Watch() if kind == CUDA else nullcontext()
    with watch as clocks:
        outcomes = run_jobs(jobs, ranks=1, threads=1, warm=WARM)
    for family, (outcome,) in zip(FAMILIES, outcomes, strict=True):
        if outcome.verdict is ProcessVerdict.DONE:
            rows += outcome.value["rows"]
            missing += outcome.value["missing"]
        else:
            missing.append(f"{family}: {outcome.verdict.value}: {outcome.cause}")
    if clocks is not None:
        rows = [row | {"notes": f"{row['notes']}; {clocks.text}"} for row in rows]
        missing += clocks.warnings
    links, lost = _measure_links(kind, gpu, sweep)
    rows += links
    missing += lost
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_csv(rows), encoding="utf-8")
    return missing


def _measure_links(kind: str, gpu: str, sweep: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Collectives between all devices of this node, each device a rank; nothing where there is one device."""
    ranks = torch.cuda.device_count() if kind == CUDA else CPU_RANKS
    if ranks < 2:
        return [], [f"collectives: this node has {ranks} device"]
    payload = {"device": kind, "gpu": gpu, "sweep": sweep}
    outcomes = run_ranks(
        "primus_search.measure.device.device_table:sweep_links", payload, ranks=ranks, limit_s=LINKS_LIMIT_S
    )
    failure = failure_of(outcomes)
    if failure is not None:
        return [], [f"collectives: {failure.verdict.value}: {failure.cause}"]
    by_call = zip(*(outcome.value for outcome in outcomes), strict=True)
    # A message concerns the first `num_gpus` ranks; what others measured of it is nothing.
    joined = [(same[0], [row["value"] for row in same[: same[0]["num_gpus"]]]) for same in by_call]
    return [row | {"value": median(values)} for row, values in joined], []


def sweep_links(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Inside one rank: every collective at every message size, in microseconds."""
    join(payload, device=payload["device"])
    ranks, kind = payload["ranks"], payload["device"]
    common = {"kind": "collective", "gpu": payload["gpu"], "dtype": "bf16", "num_gpus": ranks, "nodes": 1, "unit": "us"}
    common |= {"source": _source(kind), "notes": "trust=A; median of repeats after warm-up, ranks synchronised before"}
    rows = []
    for size in SWEEPS[payload["sweep"]].messages:
        elements = size // 2 // ranks * ranks
        with on(kind):
            whole = torch.zeros(elements, dtype=torch.bfloat16)
            part, other = torch.zeros(elements // ranks, dtype=torch.bfloat16), torch.empty_like(whole)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather_into_tensor, whole, part),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole),
            "all_to_all": partial(dist.all_to_all_single, other, whole),
        }
        for op, call in calls.items():
            rows.append(common | {"op": op, "message_bytes": elements * 2, "value": link_s(call, kind) * 1e6})
        send_s = link_s(partial(there_and_back, whole), kind) / 2.0
        rows.append(common | {"op": "send", "num_gpus": 2, "message_bytes": elements * 2, "value": send_s * 1e6})
    leave()
    return rows


def link_s(call: Callable[[], object], kind: str) -> float:
    """Median seconds of a collective that all ranks enter together."""
    samples, stopwatch = [], clock(kind)
    for _ in range(LINK_REPEATS):
        dist.barrier()
        synchronize(kind)
        samples.append(stopwatch(call))
    return median(samples[1:])


def _source(kind: str) -> str:
    return f"measured on {describe(kind).label}, {datetime.datetime.now(datetime.UTC).date().isoformat()}"


def to_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Rows in the columns of a measurement CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def sweep_family(payload: dict[str, Any]) -> dict[str, Any]:
    """Inside the isolated process: every shape of one family of kernels."""
    kind = payload["device"]
    common = {"gpu": payload["gpu"], "unit": "TFLOP/s", "source": _source(kind)}
    common |= {"notes": "trust=A; median of repeats after warm-up, fresh random inputs; sustained"}
    rows, missing = run_family(payload["family"], SWEEPS[payload["sweep"]], kind, common)
    return {"rows": rows, "missing": missing}
