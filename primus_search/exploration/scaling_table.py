"""Scaling table: the best candidate of each cluster of a search, with days and cost of a token budget.

How much of a cluster's time trains: what checkpoints, failures and restarts take over a long run.

    checkpoint_s = bytes / (nodes * checkpoint_bytes_per_s)          bytes: weights, master weights and both moments
    interval_s   = sqrt(2 checkpoint_s mtbf_s / nodes)               Young 1974, Daly 2006
    lost         = checkpoint_s / interval_s                         writing
                 + interval_s / 2 * nodes / mtbf_s                   work since the last checkpoint, done again
                 + restart_s * nodes / mtbf_s                        finding the fault, restart, first step
    goodput      = 1 - lost
    spare_nodes  = least s with P[Poisson(nodes * repair_s / mtbf_s) <= s] >= 0.99       nodes in repair at one time

Spare nodes take no time from the job; they add to its GPU hours and cost.

Valid: first order, while checkpoint_s << interval_s << mtbf_s / nodes; failures independent, one node each, synchronous
checkpoints. A zero switches its term off: no failures without an MTBF, free checkpoints without a rate.
"""

import math
from dataclasses import asdict, dataclass

from primus_search.base.units import HOURS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from primus_search.exploration.result import SearchResult
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Reliability
from primus_search.values.machine.state_formats import state_bytes

COVERED = 0.99
"""Share of the time in which a failed node finds a spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Share of the time that trains, and what takes the rest.

    checkpoint_interval_s   seconds of training between two checkpoints; infinite without failures
    checkpoint_share, redone_share, restart_share   of the time: writing, work done again, finding the fault and restart
    spare_nodes             held beside the job's nodes
    """

    checkpoint_interval_s: float
    checkpoint_share: float
    redone_share: float
    restart_share: float
    spare_nodes: int = 0

    @property
    def share(self) -> float:
        """Share of the time that trains; 0 where failures come faster than restarts."""
        return max(1.0 - self.checkpoint_share - self.redone_share - self.restart_share, 0.0)


def goodput(reliability: Reliability, nodes: int, checkpoint_bytes: float) -> Goodput:
    """The goodput of a job on that many nodes."""
    rate = nodes * reliability.checkpoint_bytes_per_s
    writing_s = checkpoint_bytes / rate if rate > 0.0 else 0.0
    mtbf_s = reliability.node_mtbf_hours * SECONDS_PER_HOUR / nodes
    if mtbf_s <= 0.0:
        return Goodput(checkpoint_interval_s=math.inf, checkpoint_share=0.0, redone_share=0.0, restart_share=0.0)
    interval_s = math.sqrt(2.0 * writing_s * mtbf_s)
    return Goodput(
        checkpoint_interval_s=interval_s,
        checkpoint_share=writing_s / interval_s if interval_s else 0.0,
        redone_share=interval_s / 2.0 / mtbf_s,
        restart_share=reliability.restart_minutes * SECONDS_PER_MINUTE / mtbf_s,
        spare_nodes=_spares(reliability.node_repair_hours * SECONDS_PER_HOUR / mtbf_s),
    )


def _spares(mean: float) -> int:
    """Nodes that at `COVERED` of all times are at least as many as are in repair, of which there are `mean` on average.

    Failures are independent and repair begins at once, so the number in repair is Poisson distributed whatever the
    distribution of repair times (M/G/infinity queue).
    """
    if mean <= 0.0:
        return 0
    from scipy.stats import poisson

    return int(poisson.ppf(COVERED, mean))


def checkpoint_bytes(job: Job, one: Candidates) -> float:
    """Bytes of one checkpoint of one candidate: every weight, master weight and moment once."""
    formats = ("weight_bytes", "master_weight_bytes", "moment_bytes", "moment_bytes")
    per_parameter = sum(float(state_bytes(job.stack, name, one.state_format)[0]) for name in formats)
    return job.model.total_params * per_parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One line of a scaling table: the best candidate of one cluster.

    tokens_per_s, tokens_per_s_per_gpu   expected, as rows are ranked
    efficiency     tokens/s/GPU over that of the smallest cluster of the ladder
    goodput        share of the time that trains (`Goodput`), checkpoint_share, redone_share, restart_share the rest
    days, gpu_hours, cost_USD   for the token budget at that goodput; hours and cost include spare nodes; 0 without a
                                budget or a price
    """

    labels: tuple[tuple[str, int | float | str], ...]
    nodes: int
    world: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    efficiency: float
    goodput: float
    checkpoint_bytes: float
    checkpoint_interval_s: float
    checkpoint_share: float
    redone_share: float
    restart_share: float
    spare_nodes: int
    days: float
    gpu_hours: float
    cost_USD: float  # noqa: N815 - USD is the unit


def ladder(result: SearchResult, token_budget: float = 0.0) -> tuple[Rung, ...]:
    """The scaling table of a search over several clusters, smallest first; clusters where nothing fits are left out."""
    found = sorted((c for c in result.clusters if len(c.ranking)), key=lambda c: c.choice.cluster.world)
    base = found[0].best_tokens_per_s_per_gpu if found else math.nan
    rungs = []
    for one in found:
        world, per_gpu = one.choice.cluster.world, one.best_tokens_per_s_per_gpu
        size = checkpoint_bytes(one.ranking.job, one.ranking.candidates.take(slice(0, 1)))
        nodes = one.choice.cluster.num_nodes
        found_goodput = goodput(one.choice.reliability, nodes, size)
        share = found_goodput.share
        hours = token_budget / (per_gpu * world * share) / SECONDS_PER_HOUR if share else math.inf
        gpu_hours = hours * world * (1.0 + found_goodput.spare_nodes / nodes)
        rungs.append(
            Rung(
                labels=one.choice.labels,
                nodes=nodes,
                world=world,
                tokens_per_s=per_gpu * world,
                tokens_per_s_per_gpu=per_gpu,
                efficiency=per_gpu / base,
                goodput=share,
                checkpoint_bytes=size,
                **asdict(found_goodput),
                days=hours / HOURS_PER_DAY,
                gpu_hours=gpu_hours,
                cost_USD=gpu_hours * one.choice.price_per_gpu_hour_USD,
            )
        )
    return tuple(rungs)
