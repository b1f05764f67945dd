"""What rows are ranked by: the rate to expect on the cluster, where unmeasured gains of switches count in part.

The fastest of millions of projections is the one whose error is likely upward. What runs on the device never had on
together is where the model is least sure, so of two nearly equal rows the better evidenced one is first
(docs/cost/uncertainty.md).

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
from dataclasses import dataclass

import numpy as np

from primus_search.base.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from primus_search.cost.confidence.switch_evidence import SwitchEvidence, family, unmeasured
from primus_search.cost.confidence.uncertainty import most_ratio, run_ratio, site_ratio
from primus_search.cost.project import Projector
from primus_search.cost.state_formats import state_bytes
from primus_search.declare.evidence_files import load_switches
from primus_search.exploration.exhaustive.shortlist import ShortlistRows, without_noise
from primus_search.space import Enumerator
from primus_search.values.candidates import Candidates, Floats, joined
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Reliability
from primus_search.values.machine.stack import Stack

RATE = "expected_tokens_per_s_per_gpu"
"""Column that rows are compared and sorted by. `tokens_per_s_per_gpu` beside it is the projection, where every switch
gives what the cost model says; the ends of the 90 % interval are those of the expected rate."""


def expected_shares(projector: Projector, table: Candidates, projected_s: Floats) -> Floats:
    """Expected over projected rate of every row, at most `most_ratio`; `projected_s`: seconds of projected steps."""
    job = projector.job
    evidence = _evidence(job.stack)
    measured_part = evidence.measured_part(job.accelerator.name, job.model, table)
    rows = np.flatnonzero(unmeasured(table, measured_part))
    shares: Floats = site_ratio(job.cluster, job.model) * run_ratio(job, table)
    if len(rows):
        step_s = without_noise(projector.step(measured_part.take(rows)).total)
        shares[rows] *= evidence.expected_share(job.model, without_noise(projected_s[rows]), step_s)
    return shares


def expected_step_s(projector: Projector, enumerator: Enumerator, rows: ShortlistRows) -> Floats:
    """Seconds of the expected step of candidates, without the noise of sums; at least those of the projected one.

    The largest shift of the whole site, which changes no order on one cluster, is left out.
    """
    shares = expected_shares(projector, enumerator.rows(rows.indices), rows.step_s)
    return without_noise(rows.step_s / (shares / most_ratio(projector.job.cluster, projector.job.model)))


def _evidence(stack: Stack) -> SwitchEvidence:
    """The shipped evidence, and the runs that a learned stack rests on: what a site ran counts in full there."""
    if not stack.runs_file:
        return load_switches()
    from primus_search.declare.record_table import own_runs_of  # imports take 1 % of a first ranking

    own: dict[str, dict[str, list[Candidates]]] = {}
    for run in own_runs_of(stack):
        if run.has_rate and not run.ran_out:
            by_family = own.setdefault(run.cluster.accelerator.name, {})
            by_family.setdefault(family(run.model), []).append(run.candidates)
    sets = {device: {name: joined(rows) for name, rows in found.items()} for device, found in own.items()}
    return load_switches().beside(sets) if sets else load_switches()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmeasuredGain:
    """What of a row's projection rests on switches that no run of its model on its device had on together.

    switches   `name=word` of those that are set to the words of `instead` in its measured part
    gain       of the rate over that of its measured part, projected; 0 where they slow it down
    expected   of the rate over that of its measured part, expected
    """

    switches: tuple[str, ...]
    instead: tuple[str, ...]
    gain: float
    expected: float
    device: str
    model: str

    def __str__(self) -> str:
        return (
            f"no measured run of {self.model} on {self.device} had {', '.join(self.switches)} with its other switches; "
            f"a gain of {self.gain:.0%} over {', '.join(self.instead)} is projected, {self.expected:.0%} counted"
        )


def unmeasured_gain(projector: Projector, one: Candidates) -> UnmeasuredGain | None:
    """Of a table of one candidate; None where its switches were measured together."""
    job = projector.job
    evidence = _evidence(job.stack)
    part = evidence.measured_part(job.accelerator.name, job.model, one)
    row, instead = one.row(0), part.row(0)
    changed = [name for name in row if row[name] != instead[name]]
    if not changed:
        return None
    step_s, part_s = projector.step(one).total, projector.step(part).total
    gain = max(float(part_s[0] / step_s[0]), 1.0)
    share = float(evidence.expected_share(job.model, step_s, part_s)[0])
    return UnmeasuredGain(
        switches=tuple(f"{name}={row[name]}" for name in changed),
        instead=tuple(f"{name}={instead[name]}" for name in changed),
        gain=gain - 1.0,
        expected=gain * share - 1.0,
        device=job.accelerator.name,
        model=job.model.name,
    )


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
