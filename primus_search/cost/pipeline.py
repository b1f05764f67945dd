"""Seconds from the first forward to the last backward of a step: the schedule's exact makespan at true stage costs."""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Candidates, Floats, degrees
from primus_search.cluster import Cluster
from primus_search.cost.collectives import Group, send_s
from primus_search.cost.layer import BF16_BYTES, shapes
from primus_search.cost.stage import StageSeconds
from primus_search.model import Model
from primus_search.schedule import algorithm, order_for
from primus_search.schedule.batch import CostColumns, simulate_many
from primus_search.schedule.table import rank_of_stage
from primus_search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineTimes:
    """Makespan and, per pipeline rank, the time it computes: (rows,) and (rows, ranks); which rank holds each stage."""

    makespan: Floats
    busy: Floats
    rank_of_stage: np.ndarray


def pipeline_times(
    s: StageSeconds, hop_s: Floats, *, schedule: str, pp: int, vpp: int, microbatches: int
) -> PipelineTimes:
    """Exact times for rows that share schedule, stages and micro-batches. `hop_s` (rows,) from rank to rank.

    Without a pipeline, micro-batches run one after the other. Raises `ScheduleError` where the schedule does not
    allow these numbers.
    """
    if pp == 1:
        busy = microbatches * (s.forward + s.backward + s.weight_grad).sum(axis=1)
        return PipelineTimes(
            makespan=busy, busy=busy[:, None], rank_of_stage=np.zeros(s.forward.shape[1], dtype=np.int64)
        )
    table = order_for(schedule, pp, microbatches, vpp)
    times = simulate_many(
        table, CostColumns(forward=s.forward, backward=s.backward, weight=s.weight_grad, comm=hop_s)
    )
    return PipelineTimes(makespan=times.makespan, busy=times.busy, rank_of_stage=table.rank_of_stage)


def makespan_bound(s: StageSeconds, hop_s: Floats, *, schedule: str, pp: int, vpp: int, microbatches: int) -> Floats:
    """A makespan no order of this placement can beat, per row, without simulating.

    Rank r cannot start before the forwards of the stages before its first one, then has all its work to do; where
    backward is one pass, the gradient still has to travel through those stages after the rank's last pass.
    """
    work = s.forward + s.backward + s.weight_grad
    if pp == 1:
        return microbatches * work.sum(axis=1)
    found = algorithm(schedule)
    ranks = rank_of_stage(found.placement, pp, vpp)
    if len(ranks) > s.forward.shape[1]:
        busy = microbatches * work.sum(axis=1) / pp
        return busy
    best = np.zeros(len(s.forward))
    for rank in range(pp):
        first = int(np.flatnonzero(ranks == rank)[0])
        before = s.forward[:, :first].sum(axis=1) + first * hop_s
        after = 0.0
        if not found.splits_weight:
            after = (s.backward + s.weight_grad)[:, :first].sum(axis=1) + first * hop_s
        best = np.maximum(best, before + microbatches * work[:, ranks == rank].sum(axis=1) + after)
    return best


def hop_seconds(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Floats:
    """Seconds from the end of a pass to the earliest start of the next stage: one activation over the slowest hop."""
    s = shapes(model, workload, cluster.stack, c)
    d = degrees(c, world=cluster.world, global_batch_size=workload.global_batch_size)
    group = Group(c.pp, c.tp * c.cp * d.dp)
    seconds = send_s(cluster.network, s.split_tokens * model.hidden * BF16_BYTES, group)
    return seconds / cluster.stack.network_efficiency * (1.0 - cluster.stack.pipeline_overlap)
