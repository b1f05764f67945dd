"""A device's own table of kernels: GEMM, attention and expert products over a sweep of shapes, as a CSV of points.

The CSV has the columns that `primus-search calibrate` reads, so a device measured here is fitted like a published
sweep. Every shape runs in a process of its own group of shapes; a kernel the device lacks leaves its rows out.
"""

import csv
import datetime
import io
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from primus_search.base.units import TERA
from primus_search.cost.laws.attention import BACKWARD_FLOPS
from primus_search.files.source import read
from primus_search.measure import rank_group
from primus_search.measure.device.device_info import CPU, CUDA, TORCH_NAMES, describe
from primus_search.measure.device.timing import Watch, measure
from primus_search.measure.device.torch_device import clock, heat, on, synchronize
from primus_search.measure.isolate import ProcessVerdict
from primus_search.measure.modules.attention_modules import core_attention
from primus_search.measure.modules.products import grouped_product, precise8, scaled_mm, wide8
from primus_search.values.machine.kernel_tables import GROUPED

COLUMNS = (
    "kind", "gpu", "dtype", "op", "m", "n", "k", "seq", "head_dim", "heads", "batch", "causal", "message_bytes",
    "num_gpus", "nodes", "value", "unit", "source", "notes",
)  # fmt: skip
START_S, OVERRUN = 60.0, 1.5  # seconds a process may take before its first call; its limit over its family's time
LINKS_LIMIT_S = 180.0
WARM = "primus_search.measure.layer_bench:warm"
CPU_RANKS = 2
LINK_REPEATS = 12


def measure_device(path: Path, *, kind: str, gpu: str, sweep: str = "full") -> list[str]:
    """Measure the device and write the CSV; what could not be measured, in words.

    GEMM, attention and experts are each a process of its own: a crash in one leaves the other two.
    """
    rows: list[dict[str, Any]] = []
    missing = []
    common = {"device": kind, "gpu": gpu, "sweep": sweep}
    limit_s = START_S + OVERRUN * SWEEPS[sweep].family_s
    jobs = [
        rank_group.RankJob(function=f"{__name__}:sweep_family", payload=common | {"family": family}, limit_s=limit_s)
        for family in FAMILIES
    ]
    watch = Watch() if kind == CUDA else nullcontext()
    with watch as clocks:
        outcomes = rank_group.run_jobs(jobs, ranks=1, threads=1, warm=WARM)
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
    outcomes = rank_group.run_ranks(f"{__name__}:sweep_links", payload, ranks=ranks, limit_s=LINKS_LIMIT_S)
    failure = rank_group.failure_of(outcomes)
    if failure is not None:
        return [], [f"collectives: {failure.verdict.value}: {failure.cause}"]
    by_call = zip(*(outcome.value for outcome in outcomes), strict=True)
    # A message concerns the first `num_gpus` ranks; what others measured of it is nothing.
    joined = [(same[0], [row["value"] for row in same[: same[0]["num_gpus"]]]) for same in by_call]
    return [row | {"value": median(values)} for row, values in joined], []


def sweep_links(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Inside one rank: every collective at every message size, in microseconds."""
    rank_group.join(payload, device=payload["device"])
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
        send_s = link_s(partial(rank_group.there_and_back, whole), kind) / 2.0
        rows.append(common | {"op": "send", "num_gpus": 2, "message_bytes": elements * 2, "value": send_s * 1e6})
    rank_group.leave()
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


PASSES = ("fwd", "bwd")
FP8_MULTIPLE = 16  # of every dimension, which torch's scaled product asks for
_FATAL = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSweep:
    """Shapes to measure: GEMMs (m, n, k), attention (batch, query heads, key heads, seq, query dim, value dim), experts
    (groups, rows, n, k); seconds for one call, and for a family; bytes of messages between devices."""

    gemms: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int, int, int], ...]
    experts: tuple[tuple[int, int, int, int], ...]
    budget_s: float
    family_s: float
    messages: tuple[int, ...]


def _sweep(row: dict[str, Any]) -> ShapeSweep:
    """One sweep of `sweeps.yaml`."""
    gemms = (dict(zip(part, one, strict=True)) for part in row["gemms"] for one in itertools.product(*part.values()))
    return ShapeSweep(
        gemms=tuple((one["m"], *one["nk"]) for one in gemms),
        attention=tuple((*call, *dims) for part in row["attention"] for call in part["call"] for dims in part["dims"]),
        experts=tuple((g, m, *nk) for p in row["experts"] for g, m, nk in itertools.product(*p.values())),
        **{name: row[name] for name in ("budget_s", "family_s", "messages")},
    )


SWEEPS = {name: _sweep(row) for name, row in read(Path(__file__).with_name("sweeps.yaml")).data.items()}

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeEntry:
    """One call of a sweep: its columns, the FLOPs of its rate, and what prepares the call."""

    columns: dict[str, Any]
    flops: float
    prepare: Callable[[], Call]


def run_family(
    family: str, sweep: ShapeSweep, kind: str, common: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of one family of kernels on this device, and what could not be measured in words, each cause once."""
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    started = time.perf_counter()
    heat(kind)
    with on(kind):
        entries = list(FAMILIES[family](sweep, TORCH_NAMES[kind]))
        for number, entry in enumerate(entries):
            what = f"{family} {entry.columns['op']} {entry.columns['dtype']}"
            if time.perf_counter() - started > sweep.family_s:
                missing.append(
                    f"{family}: {len(entries) - number} of {len(entries)} shapes: {sweep.family_s:.0f} s were up"
                )
                break
            try:
                seconds = measure(entry.prepare(), device=kind, budget_s=sweep.budget_s).median_s
            except RuntimeError as error:  # a missing kernel, no memory: other shapes may run
                missing.append(f"{what}: {str(error).splitlines()[0]}")
                if any(text in str(error) for text in _FATAL):
                    break  # this process's context is lost
                continue
            rows.append(common | entry.columns | {"kind": family, "value": entry.flops / seconds / TERA})
    return rows, list(dict.fromkeys(missing))


def _random(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.bfloat16)


def _entries(columns: dict[str, Any], ops: Sequence[str], flops: Sequence[float], call: Callable[..., Call],
             sizes: Sequence[int]) -> Iterator[ShapeEntry]:  # fmt: skip
    """Forward and backward of a shape; `call` takes whether it is the backward, and the sizes."""
    for is_backward, op, work in zip((False, True), ops, flops, strict=True):
        yield ShapeEntry(columns=columns | {"op": op}, flops=work, prepare=partial(call, is_backward, *sizes))


def _gemms(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.gemms:
        shape, flops = dict(zip("mnk", sizes, strict=True)), 2.0 * math.prod(sizes)
        yield from _entries(shape | {"dtype": "bf16"}, PASSES, (flops, 2.0 * flops), _gemm, sizes)
        if device != CPU and not any(size % FP8_MULTIPLE for size in sizes):
            yield from _entries(shape | {"dtype": "fp8_tensorwise"}, PASSES, (flops, 2.0 * flops), _gemm8, sizes)


def _gemm(is_backward: bool, m: int, n: int, k: int) -> Call:
    x, w = _random(m, k), _random(n, k)
    if not is_backward:
        return lambda: x @ w.t()
    g = _random(m, n)
    return lambda: (g @ w, g.t() @ x)


def _gemm8(is_backward: bool, m: int, n: int, k: int) -> Call:
    """Operands of both gradients are turned beforehand: matrix units read FP8 along the inner dimension."""
    (x8, x_scale), (w8, w_scale) = precise8(_random(m, k)), precise8(_random(n, k))
    if not is_backward:
        return lambda: scaled_mm(x8, w8.t(), x_scale, w_scale, torch.bfloat16)
    g8, g_scale = wide8(_random(m, n))
    w_turned, x_turned, g_turned = w8.t().contiguous().t(), x8.t().contiguous().t(), g8.t().contiguous()
    return lambda: (
        scaled_mm(g8, w_turned, g_scale, w_scale, torch.bfloat16),
        scaled_mm(g_turned, x_turned, g_scale, x_scale, torch.bfloat16),
    )


def _attentions(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.attention:
        batch, heads, kv_heads, seq, dim, v_dim = sizes
        shape = {"seq": seq, "batch": batch, "causal": "true", "dtype": "bf16"}
        shape |= {"head_dim": dim if dim == v_dim else f"{dim}/{v_dim}"}
        shape |= {"heads": heads if heads == kv_heads else f"{heads}/{kv_heads}"}
        flops = 2.0 * batch * heads * (dim + v_dim) * seq * seq / 2.0
        ops = ("fwd_torch_sdpa", "bwd_torch_sdpa")
        yield from _entries(shape, ops, (flops, BACKWARD_FLOPS * flops), _attention, sizes)


def _attention(is_backward: bool, batch: int, heads: int, kv_heads: int, seq: int, dim: int, v_dim: int) -> Call:
    q, k, v = _random(batch, heads, seq, dim), _random(batch, kv_heads, seq, dim), _random(batch, kv_heads, seq, v_dim)
    return _differentiable(is_backward, partial(core_attention, seq_length=seq, window=0), q, k, v)


def _experts(sweep: ShapeSweep, device: str) -> Iterator[ShapeEntry]:
    for sizes in sweep.experts:
        groups, rows, n, k = sizes
        shape, flops = {"m": rows, "n": n, "k": k, "batch": groups, "dtype": "bf16"}, 2.0 * math.prod(sizes)
        yield from _entries(shape, PASSES, (flops, 2.0 * flops), _grouped, sizes)


def _grouped(is_backward: bool, groups: int, rows: int, n: int, k: int) -> Call:
    return _differentiable(is_backward, grouped_product, _random(groups, rows, k), _random(groups, k, n))


def _differentiable(is_backward: bool, forward: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """A call, or the gradients of its inputs."""
    for tensor in inputs:
        tensor.requires_grad_()
    if not is_backward:
        return partial(forward, *inputs)
    out = forward(*inputs)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


FAMILIES: dict[str, Callable[[ShapeSweep, str], Iterator[ShapeEntry]]] = {
    "gemm": _gemms,
    "attention": _attentions,
    GROUPED: _experts,
}
