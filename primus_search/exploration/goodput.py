"""How much of a cluster's time trains: what checkpoints, failures and restarts take over a long run.

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
from dataclasses import dataclass

from primus_search.base.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Reliability
from primus_search.values.machine.state_formats import master_bytes, state_bytes

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
    formats = ("weight_bytes", "moment_bytes", "moment_bytes")
    per_parameter = sum(state_bytes(job.stack, name, one.state_format)[0] for name in formats)
    per_parameter += master_bytes(job.stack, one.state_format, one.fp8)[0]
    return job.model.trained_params * float(per_parameter)
