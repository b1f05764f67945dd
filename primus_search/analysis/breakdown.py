"""One candidate under the magnifying glass: virtual stages, traffic of the busiest rank, when every pass runs.

The same pieces that `Projector` sums for tables are laid out here for a single row, so that a report can show what a
step is made of. Exposed seconds of the traffic table add up to the communication parts of `Step`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.operations import Part, Pass, tallied
from primus_search.cost.pipeline import BLOCKING, FAR_S, NEAR_S, PASS_S, far_hops, hop_facts
from primus_search.cost.projection import Projection
from primus_search.cost.replicas import dealt_of, params_per_rank, tied_gradient_s
from primus_search.cost.stage import piece_counts, pieces
from primus_search.cost.traffic.comm_table import Comm
from primus_search.cost.traffic.data_parallel import data_parallel
from primus_search.cost.traffic.layer_traffic import add_beside, add_inside, end_traffic_s, sharded_ends
from primus_search.schedule import Costs, Timeline, order_for, ranks_of, simulate
from primus_search.values.candidates import Candidates, Floats, Ints, Recompute, RecomputeMethod
from primus_search.values.job import Job
from primus_search.values.machine.state_formats import state_bytes
from primus_search.values.model import LayerKind

TRAFFIC_PARTS = ("tensor_comm", "context_comm", "expert_comm", "shard_comm", "host_copies")
"""Parts of `Step` whose seconds are the exposed traffic of layers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """Seconds of one micro-batch in every virtual stage, host time of passes and blocking sends not included.

    rank, layers     pipeline rank and decoder layers of each virtual stage
    hop_s            (stages - 1,) to the next stage; 0 inside a rank     held_share  of a hop that blocks the sender
    pass_s           host time per pass of a pipeline
    """

    rank: Ints
    layers: Floats
    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    recompute_s: Floats
    counts: Floats
    hop_s: Floats
    held_share: float
    pass_s: float

    @property
    def work_s(self) -> Floats:
        """Seconds of one micro-batch, all passes."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One kind of traffic of the busiest pipeline rank over a whole step.

    part           of `Step` that holds what is exposed; hops between stages are inside the bubble
    message_bytes  of one collective          count  collectives per step
    seconds        of all of them             exposed_s  what the critical path sees
    """

    operation: str
    part: str
    message_bytes: float
    count: float
    seconds: float
    exposed_s: float

    @classmethod
    def of(cls, part: str, comm: Comm, times: float) -> Self:
        """So many times the traffic of a table of one candidate."""
        return cls(
            operation=comm.operation, part=part, message_bytes=float(comm.message_bytes[0]),
            count=float(comm.count[0]) * times, seconds=float(comm.seconds[0]) * times,
            exposed_s=float(comm.exposed_s[0]) * times,
        )  # fmt: skip

    def plus(self, other: "Sent") -> "Sent":
        """Both, of one kind; messages are as large as those of the other."""
        count, seconds = self.count + other.count, self.seconds + other.seconds
        return replace(other, count=count, seconds=seconds, exposed_s=self.exposed_s + other.exposed_s)

    @property
    def hidden_s(self) -> float:
        """Seconds that compute hides."""
        return self.seconds - self.exposed_s


def stages_of(job: Job, one: Candidates) -> Stages:
    """The virtual stages of a table of one candidate."""
    order = one.order(0)
    dealt = dealt_of(job.model, one, 0)
    is_block = one.recompute_method[0] == RecomputeMethod.BLOCK and one.recompute[0] & Recompute.FULL
    counts, recomputed = piece_counts(dealt, int(one.recompute_num_layers[0]) if is_block else 0)
    p = pieces(job, one)
    by_pass = counts @ p.pass_s[:, :, 0]
    ranks = ranks_of(order)[: order.pp * order.vpp]
    hops = hop_facts(job, one)[0]
    crosses = ranks[:-1] != ranks[1:]
    return Stages(
        rank=ranks,
        layers=dealt.layers,
        forward_s=by_pass[:, Pass.FORWARD],
        input_grad_s=by_pass[:, Pass.INPUT_GRAD],
        weight_grad_s=by_pass[:, Pass.WEIGHT_GRAD],
        recompute_s=recomputed @ p.recompute_s[:, 0],
        counts=counts,
        hop_s=crosses * np.where(far_hops(job.cluster, order), hops[FAR_S], hops[NEAR_S]),
        held_share=float(hops[BLOCKING]),
        pass_s=float(hops[PASS_S]) if order.pp > 1 else 0.0,
    )


def timeline(job: Job, s: Stages, one: Candidates, microbatches: int) -> Timeline | None:
    """When every pass of the step runs, at true stage costs; None without a pipeline."""
    if one.pp[0] == 1:
        return None
    return simulate(order_for(one.order(0, job.launcher), microbatches), pipeline_costs(s))


def pipeline_costs(s: Stages) -> Costs:
    """Seconds of every virtual stage and hop as a pipeline order meets them: host time and blocking sends included."""
    held = s.held_share * s.hop_s
    return Costs(
        forward=s.forward_s + s.pass_s + np.append(held, 0.0),
        backward=s.input_grad_s + s.recompute_s + s.pass_s + np.append(0.0, held),
        weight=s.weight_grad_s,
        comm=s.hop_s - held,
    )


def busiest_rank(s: Stages, one: Candidates) -> int:
    """The pipeline rank with most work, whose parts `Step` shows."""
    ranks, held = ranks_of(one.order(0)), s.held_share * s.hop_s
    work = s.work_s + 2.0 * s.pass_s + np.append(held, 0.0) + np.append(0.0, held)
    return int(np.bincount(ranks, weights=np.tile(work, len(ranks) // len(work))).argmax())


def traffic(job: Job, one: Candidates, s: Stages, projection: Projection) -> list[Sent]:
    """Every kind of traffic of the busiest rank over one step, in the order of `Step`; kinds of layers share a row."""
    m, rank = int(projection.microbatches[0]), busiest_rank(s, one)
    merged: dict[tuple[str, str], Sent] = {}
    for sent in (*_pieces(job, one, s, rank, m), *_hops(job, one, s, rank, m), *_gradients(job, one, s, projection)):
        key = sent.operation, sent.part
        merged[key] = merged[key].plus(sent) if key in merged else sent
    return list(merged.values())


def _pieces(job: Job, one: Candidates, s: Stages, rank: int, microbatches: int) -> Iterator[Sent]:
    """Traffic of the layers and ends of a rank."""
    model, ranks = job.model, ranks_of(one.order(0))
    copies = len(ranks) // len(s.counts)
    mine = np.tile(s.counts, (copies, 1))[ranks == rank].sum(axis=0) / copies
    for kind, layers in zip(model.kinds, mine, strict=False):
        if layers:
            yield from (Sent.of(part, comm, layers * microbatches) for part, comm in _layer(kind, job, one))
    num_ends = float(mine[len(model.kinds) :].sum())
    seconds = float(end_traffic_s(job, one)[0]) * 2.0 * num_ends * microbatches
    message = float(Share.of(job, one).tokens[0]) * model.hidden * BF16_BYTES
    if seconds:
        yield Sent(
            operation="embedding and head", part="tensor_comm", message_bytes=message,
            count=2 * num_ends * microbatches, seconds=seconds, exposed_s=seconds,
        )  # fmt: skip
    for end, number in zip(sharded_ends(job, one), mine[len(model.kinds) :], strict=False):
        part = Part.SHARD_COMM.name.lower()
        sent = (comm for _, comm in end.passes if comm.seconds[0] > 0)
        yield from (Sent.of(part, comm, float(number) * microbatches) for comm in sent)


def _layer(kind: LayerKind, job: Job, one: Candidates) -> list[tuple[str, Comm]]:
    """Traffic of one layer and micro-batch."""
    work = tallied(job, layer_operations(job, kind, one), one)
    found = [*add_inside(work, kind, job, one), *add_beside(work, kind, job, one)]
    both = [(part.name.lower(), comm) for part, traffic in found for _, comm in traffic.passes]
    return [(part, comm) for part, comm in both if comm.seconds[0] > 0]


def _hops(job: Job, one: Candidates, s: Stages, rank: int, microbatches: int) -> Iterator[Sent]:
    """Hops that leave the rank forward, and their gradients backward; what they expose is part of the bubble."""
    ranks = ranks_of(one.order(0))[: len(s.counts)]
    leaves = (ranks[:-1] == rank) | (ranks[1:] == rank)
    seconds = float(s.hop_s[leaves].sum()) * microbatches
    message = float(Share.of(job, one).split_tokens[0]) * job.model.hidden * BF16_BYTES
    count = float(np.count_nonzero(s.hop_s[leaves])) * microbatches
    if seconds:
        yield Sent(
            operation="pipeline hops", part="bubble", message_bytes=message, count=count, seconds=seconds,
            exposed_s=s.held_share * seconds,
        )  # fmt: skip


def _gradients(job: Job, one: Candidates, s: Stages, projection: Projection) -> Iterator[Sent]:
    """Gradients and gathered weights; their exposed seconds share out what `Step.gradient_comm` says."""
    dense, expert = params_per_rank(job, one)
    mine = ranks_of(one.order(0))[: len(s.counts)] == busiest_rank(s, one)
    window_b = (s.input_grad_s + s.weight_grad_s + s.recompute_s)[mine].sum()
    found = data_parallel(
        job,
        one,
        job.degrees(one),
        dense_params=dense,
        expert_params=expert,
        backward_s=np.array([window_b]),
        forward_s=np.array([s.forward_s[mine].sum()]),
    )
    rows = [found.dense_gradients, found.expert_gradients, found.dense_weights, found.expert_weights]
    total, tied = sum(float(row.exposed_s[0]) for row in rows), float(tied_gradient_s(job, one)[0])
    scale = (float(projection.step.gradient_comm[0]) - tied) / total if total > 0 else 0.0
    element_bytes = float(state_bytes(job.stack, "gradient_bytes", one.state_format)[0])
    message = job.model.head_params / int(one.tp[0]) * element_bytes
    if tied:
        yield Sent(
            operation="all-reduce of the tied embedding", part="gradient_comm", message_bytes=message, count=1.0,
            seconds=tied, exposed_s=tied,
        )  # fmt: skip
    for sent in (Sent.of("gradient_comm", row, 1.0) for row in rows if row.seconds[0] > 0):
        yield replace(sent, exposed_s=sent.exposed_s * scale)
