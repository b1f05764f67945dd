"""The second and third rung of evidence for memory: what torch and a device say of one layer, put to the candidate.

traced    activations of the candidate's layers (`trace`); buffers of FSDP2 stay as projected, which is what
          torch's own `fully_shard` holds (`tests/oracle/test_sharded_layers.py`)
measured  what a device's allocator did while one layer ran forward and backward, taken apart into

              resident          weights, their gradients, the layer's input: counted, the projection's own account
            + explained         activations and workspace of the same modules under a trace, one weight's new gradient
            + live excess       tensors kept beyond the trace: grows with activations, so it multiplies those of
                                the candidate, whatever its layers, micro-batches in flight and nodes
            + running excess    what kernels need while they run (BLAS workspaces, temporaries): once per device
            = allocated
            + slack             cached blocks: a share of what comes and goes
            = reserved
            + context           the driver's view less that: device context and loaded kernels, once per device

The point estimate has all of it but the slack, which the allocator gives back before it fails. The upper bound keeps
the slack's share of the candidate's own coming and going, and gives what was not measured (logits, collectives,
communicators) the usual error of projections. The probability of fitting takes the bound for what nine of ten such
errors stay below: a candidate FITS (`cost.confidence.fit`) where the upper bound does.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from primus_search.base.units import GB
from primus_search.cost.memory.activations import exchanges_heads, layer_activations
from primus_search.cost.memory.pipeline_moments import relief_of
from primus_search.cost.memory.share import Share
from primus_search.cost.projection import Memory
from primus_search.measure.modules.shard import COUNTED_BYTES, DtypeName, Shard
from primus_search.measure.trace_cache import traced_layer
from primus_search.measure.traced_layer import TracedLayer
from primus_search.values.candidates import Candidates, Recompute
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model

if TYPE_CHECKING:
    from primus_search.measure.device.timing import PieceMeasurement

FP32_BYTES = 4.0
FLASH = "flash2"  # any attention kernel that keeps no scores
NINE_OF_TEN = 1.2816  # deviations below which nine of ten normal errors lie, the probability of FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What a device held beyond what the model explains, of one layer kind or the worst of several.

    live_share     tensors kept for backward beyond the traced ones, over the traced ones
    running_bytes  beyond those while a layer runs
    slack_share    reserved and not allocated, over what came and went
    context_bytes  beyond what torch reserved, as the driver sees it
    """

    live_share: float
    running_bytes: float
    slack_share: float
    context_bytes: float


def dtype_of(cluster: Cluster) -> DtypeName:
    """The dtype layers train in: FP32 where the stack says that activations have four bytes."""
    return "float32" if cluster.stack.memory.element_bytes == FP32_BYTES else "bfloat16"


# --- traced -------------------------------------------------------------------------------------------------------


def activation_ratio(job: Job, c: Candidates, row: int) -> float:
    """Traced activation bytes of one candidate over projected ones, per layer, kinds weighted by their number.

    What a stack or a candidate does and the modules do not (`as_traced`) stays as projected: the trace is compared with
    the projection of what the modules do, and the difference is added to the projection of the candidate. Layers that
    are recomputed as a whole are weighted by their number.
    """
    model, cluster, workload = job.model, job.cluster, job.workload
    one = c.take(np.array([row]))
    s = Share(model, workload, cluster.stack, one, cluster.world)
    plain = s.replaced(offload=np.zeros_like(s.offload))
    scale = cluster.stack.memory.element_bytes / COUNTED_BYTES
    shard = Shard.of(c, row, workload, dtype_of(cluster)).as_kept_by(
        model,
        cluster.stack,
        has_fused_dispatch=bool(c.has_fused_dispatch[row]),
        exchanges_heads=bool(exchanges_heads(s)[0]),
        rows_over_mean=float(s.routed_rows[0] / (s.sent_rows[0] * s.etp[0])) if model.moe else 1.0,
    )
    whole = share_recomputed(model, one)
    modelled, difference = 0.0, 0.0
    for kind in model.kinds:
        layers = model.layers.count(kind)
        inputs = float(s.split_tokens[0]) * model.hidden * COUNTED_BYTES * scale
        kept, alike = (
            scale * float(layer_activations(model, stack, kind, of, workload.seq_length).kept[0])
            for stack, of in ((cluster.stack, s), (as_traced(cluster.stack), plain))
        )
        modelled += layers * (whole * inputs + (1.0 - whole) * kept)
        if whole > 0.0:
            of_whole = replace(shard, recompute=shard.recompute | Recompute.FULL)
            difference += layers * whole * (traced_layer(model, of_whole, kind).activation_bytes - inputs)
        if whole < 1.0:
            of_kept = replace(shard, recompute=shard.recompute & ~Recompute.FULL)
            difference += layers * (1.0 - whole) * (traced_layer(model, of_kept, kind).activation_bytes - alike)
    return 1.0 + difference / modelled


def share_recomputed(model: Model, one: Candidates) -> float:
    """Share of a candidate's layers that are recomputed as a whole."""
    if not int(one.recompute[0]) & Recompute.FULL:
        return 0.0
    relief = relief_of(one)
    chunks = int(one.pp[0] * one.vpp[0])
    return min(float(relief.again[0]) * chunks / len(model.layers), 1.0)


def as_traced(stack: Stack) -> Stack:
    """The stack as the traced modules behave, where they have not its habit: fused norms and activations, flash
    attention, no dropout, values of latent attention of their own size, one permuted copy where a dispatcher keeps
    several (`Shard.as_kept_by` has the habits that modules do take over).
    """
    memory = stack.memory
    return replace(
        stack,
        kernels=replace(
            stack.kernels, attention_kernel=FLASH, has_fused_norm=True, has_fused_activation=True, has_dropout=False
        ),
        memory=replace(
            memory,
            recomputes_norms=False,
            latent_kv_padding=False,
            expert_copies=min(memory.expert_copies, 1.0),
            deepep_expert_copies=min(memory.deepep_expert_copies, 1.0),
        ),
    )


# --- measured -----------------------------------------------------------------------------------------------------


def residual_of(measured: "PieceMeasurement", traced: TracedLayer) -> Residual:
    """What one layer's measurement holds beyond its trace; without peaks, what was kept for backward alone."""
    live_share = measured.memory_bytes / traced.activation_bytes - 1.0
    peaks = measured.peaks_bytes
    if not peaks:
        return Residual(live_share=live_share, running_bytes=0.0, slack_share=0.0, context_bytes=0.0)
    came = peaks["allocated"] - peaks["resident"]
    kept = peaks["modules"] * measured.memory_bytes
    return Residual(
        live_share=live_share,
        running_bytes=max(came - kept - traced.workspace_bytes - peaks["gradient"], 0.0),
        slack_share=(peaks["reserved"] - peaks["allocated"]) / came,
        context_bytes=max(peaks["driver"] - peaks["reserved"], 0.0),
    )


def residual(job: Job, c: Candidates, row: int, measurements: "Iterable[PieceMeasurement]") -> Residual | None:
    """The residual of one candidate's layers: kept tensors over all its layers, the worst kind for what runs.

    None where no allocator was asked (a CPU's does not say) or a kind is missing.
    """
    model = job.model
    shard = Shard.of(c, row, job.workload, dtype_of(job.cluster))
    held = {m.shape: m for m in measurements if m.kernel == "layer" and m.memory_bytes > 0}
    if not held:
        return None
    from primus_search.measure.layer_bench import TimedPiece  # loads torch

    found: list[Residual] = []
    extra, traced_bytes = 0.0, 0.0
    for kind in model.kinds:
        measured = held.get(TimedPiece(piece="layer", model=model, shard=shard, kind=kind).shape)
        if measured is None:
            return None
        traced, layers = traced_layer(model, shard, kind), model.layers.count(kind)
        found.append(residual_of(measured, traced))
        extra += layers * (measured.memory_bytes - traced.activation_bytes)
        traced_bytes += layers * traced.activation_bytes
    return Residual(
        live_share=extra / traced_bytes,
        running_bytes=max(one.running_bytes for one in found),
        slack_share=max(one.slack_share for one in found),
        context_bytes=max(one.context_bytes for one in found),
    )


def with_residual(memory: Memory, row: int, found: Residual, cluster: Cluster, room_bytes: float) -> Memory:
    """The point estimate: the memory of a table with what a device held of one row's layers.

    Cached blocks are a share of what comes and goes, and at most what is free: the allocator gives the rest back.
    """
    columns = {
        name: memory.__getattribute__(name).copy()
        for name in ("activations", "workspace", "context", "allocator_slack")
    }
    columns["activations"][row] *= 1.0 + found.live_share
    columns["workspace"][row] += found.running_bytes
    if found.context_bytes:
        columns["context"][row] += found.context_bytes - cluster.accelerator.footprint.context_bytes
    columns["allocator_slack"][row] = 0.0
    point = replace(memory, **columns)
    free = max(room_bytes - float(point.allocated[row] + point.context[row]), 0.0)
    cached = cached_bytes(point, row, found) if found.context_bytes else float(memory.allocator_slack[row])
    columns["allocator_slack"][row] = min(cached, free)
    return replace(memory, **columns)


def cached_bytes(memory: Memory, row: int, found: Residual) -> float:
    """Blocks the allocator keeps: the measured share of what is allocated and is no weight, gradient or moment."""
    static = memory.weights[row] + memory.gradients[row] + memory.optimizer[row]
    return found.slack_share * float(memory.allocated[row] - static)


def upper_bytes(memory: Memory, row: int, found: Residual, cluster: Cluster) -> float:
    """The upper bound of a point estimate (`with_residual`): cached blocks stay, what was not measured errs upwards.

    Formula: allocated + context + slack share x (allocated - weights, gradients, optimizer)
             + (logits + collectives + experts' buffers + communicators) (exp(1.28 spread) - 1)
    """
    allocated, context = float(memory.allocated[row]), float(memory.context[row])
    own = found.context_bytes or cluster.accelerator.footprint.context_bytes
    unseen = memory.logits[row] + memory.collective_buffers[row] + memory.expert_buffers[row] + max(context - own, 0.0)
    error = np.expm1(NINE_OF_TEN * cluster.accelerator.footprint.spread)
    return allocated + context + cached_bytes(memory, row, found) + float(unseen) * float(error)


def fit_probability_of(point_bytes: float, bound_bytes: float, room_bytes: float) -> float:
    """Probability that a measured candidate runs: 0.9 where its upper bound is all the room, 0.5 where its point is.

    Formula: Phi(1.28 ln(room / point) / ln(bound / point))
    """
    if bound_bytes <= point_bytes:
        return float(point_bytes <= room_bytes)
    deviations = NINE_OF_TEN * math.log(room_bytes / point_bytes) / math.log(bound_bytes / point_bytes)
    return NormalDist().cdf(deviations)


def account(verdict: str, point_bytes: float, bound_bytes: float, room_bytes: float, found: Residual) -> str:
    """One line on a measured candidate: verdict, point estimate, upper bound, and what the device showed."""
    return (
        f"memory {verdict}: needs {point_bytes / GB:.1f} GB, at most {bound_bytes / GB:.1f} of "
        f"{room_bytes / GB:.1f} (layers keep {found.live_share:+.1%} beyond their tensors, kernels "
        f"{found.running_bytes / GB:.2f} GB, cached {found.slack_share:.0%} of what comes and goes, "
        f"context {found.context_bytes / GB:.2f} GB)"
    )
