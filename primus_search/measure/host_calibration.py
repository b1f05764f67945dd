"""`hardware: host`: this machine as a cluster node, measured by a short calibration and kept as a hardware file.

A node's devices are its cores (at most `MAX_DEVICES`, each with its share of the threads). All of them are measured
at once, because cores share memory bandwidth and sometimes execution units: a core alone is up to twice as fast as in
training. The result is a hardware file like any other, in the user's cache folder, read by the same loader. It is
measured again when the processor, the memory or torch changes.

Training here is in FP32. The cost model counts two bytes per activation element, so bandwidths and link rates are
given for two-byte elements as well: half of what the machine moves. Peak FLOP/s is the best FP32 GEMM measured, so
MFU on the host means "against its own best GEMM".

Each rank measures kernels while all cores work, then the links between them (`calibrate_rank`): figures in seconds for
a stated amount of work, which `accelerator_of` and `network_of` turn into the laws of the cost model.
"""

import datetime
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from primus_search.base.cores import available_cores
from primus_search.base.errors import PrimusSearchError
from primus_search.base.guards.files import cache_folder, write_whole
from primus_search.base.units import TERA, in_readable_unit
from primus_search.cost.laws.attention import BACKWARD_FLOPS
from primus_search.cost.laws.gemm import GemmPass, gemm_s
from primus_search.files.evidence_files import tables_of
from primus_search.files.source import written
from primus_search.measure.device.device_info import cpu_name, resident_bytes
from primus_search.measure.device.device_table import to_csv
from primus_search.measure.modules.shard import COUNTED_BYTES
from primus_search.measure.modules.streams import Sizes, both_passes, memory_law, rates, stream_seconds
from primus_search.measure.rank_group import RankJob, exchange, failure_of, join, leave, run_jobs, there_and_back
from primus_search.values.machine.accelerator import (
    Accelerator,
    AttentionKernel,
    AttentionLaw,
    Footprint,
    GemmLaw,
    GroupedGemmLaw,
    LaunchLaw,
)
from primus_search.values.machine.network import Network

GEMMS = ((256, 512, 512), (512, 512, 512), (512, 3072, 512), (512, 512, 1536), (1024, 2048, 1024), (256, 8192, 512))
ATTENTION = ((1, 8, 256, 64), (1, 8, 1024, 64))  # batch, heads, sequence, head dimension
STREAMS = Sizes(rows=2048, hidden=512, vocabulary=8192, optimizer_params=2_000_000)
EXPERTS = (8, 128, 256, 768)  # groups, rows, k, n
MESSAGES = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
PARTS = 8  # weights of a sharded layer
SHARDED_LAYERS, SHARDED_ROWS, SHARDED_REPEATS = 2, 16, 7
EXCHANGED_WIDTH = 256  # numbers of a row that has one routing weight
LEAST_S = 1e-6  # what is left of a difference of two measurements that noise has turned
BURST = (512, 1024, 256)  # product computed before each collective: m, n, k
SWEPT = 1 << 21  # numbers passed over after it; 8 MB, well beyond a core's own caches


def calibrate_rank(payload: dict[str, Any]) -> dict[str, Any]:
    """All figures of one rank; one of `rank_group.run_forked`."""
    torch.manual_seed(payload["rank"])
    entered = resident_bytes()
    join(payload)
    baseline = payload["resident_bytes"] + resident_bytes() - entered
    figures: dict[str, Any] = {"gemm_s": [_gemm(*shape) for shape in GEMMS]}
    figures["attention_s"] = [_attention(*shape) for shape in ATTENTION]
    figures |= stream_seconds(STREAMS, _seconds)
    figures["experts_s"] = _experts()
    figures["links"] = _links(payload["ranks"]) if payload["ranks"] > 1 else {}
    figures["baseline_bytes"] = baseline
    leave()
    return figures


def _seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """Lower quartile of CPU seconds, or of wall seconds where they are smaller: what the call takes undisturbed."""
    run()
    samples = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        samples.append(min(time.perf_counter() - wall, time.process_time() - cpu))
    return statistics.quantiles(samples, n=4)[0]


def _gemm(m: int, n: int, k: int) -> dict[str, float]:
    x, w, g = torch.randn(m, k), torch.randn(n, k), torch.randn(m, n)
    forward = _seconds(lambda: x @ w.t())
    return {"forward": forward, "input_grad": _seconds(lambda: g @ w), "weight_grad": _seconds(lambda: g.t() @ x)}


def _attention(batch: int, heads: int, seq: int, dim: int) -> dict[str, float]:
    q, k, v = (torch.randn(batch, heads, seq, dim, requires_grad=True) for _ in range(3))
    return both_passes(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), _seconds)


def _experts() -> dict[str, float]:
    groups, rows, k, n = EXPERTS
    x, w = torch.randn(groups, rows, k), torch.randn(groups, k, n)
    return {"forward": _seconds(lambda: torch.bmm(x, w))}


def _links(ranks: int) -> dict[str, list[float]]:
    """Seconds of each collective at each message size, as training uses it.

    In training no collective finds its ranks side by side: each comes from computing, and the early one waits. So every
    sample follows a burst of computing, without a barrier, that leaves the message in no core's own cache.
    """
    out: dict[str, list[float]] = {"all_reduce": [], "all_to_all": [], "send": []}
    for size in MESSAGES:
        whole = torch.zeros(size // 4)
        out["all_reduce"].append(_wall(partial(dist.all_reduce, whole)))
        out["all_to_all"].append(_exchange_s(size, ranks))
        out["send"].append(_wall(partial(there_and_back, whole)) / 2)
    sharded = [_sharded_s(size, ranks) for size in MESSAGES]
    return out | {"all_gather": [g for g, _ in sharded], "reduce_scatter": [s for _, s in sharded]}


def _exchange_s(size: int, ranks: int) -> float:
    """An exchange of rows between experts, of the two that a layer makes: one has the rows' routing weights beside."""
    count = ranks * max(1, size // 4 // EXCHANGED_WIDTH // ranks)
    rows, weights = torch.zeros(1, count, size // 4 // count), torch.zeros(1, count, 1)

    def both_ways() -> None:
        exchange(exchange(rows))
        exchange(weights)

    return _wall(both_ways) / 2


class _Products(nn.Module):
    """A layer of `PARTS` square weights."""

    def __init__(self, weights: nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def _sharded_s(size: int, ranks: int) -> tuple[float, float]:
    """What FSDP2 adds to a layer with so many bytes of weights: by a gather, and by a scatter of their gradients.

    Little is computed with the weights, once in layers as they are and once in layers that FSDP2 shards. Forward is
    longer by a gather; backward by another one and a scatter. So hooks, copies between single tensors and messages,
    allocations and the next layer's gather beside this one's backward are part of both, and the accumulation of
    gradients that only whole layers need is not counted twice.
    """
    plain, sharded = _stack(size), _stack(size)
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    passes = [(_passes_s(plain), _passes_s(sharded)) for _ in range(SHARDED_REPEATS)][1:]
    forward_s, backward_s = (
        statistics.median(after[i] - before[i] for before, after in passes) / SHARDED_LAYERS for i in (0, 1)
    )
    return max(forward_s, LEAST_S), max(backward_s - forward_s, LEAST_S)


def _stack(size: int) -> nn.Sequential:
    width = max(1, int((size / 4 / PARTS) ** 0.5))
    scale = width**-0.5
    weights = [[nn.Parameter(torch.randn(width, width) * scale) for _ in range(PARTS)] for _ in range(SHARDED_LAYERS)]
    return nn.Sequential(*(_Products(nn.ParameterList(same)) for same in weights))


def _passes_s(stack: nn.Module) -> tuple[float, float]:
    """Wall seconds of a forward and a backward pass that all ranks begin together."""
    width = next(stack.parameters()).shape[-1]
    x = torch.randn(SHARDED_ROWS, width, requires_grad=True)
    dist.barrier()
    start = time.perf_counter()
    out = stack(x)
    middle = time.perf_counter()
    torch.autograd.backward(out, torch.ones_like(out))
    return middle - start, time.perf_counter() - middle


def _wall(run: Callable[[], object], repeats: int = 11) -> float:
    m, n, k = BURST
    x, w, swept = torch.randn(m, k), torch.randn(n, k), torch.zeros(SWEPT)
    samples = []
    dist.barrier()
    for _ in range(repeats):
        torch.matmul(x, w.t())
        swept.add_(1.0)
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])


MAX_DEVICES = 8
CALIBRATION = 8  # raise when the calibration or the keys of hardware files change, so that old files are measured again
LIMIT_S = 300.0
WARM = "primus_search.measure.layer_bench:warm"
RAMPS = (0.0, *(4.0**i for i in range(5, 13)))  # bytes at half speed that a fit tries: none, 1 KiB to 16 MiB
MIN_MOVE_S = 1e-6  # what the cost of an empty collective may at most hide of a full one
GROUPED_FACTORS = ("factor", "backward_factor", "fp8_factor", "fp8_backward_factor")
# AdamW in FP32 without masters: gradient twice, weight in and out with the moments (cost/parts/optimizer.py).
OPTIMIZER_BYTES = 26.0


class CalibrationError(PrimusSearchError):
    """The host could not be measured; says why."""


def devices_of_host() -> tuple[int, int]:
    """Devices of this machine as a node, and threads each of them runs."""
    cores = available_cores()
    count = min(cores, MAX_DEVICES)
    return count, cores // count


def host_file(*, again: bool = False) -> Path:
    """The hardware file of this machine; measured when there is none yet for this processor, memory and torch, or
    when it is to be measured again."""
    identity = {"cpu": cpu_name(), "memory": _memory_bytes(), "torch": torch.__version__, "calibration": CALIBRATION}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    path = cache_folder() / f"host-{digest}.yaml"
    if again or not path.exists():
        source = f"measured on {cpu_name()}, torch {torch.__version__}, {datetime.datetime.now(datetime.UTC).date()}"
        figures, count = measure_host()
        table = path.with_suffix(".csv")
        write_whole(table, to_csv(rows_of(figures, count, source)))
        write_whole(path, to_yaml(fit(figures, count), source=source, tables=table.name))
    return path


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def measure_host() -> tuple[dict[str, Any], int]:
    """What every device of this machine measures while all of them do, and how many they are."""
    count, threads = devices_of_host()
    job = RankJob(function=f"{__name__}:calibrate_rank", payload={}, limit_s=LIMIT_S)
    (outcomes,) = run_jobs([job], ranks=count, threads=threads, warm=WARM)
    failure = failure_of(outcomes)
    if failure is not None:
        raise CalibrationError(f"this machine could not be measured: {failure.verdict.value}: {failure.cause}")
    return mean_of([outcome.value for outcome in outcomes]), count


def fit(figures: dict[str, Any], count: int) -> tuple[Accelerator, Network]:
    """The laws of one of `count` devices and of the links between them, and the measured calls as tables."""
    kernels, links = tables_of(rows_of(figures, count, "measured here"), "host")
    accelerator, network = accelerator_of(figures, _memory_bytes() / count), network_of(figures["links"], count)
    return replace(accelerator, tables=kernels), replace(network, tables=links)


def rows_of(figures: dict[str, Any], count: int, source: str) -> list[dict[str, str]]:
    """The figures of `calibrate_rank` as rows of a measurement CSV; messages in two-byte elements."""
    rows: list[dict[str, Any]] = []
    for (m, n, k), t in zip(GEMMS, figures["gemm_s"], strict=True):
        shape = {"kind": "gemm", "m": m, "n": n, "k": k}
        rows.append(shape | {"op": "fwd", "value": 2.0 * m * n * k / t["forward"]})
        rows.append(shape | {"op": "bwd", "value": 4.0 * m * n * k / (t["input_grad"] + t["weight_grad"])})
    for (batch, heads, seq, dim), t in zip(ATTENTION, figures["attention_s"], strict=True):
        shape = {"kind": "attention", "batch": batch, "heads": heads, "seq": seq, "head_dim": dim, "causal": "true"}
        flops = 2.0 * batch * heads * seq * seq * dim
        rows.append(shape | {"op": "fwd_torch_sdpa", "value": flops / t["forward"]})
        rows.append(shape | {"op": "bwd_torch_sdpa", "value": BACKWARD_FLOPS * flops / t["backward"]})
    for row in rows:
        row |= {"unit": "TFLOP/s", "value": row["value"] / TERA}
    for op, seconds in figures["links"].items():
        for size, duration in zip(MESSAGES, seconds, strict=True):
            message = size / 4.0 * COUNTED_BYTES
            rows.append({"kind": "collective", "op": op, "message_bytes": message, "num_gpus": count, "unit": "us"})
            rows[-1] |= {"value": duration * 1e6}
    common = {"gpu": "host", "dtype": "fp32", "source": source}
    return [{key: str(value) for key, value in (common | row).items()} for row in rows]


def mean_of(parts: list[Any]) -> Any:
    """The element-wise mean of equal trees of numbers: what a rank takes when all of them work."""
    if isinstance(parts[0], dict):
        return {key: mean_of([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], list):
        return [mean_of(list(column)) for column in zip(*parts, strict=True)]
    return float(np.mean(parts))


def accelerator_of(f: dict[str, Any], memory_bytes: float) -> Accelerator:
    """The laws of one device from the figures of `calibrate_rank`."""
    peak = max(2.0 * m * n * k / t["forward"] for (m, n, k), t in zip(GEMMS, f["gemm_s"], strict=True))
    rate, launch_s = rates(STREAMS, f, OPTIMIZER_BYTES), f["small_kernel_s"]
    bandwidth = max(rate.values())
    base = Accelerator(
        name="host", vendor="host", arch="host", num_compute_units=1,
        bf16_peak_flops_per_s=peak, fp8_peak_flops_per_s=0.0, fp4_peak_flops_per_s=0.0,
        hbm_bytes=memory_bytes, hbm_bytes_per_s=bandwidth, sustained_over_burst=1.0,
        gemm=_fit_gemm(f, peak), attention=_fit_attention(f, peak), memory=memory_law(rate, bandwidth, launch_s),
        grouped_gemm=GroupedGemmLaw(**dict.fromkeys(GROUPED_FACTORS, 1.0), gradient_depth_overhead=0.0),
        launch=LaunchLaw(stream_s=launch_s, graph_s=launch_s),
        footprint=Footprint(context_bytes=f["baseline_bytes"], communicator_bytes=0.0),
    )  # fmt: skip
    # The rate of grouped products against the law's dense ones of the same size.
    groups, rows, k, n = EXPERTS
    dense_s = groups * float(gemm_s(base, rows, n, k, gemm_pass=GemmPass.FORWARD))
    return replace(base, grouped_gemm=replace(base.grouped_gemm, factor=dense_s / f["experts_s"]["forward"]))


def _fit_gemm(f: dict[str, Any], peak: float) -> GemmLaw:
    """Rate of a large product as the median over shapes, backward against forward likewise.

    A CPU's BLAS has no tiles and waves of a GPU's kind; those parameters stay 0.
    """
    flops = np.array([2.0 * m * n * k for m, n, k in GEMMS])
    seconds = np.array([[t["forward"], t["input_grad"], t["weight_grad"]] for t in f["gemm_s"]])
    rates = flops[:, None] / seconds
    forward, backward = float(np.median(rates[:, 0])), float(np.median(rates[:, 1:]))
    found = {"bf16_efficiency": forward / peak, "latency_s": f["small_kernel_s"]}
    found |= dict.fromkeys(("backward_factor", "fp8_backward_factor"), backward / forward)
    others = [field.name for field in fields(GemmLaw) if field.default is MISSING]
    return GemmLaw(**dict.fromkeys(others, 0.0) | found)


def _fit_attention(f: dict[str, Any], peak: float) -> AttentionLaw:
    """Rates at the longest sequence, and the ramp that explains the shortest."""
    pairs = [b * h * s * s / 2.0 * 4.0 * d for b, h, s, d in ATTENTION]
    forward = [flops / t["forward"] for flops, t in zip(pairs, f["attention_s"], strict=True)]
    backward = [2.5 * flops / t["backward"] for flops, t in zip(pairs, f["attention_s"], strict=True)]
    short, long = ATTENTION[0][2] / 2.0, ATTENTION[-1][2] / 2.0
    # rate(s) = r s / (s + s0) at both lengths, solved for s0 and r
    ratio = min(forward[0] / forward[-1], 0.999)
    ramp = max((1.0 - ratio) / (ratio / short - 1.0 / long), 0.0) if ratio / short > 1.0 / long else 0.0
    scale = (long + ramp) / long / peak
    kernel = AttentionKernel(
        forward_efficiency=forward[-1] * scale, backward_efficiency=backward[-1] * scale, latent_backward_factor=1.0
    )
    return AttentionLaw(
        softmax_dims=0.0, ramp_tokens=ramp, causal_tokens=0.0, latency_s=f["small_kernel_s"], kernels={"sdpa": kernel}
    )


def network_of(links: dict[str, list[float]], count: int) -> Network:
    """Rates of the collectives, how they grow with the message, the cost of an empty one, in two-byte elements."""
    if not links:
        return _network(count, dict.fromkeys(("ring", "all_to_all", "send"), 1e9), 1e-6, 0.0)
    wires = {"all_reduce": 2.0 * (count - 1) / count, "all_gather": (count - 1) / count}
    wires |= {"all_to_all": (count - 1) / count, "send": 1.0}
    latency_s = float(np.median([seconds[0] for seconds in links.values()]))
    sizes = np.array(MESSAGES[1:]) / 4.0 * COUNTED_BYTES
    moving = {name: np.maximum(np.array(links[name][1:]) - latency_s, MIN_MOVE_S) for name in wires}
    bytes_ = {name: wires[name] * sizes for name in wires}
    half_speed = min(RAMPS, key=lambda ramp: sum(_ramp_error(bytes_[n], moving[n], ramp)[1] for n in wires))
    rate = {name: _ramp_error(bytes_[name], moving[name], half_speed)[0] for name in wires}
    rate["ring"] = float(np.sqrt(rate["all_reduce"] * rate["all_gather"]))
    found = {name: rate[name] for name in ("ring", "all_to_all", "send")}
    return _network(count, found, latency_s, half_speed)


def _ramp_error(wire_bytes: np.ndarray, seconds: np.ndarray, half_speed_bytes: float) -> tuple[float, float]:
    """The rate that explains what moved best, with that ramp, and the squared logarithmic error that is left."""
    logs = np.log((wire_bytes + np.sqrt(half_speed_bytes * wire_bytes)) / seconds)
    return float(np.exp(logs.mean())), float(((logs - logs.mean()) ** 2).sum())


def _network(count: int, rates: dict[str, float], latency_s: float, half_speed_bytes: float) -> Network:
    """One switch between the devices; the same line stands for a NIC, which a host has none of."""
    line = max(rates.values())
    nothing = ("link_hop_latency_s", "pair_loss", "in_network_efficiency", "nic_half_speed_bytes", "scale_loss")
    whole = ("nic_efficiency", "nic_all_to_all_efficiency", "nic_dispatch_efficiency")
    latencies = ("link_latency_s", "nic_latency_s", "nic_hop_latency_s", "pod_latency_s")
    exchange = rates["all_to_all"] / line
    same: dict[str, Any] = dict.fromkeys(nothing, 0.0) | dict.fromkeys(whole, 1.0) | dict.fromkeys(latencies, latency_s)
    same |= dict.fromkeys(("link_bytes_per_s", "nic_bytes_per_s", "pod_bytes_per_s"), line)
    return Network(
        gpus_per_node=count, domain_size=count, pod_size=count, nics_per_node=1, topology="switch",
        link_half_speed_bytes=half_speed_bytes, ring_efficiency=rates["ring"] / line,
        all_to_all_efficiency=exchange, dispatch_efficiency=exchange, p2p_efficiency=rates["send"] / line,
        **same,
    )  # fmt: skip


# --- writing ------------------------------------------------------------------------------------------------------


def to_yaml(parts: tuple[Accelerator, Network], *, source: str, tables: str = "") -> str:
    """A hardware file, every number with its unit in its key and the source; `tables` names the CSV beside it."""
    accelerator, network = parts
    head = {"name": accelerator.name, "vendor": accelerator.vendor, "default_stack": "host"}
    head |= {"tables": tables} if tables else {}
    sections = {"accelerator": _section(accelerator, source), "network": _section(network, source)}
    return written(head | sections)


def _section(record: Any, source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(record):
        value = record.__getattribute__(field.name)
        if isinstance(value, dict):
            found[field.name] = {name: _section(item, source) for name, item in value.items()}
        elif field.name not in NOT_NUMBERS and is_dataclass(value):
            found[field.name] = _section(value, source)
        elif field.name not in NOT_NUMBERS:
            key, number = (field.name, value) if isinstance(value, str | int) else in_readable_unit(field.name, value)
            found[key] = {"value": number, "source": source}
    return found


NOT_NUMBERS = ("name", "vendor", "tables")  # fields that stand at the top of a hardware file, or in tables beside it
