"""A device's own table of kernels: GEMM, attention and expert products over a sweep of shapes, as a CSV of points.

The CSV has the columns that `primus-search calibrate` reads, so a device measured here is fitted like a published
sweep. Every shape runs in a process of its own group of shapes; a kernel the device lacks leaves its rows out.
"""

import csv
import datetime
import io
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor

from primus_search.measure.attention import MissingKernelError
from primus_search.measure.device import CPU, CUDA, clock, describe, synchronize
from primus_search.measure.isolate import Verdict
from primus_search.measure.linear import precise8, scaled_mm
from primus_search.measure.ranks import Job, failure_of, join, leave, run_jobs, run_ranks
from primus_search.measure.timing import measure

COLUMNS = (
    "kind", "gpu", "dtype", "op", "m", "n", "k", "seq", "head_dim", "heads", "batch", "causal", "message_bytes",
    "num_gpus", "nodes", "value", "unit", "source", "notes",
)  # fmt: skip
TERA = 1e12
BACKWARD_ATTENTION = 2.5  # five products against two, as in cost/attention.py
LIMIT_S = 600.0
WARM = "primus_search.measure.worker:warm"
CPU_RANKS = 2
LINK_REPEATS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Shapes to measure: GEMMs (m, n, k), attention (batch, heads, seq, dim), experts (groups, rows, n, k)."""

    gemms: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    experts: tuple[tuple[int, int, int, int], ...]
    budget_s: float
    messages: tuple[int, ...]


FULL = Sweep(
    gemms=(
        *itertools.product((1024, 4096, 8192), (1024, 4096, 14336), (1024, 4096, 14336)),
        *((2048, 8192, 8192), (16384, 4096, 4096), (8192, 8192, 28672), (4096, 6144, 4096), (4096, 128256, 4096)),
    ),
    attention=tuple(
        (max(1, 16384 // seq), 32, seq, dim) for seq in (1024, 2048, 4096, 8192, 16384) for dim in (64, 128)
    ),
    experts=tuple((8, rows, n, k) for rows in (128, 512, 2048, 4096) for n, k in ((28672, 4096), (2816, 2048))),
    budget_s=0.5,
    messages=tuple(1 << power for power in range(12, 31, 2)),
)
TINY = Sweep(
    gemms=((64, 64, 64),), attention=((1, 2, 64, 16),), experts=((2, 16, 32, 16),), budget_s=0.02,
    messages=(1 << 10, 1 << 14),
)  # fmt: skip
SWEEPS = {"full": FULL, "tiny": TINY}


def measure_device(path: Path, *, kind: str, gpu: str, sweep: str = "full") -> list[str]:
    """Measure the device and write the CSV; what could not be measured, in words.

    GEMM, attention and experts are each a process of its own: a crash in one leaves the other two.
    """
    rows: list[dict[str, Any]] = []
    missing = []
    common = {"device": kind, "gpu": gpu, "sweep": sweep}
    function = "primus_search.measure.device_table:sweep_family"
    jobs = [Job(function=function, payload=common | {"family": family}, limit_s=LIMIT_S) for family in _FAMILIES]
    for family, (outcome,) in zip(_FAMILIES, run_jobs(jobs, ranks=1, threads=1, warm=WARM), strict=True):
        if outcome.verdict is Verdict.DONE:
            rows += outcome.value["rows"]
            missing += outcome.value["missing"]
        else:
            missing.append(f"{family}: {outcome.verdict.value}: {outcome.cause}")
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
    outcomes = run_ranks("primus_search.measure.device_table:sweep_links", payload, ranks=ranks, limit_s=LIMIT_S)
    failure = failure_of(outcomes)
    if failure is not None:
        return [], [f"collectives: {failure.verdict.value}: {failure.cause}"]
    by_call = zip(*(outcome.value for outcome in outcomes), strict=True)
    return [same[0] | {"value": median(row["value"] for row in same)} for same in by_call], []


def sweep_links(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Inside one rank: every collective at every message size, in microseconds."""
    join(payload, device=payload["device"])
    ranks, kind = payload["ranks"], payload["device"]
    common = {"kind": "collective", "gpu": payload["gpu"], "dtype": "bf16", "num_gpus": ranks, "nodes": 1, "unit": "us"}
    common |= {"source": _source(kind), "notes": "trust=A; median of repeats after warm-up, ranks synchronised before"}
    rows = []
    for size in SWEEPS[payload["sweep"]].messages:
        elements = size // 2 // ranks * ranks
        with torch.device(kind):
            whole = torch.zeros(elements, dtype=torch.bfloat16)
            part, other = torch.zeros(elements // ranks, dtype=torch.bfloat16), torch.empty_like(whole)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather_into_tensor, whole, part),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole),
            "all_to_all": partial(dist.all_to_all_single, other, whole),
        }
        for op, call in calls.items():
            rows.append(common | {"op": op, "message_bytes": elements * 2, "value": _link_s(call, kind) * 1e6})
        send_s = _link_s(partial(_there_and_back, whole, payload["rank"]), kind) / 2.0
        rows.append(common | {"op": "send", "num_gpus": 2, "message_bytes": elements * 2, "value": send_s * 1e6})
    leave()
    return rows


def _link_s(call: Callable[[], object], kind: str) -> float:
    """Median seconds of a collective that all ranks enter together."""
    samples, stopwatch = [], clock(kind)
    for _ in range(LINK_REPEATS):
        dist.barrier()
        synchronize(kind)
        samples.append(stopwatch(call))
    return median(samples[1:])


def _there_and_back(tensor: Tensor, rank: int) -> None:
    """A message from rank 0 to rank 1 and back; the others wait at the next barrier."""
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


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
    sweep, kind = SWEEPS[payload["sweep"]], payload["device"]
    common = {
        "gpu": payload["gpu"],
        "unit": "TFLOP/s",
        "source": _source(kind),
        "notes": "trust=A; median of repeats after warm-up, fresh random inputs; sustained",
    }
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    with torch.device(kind):
        for entry, run in _FAMILIES[payload["family"]](sweep):
            try:
                timing = measure(run["call"], device=kind, budget_s=sweep.budget_s)
            except (MissingKernelError, NotImplementedError) as error:
                missing.append(f"{entry['op']} {entry['dtype']}: {error}")
                continue
            rows.append(common | entry | {"kind": payload["family"], "value": run["flops"] / timing.median_s / TERA})
    return {"rows": rows, "missing": list(dict.fromkeys(missing))}


Entry = tuple[dict[str, Any], dict[str, Any]]


def _gemms(sweep: Sweep) -> Iterable[Entry]:
    for m, n, k in sweep.gemms:
        shape = {"m": m, "n": n, "k": k}
        x, w, g = (torch.randn(*size, dtype=torch.bfloat16) for size in ((m, k), (n, k), (m, n)))
        flops = 2.0 * m * n * k
        yield shape | {"dtype": "bf16", "op": "fwd"}, {"call": _forward(x, w), "flops": flops}
        yield shape | {"dtype": "bf16", "op": "bwd"}, {"call": _backward(x, w, g), "flops": 2.0 * flops}
        if m % 16 == 0 and n % 16 == 0 and k % 16 == 0 and x.device.type != CPU:
            yield shape | {"dtype": "fp8_tensorwise", "op": "fwd"}, {"call": _fp8(x, w), "flops": flops}


def _forward(x: Tensor, w: Tensor) -> Callable[[], object]:
    return lambda: x @ w.t()


def _backward(x: Tensor, w: Tensor, g: Tensor) -> Callable[[], object]:
    return lambda: (g @ w, g.t() @ x)


def _fp8(x: Tensor, w: Tensor) -> Callable[[], object]:
    def run() -> Tensor:
        return scaled_mm(x8, w8.t(), x_scale, w_scale, torch.bfloat16)

    x8, x_scale = precise8(x)
    w8, w_scale = precise8(w)
    return run


def _attentions(sweep: Sweep) -> Iterable[Entry]:
    for batch, heads, seq, dim in sweep.attention:
        shape = {"seq": seq, "head_dim": dim, "heads": heads, "batch": batch, "causal": "true", "dtype": "bf16"}
        q, k, v = (torch.randn(batch, heads, seq, dim, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        flops = 4.0 * batch * heads * dim * seq * seq / 2.0
        yield shape | {"op": "fwd_torch_sdpa"}, {"call": _attend(q, k, v), "flops": flops}
        out = _attend(q, k, v)()
        backward = _attend_backward(out, (q, k, v))
        yield shape | {"op": "bwd_torch_sdpa"}, {"call": backward, "flops": BACKWARD_ATTENTION * flops}


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_backward(out: Tensor, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _experts(sweep: Sweep) -> Iterable[Entry]:
    for groups, rows, n, k in sweep.experts:
        shape = {"m": rows, "n": n, "k": k, "batch": groups, "dtype": "bf16"}
        x, w, g = (
            torch.randn(*size, dtype=torch.bfloat16) for size in ((groups, rows, k), (groups, k, n), (groups, rows, n))
        )
        flops = 2.0 * groups * rows * n * k
        yield shape | {"op": "fwd"}, {"call": _grouped(x, w), "flops": flops}
        yield shape | {"op": "bwd"}, {"call": _grouped_backward(x, w, g), "flops": 2.0 * flops}


def _grouped(x: Tensor, w: Tensor) -> Callable[[], object]:
    return lambda: torch.bmm(x, w)


def _grouped_backward(x: Tensor, w: Tensor, g: Tensor) -> Callable[[], object]:
    return lambda: (torch.bmm(g, w.transpose(1, 2)), torch.bmm(x.transpose(1, 2), g))


_FAMILIES: dict[str, Callable[[Sweep], Iterable[Entry]]] = {
    "gemm": _gemms,
    "attention": _attentions,
    "grouped_gemm": _experts,
}
