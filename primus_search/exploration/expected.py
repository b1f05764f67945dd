"""What rows are ranked by: the rate to expect on the cluster, where unmeasured gains of switches count in part.

The fastest of millions of projections is the one whose error is likely upward. What runs on the device never had on
together is where the model is least sure, so of two nearly equal rows the better evidenced one is first
(docs/cost/uncertainty.md).
"""

from dataclasses import dataclass

import numpy as np

from primus_search.cost.confidence.regimes import had_regime
from primus_search.cost.confidence.switch_evidence import unmeasured
from primus_search.cost.confidence.uncertainty import most_ratio, run_ratio, site_ratio
from primus_search.cost.project import Projector
from primus_search.exploration.exhaustive.shortlist import ShortlistRows, without_noise
from primus_search.files.evidence_files import load_ranges
from primus_search.space import Enumerator
from primus_search.values.candidates import Bools, Candidates, Floats, Ints
from primus_search.values.job import Job
from primus_search.values.machine.stack import MeasuredSwitches, Stack

RATE = "expected_tokens_per_s_per_gpu"
"""Column that rows are compared and sorted by. `tokens_per_s_per_gpu` beside it is the projection, where every switch
gives what the cost model says; the ends of the 90 % interval are those of the expected rate."""


def expected_shares(projector: Projector, table: Candidates, projected_s: Floats) -> Floats:
    """Expected over projected rate of every row, at most `most_ratio`; `projected_s`: seconds of projected steps."""
    job = projector.job
    evidence = _measured_switches(job.stack)
    counted, measured_part = _measured_part(job, evidence, table)
    rows = np.flatnonzero(unmeasured(table, measured_part))
    shares: Floats = site_ratio(job.cluster, job.model) * run_ratio(job, table)
    if len(rows):
        own_s = without_noise(projected_s[rows])
        counted_s = np.maximum(own_s, _step_s(projector, table, counted, rows, own_s))
        step_s = without_noise(projector.step(measured_part.take(rows)).total)
        shares[rows] *= own_s / counted_s * evidence.expected_share(job.model, counted_s, step_s)
    return shares


def is_measured(job: Job, table: Candidates) -> Bools:
    """Rows whose regime a run on the device had, and whose switches one of the model had on together (or none on)."""
    return had_regime(job, table, load_ranges()) & ~unmeasured(
        table, _measured_part(job, _measured_switches(job.stack), table)[1]
    )


def _measured_part(job: Job, evidence: MeasuredSwitches, table: Candidates) -> tuple[Candidates, Candidates]:
    """The rows as far as their gains count, and their measured part.

    Over another transport than the device's own, a fused dispatch or an overlap of exchange between nodes that no run
    had there gains nothing.
    """
    device, transport = job.accelerator.name, job.network.transport
    if transport:
        known = evidence.measured_part(job.cluster.fabric, job.model, table).columns()
        is_near, own = table.ep * table.etp <= job.network.domain_size, table.columns()
        table = table.with_columns({name: own[name] & (is_near | known[name]) for name in OF_THE_TRANSPORT})
    return table, evidence.measured_part(device, job.model, table)


OF_THE_TRANSPORT = ("deepep", "exchange_overlap")
"""Switches whose gain between nodes depends on what carries the exchange."""


def _step_s(projector: Projector, table: Candidates, counted: Candidates, rows: Ints, own_s: Floats) -> Floats:
    """Seconds of some rows as far as their gains count, own_s where that is the whole row."""
    own, other = table.columns(), counted.columns()
    differs = np.any([own[name][rows] != other[name][rows] for name in OF_THE_TRANSPORT], axis=0)
    found = own_s.copy()
    if differs.any():
        found[differs] = without_noise(projector.step(counted.take(rows[differs])).total)
    return found


def expected_step_s(projector: Projector, enumerator: Enumerator, rows: ShortlistRows) -> Floats:
    """Seconds of the expected step of candidates, without the noise of sums; at least those of the projected one.

    The largest shift of the whole site, which changes no order on one cluster, is left out.
    """
    shares = expected_shares(projector, enumerator.rows(rows.indices), rows.step_s)
    return without_noise(rows.step_s / (shares / most_ratio(projector.job.cluster, projector.job.model)))


def _measured_switches(stack: Stack) -> MeasuredSwitches:
    """What the stack carries: those of every space do. Others, built in Python, have the evidence in reach."""
    if stack.measured_switches is not None:
        return stack.measured_switches
    from primus_search.declare.record_table import measured_switches_of  # reads key tables, which no worker has

    return measured_switches_of(stack)


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
    evidence = _measured_switches(job.stack)
    counted, part = _measured_part(job, evidence, one)
    row, instead = one.row(0), part.row(0)
    changed = [name for name in row if row[name] != instead[name]]
    if not changed:
        return None
    step_s, part_s = projector.step(one).total, projector.step(part).total
    gain = max(float(part_s[0] / step_s[0]), 1.0)
    counted_s = np.maximum(step_s, _step_s(projector, one, counted, np.arange(1), step_s))
    share = float((step_s / counted_s * evidence.expected_share(job.model, counted_s, part_s))[0])
    return UnmeasuredGain(
        switches=tuple(f"{name}={row[name]}" for name in changed),
        instead=tuple(f"{name}={instead[name]}" for name in changed),
        gain=gain - 1.0,
        expected=gain * share - 1.0,
        device=job.cluster.fabric,
        model=job.model.name,
    )
