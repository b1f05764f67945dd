"""What of a projection rests on measured ranges and what is extrapolated, part by part.

A part is calibrated where the sizes this candidate asks of it lie among the sizes measured on this device, or within a
factor of two of them (`ranges`): kernels by shape and precision, collectives by ranks and nodes, memory by peak, the
stack by device, model family, precision, GPUs and sequence, the regime by whether a run had it. Of GEMMs `ENOUGH` of
the FLOPs have to. Everything else is extrapolated: the same law beyond its measurements, or the numbers of a sibling
device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.base.units import GB
from primus_search.cost.confidence.fit import graph_spread
from primus_search.cost.confidence.regimes import regimes_of
from primus_search.cost.laws.measured_correction import RECIPES
from primus_search.cost.parts.embedding_and_head import head_operations, mtp_operations
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.mixer_operations import attention_family, unmeasured_mixers
from primus_search.cost.parts.operations import GroupedLinear, LinearOp
from primus_search.values.candidates import Candidates, Fp8
from primus_search.values.job import Job
from primus_search.values.machine.kernel_tables import GROUPED
from primus_search.values.machine.ranges import CAPACITY, Range, Ranges

ENOUGH = 0.9
"""Share of a part's FLOPs that has to lie inside measured ranges for the part to count as calibrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One part of a projection; `why` names the range it rests on, or what lies outside of which."""

    part: str
    is_calibrated: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Sizes that one law is evaluated at, how much they weigh, and what they are called."""

    kind: str
    sizes: tuple[float, ...]
    names: tuple[str, ...]
    weight: float = 1.0


def coverage(job: Job, one: Candidates, memory_bytes: float, ranges: Ranges) -> tuple[Covered, ...]:
    """The parts of the projection of a table of one candidate, in the order of a reader's questions."""
    cluster = job.cluster
    device = ranges.get(cluster.accelerator.name, {})
    name = cluster.accelerator.name

    def judged(part: str, wanted: Sequence[_Asked]) -> list[Covered]:
        return [_judge(part, wanted, device.get, name)] if wanted else []

    peak = _Asked(kind=f"memory/{job.model.family}", sizes=(memory_bytes / GB,), names=("GB",))
    dense, experts = _products(job, one)
    found = judged("GEMM", dense)
    found += judged("attention", _attention(job, one))
    found += judged("mixers", _mixers(job))
    found += judged("grouped GEMM", experts)
    found += judged("collectives", _collectives(job, one))
    found += judged("memory", [peak])
    if graph_spread(job, one)[0]:
        found.append(Covered(part="memory of the graph", is_calibrated=False, why="one published pair of runs"))
    found += judged("regime", [_Asked(kind=regimes_of(job, one)[0], sizes=(), names=())])
    found.append(_stack(job, one, ranges))
    return tuple(_overridden(part, cluster.overridden) for part in found)


KERNELS = ("GEMM", "attention", "mixers", "grouped GEMM")
RESTS_ON = {CAPACITY: ("memory",), "accelerator": (*KERNELS, "stack"), "network": ("collectives", "stack"),
            "stack": ("stack",)}  # fmt: skip
"""Parts of a projection that rest on a number, or on the numbers of a record."""


def _overridden(part: Covered, paths: Sequence[str]) -> Covered:
    """A part as extrapolated where it rests on a number that a user gave in place of a measured one."""
    given = [path for path in paths if part.part in RESTS_ON.get(path, RESTS_ON[path.split(".")[0]])]
    if not given:
        return part
    return Covered(part=part.part, is_calibrated=False, why=f"{', '.join(given)} overridden: no measurement of it")


def _judge(part: str, wanted: Sequence[_Asked], range_of: Callable[[str], Range | None], device: str) -> Covered:
    """Whether enough of the sizes lies inside; else the heaviest that does not, and why."""
    inside, total, worst = 0.0, 0.0, ("", -1.0)
    points = 0
    for one in wanted:
        known = range_of(one.kind)
        beyond = None if known is None else known.outside(one.sizes)
        total += one.weight
        if known is not None and beyond is None:
            inside += one.weight
            points = max(points, known.points)
        elif one.weight > worst[1]:
            worst = (_reason(one, known, beyond, device), one.weight)
    if inside >= ENOUGH * total:
        return Covered(part=part, is_calibrated=True, why=f"{points} points of {device}")
    return Covered(part=part, is_calibrated=False, why=worst[0])


def _reason(wanted: _Asked, known: Range | None, beyond: int | None, device: str) -> str:
    if known is None or beyond is None:
        return f"no {_spoken(wanted.kind)} measured on {device}"
    low, high = known.low[beyond], known.high[beyond]
    return f"{_number(wanted.sizes[beyond])} {wanted.names[beyond]}, measured {_number(low)} to {_number(high)}"


def _spoken(kind: str) -> str:
    law, _, which = kind.partition("/")
    if law == "regime":
        family, _, how = which.partition("/")
        return f"{'MoE' if family == 'moe' else family} run with {how}"
    words = {"gemm": "GEMM", GROUPED: "grouped GEMM", "memory": "peak memory"}.get(law, law)
    if law == "mixer":
        return which
    if law in ("collectives", "dispatch"):
        return f"{words} {'across nodes' if which == 'across' else 'inside a node'}"
    recipe = {"bf16": "BF16", "hybrid": "FP8", "moe": "MoE"}.get(which, which)
    return f"{recipe} {words}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.3g}"


# --- what a candidate asks for ---------------------------------------------------------------------------------------


def _products(job: Job, one: Candidates) -> tuple[list[_Asked], list[_Asked]]:
    """Dense products and those of experts: of one layer of each kind, weighted by the layers there are, of the head and
    of MTP."""
    model = job.model
    weighted = [(model.layers.count(kind), o) for kind in model.kinds for o in layer_operations(job, kind, one)]
    weighted += [(1, o) for o in (*head_operations(job, one), *mtp_operations(job, one))]
    dense, experts = list[_Asked](), list[_Asked]()
    for layers, o in weighted:
        if isinstance(o, LinearOp):
            law, first, rows, groups, found = "gemm", o.m, "rows", 1.0, dense
        elif isinstance(o, GroupedLinear):
            law, first, rows, groups, found = GROUPED, o.rows, "rows per expert", number_of(o.groups), experts
        else:
            continue
        m, n, k = map(number_of, (first, o.n, o.k))
        if m * n * k > 0.0:
            names, weight = (rows, "columns", "deep"), layers * groups * m * n * k
            found.append(_Asked(kind=f"{law}/{recipe_of(o)}", sizes=(m, n, k), names=names, weight=weight))
    return dense, experts


def _mixers(job: Job) -> list[_Asked]:
    """Mixers whose kernels no table has, weighted by their layers; streams and embeddings of every layer likewise."""
    model = job.model
    every = [("hyper-connections", model.hyper_streams), ("per-layer embeddings", model.per_layer_embedding)]
    found = [(name, model.num_layers) for name, has in every if has]
    found += [(k.mixer.name, model.layers.count(k)) for k in unmeasured_mixers(model) if k.mixer is not None]
    return [_Asked(kind=f"mixer/{name}", sizes=(), names=(), weight=float(count)) for name, count in found]


def _attention(job: Job, one: Candidates) -> list[_Asked]:
    kind = f"attention/{attention_family(job.accelerator, job.stack, job.model)}"
    sizes = (job.workload.seq_length / number_of(one.cp), float(job.model.qk_head_dim))
    return [_Asked(kind=kind, sizes=sizes, names=("queries", "per head"))]


def _collectives(job: Job, one: Candidates) -> list[_Asked]:
    """Every group of ranks that exchanges data, by its ranks inside a domain or the nodes it spans."""
    cluster = job.cluster
    d = job.degrees(one)
    tp, cp, ep = int(one.tp[0]), int(one.cp[0]), int(one.ep[0])
    replicas = int(d.dp[0]) * cp
    groups = [("collectives", tp, 1), ("collectives", cp, tp), ("collectives", replicas, tp)]
    if job.model.is_moe:
        groups.append(("dispatch" if bool(one.has_fused_dispatch[0]) else "collectives", ep, int(one.etp[0])))
    found = []
    for law, size, stride in groups:
        if size > 1:
            nodes = -(-size * stride // cluster.network.gpus_per_node)
            is_inside = size * stride <= cluster.network.domain_size
            where, count, name = ("inside", size, "ranks") if is_inside else ("across", nodes, "nodes")
            found.append(_Asked(kind=f"{law}/{where}", sizes=(float(count),), names=(name,)))
    return found


def _stack(job: Job, one: Candidates, ranges: Ranges) -> Covered:
    """Whether the stack was fitted to such runs: on this device, of this family and precision, as many GPUs."""
    model, cluster = job.model, job.cluster
    stack, device = cluster.stack.name, cluster.accelerator.name
    is_low = int(one.fp8[0]) != Fp8.NONE
    kinds = ranges.get(stack, {})
    known = kinds.get(f"{device}/{model.family}/{'low' if is_low else 'bf16'}")
    what = f"{'MoE' if model.is_moe else model.family} runs on {device}"
    if known is None:
        is_near = f"{device}/{model.family}/{'bf16' if is_low else 'low'}" in kinds
        precision = (" in low precision" if is_low else " in BF16") if is_near else ""
        return Covered(part="stack", is_calibrated=False, why=f"{stack} was never fitted to {what}{precision}")
    sizes = (float(cluster.world), float(job.workload.seq_length))
    beyond = known.outside(sizes)
    if beyond is None:
        return Covered(part="stack", is_calibrated=True, why=f"{stack} fitted to {known.points} {what}")
    wanted = _Asked(kind="", sizes=sizes, names=("GPUs", "tokens per sequence"))
    return Covered(part="stack", is_calibrated=False, why=_reason(wanted, known, beyond, device))


def number_of(value: object) -> float:
    """A column of one row, or a scalar, as a number."""
    return float(np.ravel(np.asarray(value, np.float64))[0])


def recipe_of(product: LinearOp | GroupedLinear) -> str:
    """How tables and ranges name the precision of a product of one row."""
    return RECIPES[Fp8(int(number_of(product.precision)))]
