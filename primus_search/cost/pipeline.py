"""Seconds from the first forward to the last backward of a step: the schedule's exact makespan at true stage costs."""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Candidates, Floats
from primus_search.cluster import Cluster
from primus_search.cost.collectives import Group, send_s
from primus_search.cost.layer import BF16_BYTES, shapes
from primus_search.cost.stage import StageSeconds
from primus_search.model import Model
from primus_search.schedule import algorithm, order_for
from primus_search.schedule.batch import CostColumns, simulate_many
from primus_search.schedule.table import rank_of_stage
from primus_search.stack import Stack
from primus_search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineTimes:
    """Makespan and, per pipeline rank, the time it computes: (rows,) and (rows, ranks); which rank holds each stage."""

    makespan: Floats
    busy: Floats
    rank_of_stage: np.ndarray


def pipeline_times(
    s: StageSeconds, hops_s: Floats, *, schedule: str, pp: int, vpp: int, microbatches: int, stack: Stack
) -> PipelineTimes:
    """Exact times for rows that share schedule, stages and micro-batches. `hops_s` (rows, stages - 1).

    The stack says which share of a hop also keeps the sending rank busy (frameworks that send before they go on), and
    what every pass costs besides its kernels (Python, posting and waiting for sends).
    Without a pipeline, micro-batches run one after the other. Raises `ScheduleError` where the schedule does not
    allow these numbers.
    """
    if pp == 1:
        busy = microbatches * (s.forward + s.backward + s.weight_grad).sum(axis=1)
        return PipelineTimes(
            makespan=busy, busy=busy[:, None], rank_of_stage=np.zeros(s.forward.shape[1], dtype=np.int64)
        )
    table = order_for(schedule, pp, microbatches, vpp)
    ranks = table.rank_of_stage[: table.model_stages]
    held_share = np.reshape(np.asarray(stack.pipeline_blocking, np.float64), (-1, 1))
    pass_s = np.reshape(np.asarray(stack.pass_s, np.float64), (-1, 1))
    held = held_share * hops_s * (ranks[:-1] != ranks[1:])
    none = np.zeros((len(held), 1))
    forward = s.forward + pass_s + np.concatenate([held, none], axis=1)
    backward = s.backward + pass_s + np.concatenate([none, held], axis=1)
    costs = CostColumns(forward=forward, backward=backward, weight=s.weight_grad, comm=(1.0 - held_share) * hops_s)
    times = simulate_many(table, costs)
    return PipelineTimes(makespan=times.makespan, busy=times.busy, rank_of_stage=table.rank_of_stage)


def makespan_bound(s: StageSeconds, hops_s: Floats, *, schedule: str, pp: int, vpp: int, microbatches: int) -> Floats:
    """A makespan no order of this placement can beat, per row, without simulating.

    Rank r cannot start before the forwards of the stages before its first one, then has all its work to do; where
    backward is one pass, the gradient still has to travel through those stages after the rank's last pass.
    """
    work = s.forward + s.backward + s.weight_grad
    if pp == 1:
        total: Floats = microbatches * work.sum(axis=1)
        return total
    found = algorithm(schedule)
    ranks = rank_of_stage(found.placement, pp, vpp)
    if len(ranks) > s.forward.shape[1]:
        return microbatches * work.sum(axis=1) / pp
    best = np.zeros(len(s.forward))
    for rank in range(pp):
        first = int(np.flatnonzero(ranks == rank)[0])
        travel = hops_s[:, :first].sum(axis=1)
        before = s.forward[:, :first].sum(axis=1) + travel
        after = 0.0 if found.splits_weight else (s.backward + s.weight_grad)[:, :first].sum(axis=1) + travel
        best = np.maximum(best, before + microbatches * work[:, ranks == rank].sum(axis=1) + after)
    return best


def hop_seconds(
    model: Model, cluster: Cluster, workload: Workload, c: Candidates, schedule: str, pp: int, vpp: int
) -> Floats:
    """(rows, stages - 1) seconds from the end of a pass to the earliest start of the next stage, for rows of one pp.

    Pipeline ranks are the outermost: stage ranks r and r + 1 are tp * cp * dp devices apart, so a hop leaves the fast
    domain where its two ends lie in different ones. Every hop carries one activation (or its gradient).
    """
    s = shapes(model, workload, cluster.stack, c)
    message = s.split_tokens * model.hidden * BF16_BYTES
    ranks = rank_of_stage(algorithm(schedule).placement, pp, vpp)[: pp * vpp].astype(np.int64)
    stride = cluster.world // pp
    domain = ranks * stride // cluster.network.domain_size
    is_far = domain[:-1] != domain[1:]
    near = send_s(cluster.network, message, Group(2, 1))
    far = send_s(cluster.network, message, Group(2, cluster.network.domain_size))
    crosses = ranks[:-1] != ranks[1:]
    hops = crosses * np.where(is_far, far[:, None], near[:, None])
    efficiency = np.broadcast_to(np.asarray(cluster.stack.network_efficiency, np.float64), (len(c),))
    seconds: Floats = hops / efficiency[:, None]
    return seconds
