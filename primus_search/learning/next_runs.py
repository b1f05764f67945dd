"""Which configurations of a search to run next: those whose measurement lowers the expected regret most per GPU hour.

Rates of the ranking's rows are sampled from the posterior over the software (hypotheses, their numbers, an error of its
own for every row). The regret of a choice is what it lies below the best row, over the best row, averaged over samples.
A run of one row re-weights the samples by how well they agree with what it may measure, which itself is sampled; the
choice after it is the best one under those weights. Rows are picked one by one, each given those before it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from primus_search.base.cores import one_blas_thread
from primus_search.cost.confidence.uncertainty import MODEL_ERROR, RUN_NOISE
from primus_search.learning.inference.hypotheses import NOT_SOFTWARE, NUMBERS, shipped_hypotheses
from primus_search.learning.inference.posterior import Posterior, update
from primus_search.learning.inference.projected_runs import Lines, Reference, evidence_of, lines_of
from primus_search.learning.inference.shared_errors import PlacedRows, rows_of
from primus_search.learning.site_stack import suggested_by
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.measured_run import MeasuredRun

SAMPLES = 512
OUTCOMES = 64
"""Measurements that are tried of every configuration, samples of the posterior themselves."""

MOST_ROWS = 64
"""Rows of the ranking, from the first, that may be best or be run."""

ITERATIONS = 20
"""Iterations of a trial run, the first ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One configuration to run. `row` counts from 0; `regret`: expected after this and the picks before it."""

    row: int
    gpu_hours: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsToMake:
    """What to run next: the expected regret of the choice now, and the picks."""

    regret: float
    picks: tuple[Pick, ...]


NEVER = 1e-9
"""Tokens/s/GPU of a row that is known not to run."""


def sampled_rates(
    posterior: Posterior,
    lines: Sequence[Lines],
    seed: int,
    known: Mapping[int, float] | None = None,
    rows: PlacedRows | None = None,
) -> Floats:
    """Samples of tokens/s/GPU of every row, (samples, rows). known: rates of rows that were run, 0 where one cannot.

    rows: where they lie; what runs said of their model, device and neighbours counts. What is not known of the model
    on the device is the same in every row.
    """
    rng = np.random.default_rng(seed)
    members, left = (None, None) if rows is None else posterior.shares(rows)
    found = []
    counts = rng.multinomial(SAMPLES, posterior.weights)
    for i, count in enumerate(counts.tolist()):
        if count:
            line = lines[i]
            means = np.concatenate([posterior.moved[i], posterior.shared[i]])
            moved = rng.multivariate_normal(means, posterior.joint[i], count, "raise", 1e-6)
            errors = 0.0 if members is None else moved[:, len(NUMBERS) :] @ members.T
            found.append(line.rates + posterior.shift + moved[:, : len(NUMBERS)] @ line.slopes.T + errors)
    logs = np.concatenate(found)
    if rows is not None and left is not None:
        logs += rng.multivariate_normal(np.zeros(len(left)), left, len(logs), "ignore")
    spread = MODEL_ERROR * (1.0 if rows is None else rows.spreads)
    rates = np.asarray(np.exp(logs + spread * rng.standard_normal(logs.shape)))
    for row, rate in (known or {}).items():
        rates[:, row] = max(rate, NEVER) * np.exp(RUN_NOISE * rng.standard_normal(len(rates)))
    return rates


def regret(rates: Floats, weights: Floats) -> float:
    """Expected regret of the row with the best mean under weights of the samples."""
    chosen = int(np.argmax(weights @ rates))
    return float(weights @ (1.0 - rates[:, chosen] / rates.max(axis=1)) / weights.sum())


def advise(
    rates: Floats, gpu_hours: Floats, *, count: int, budget_gpu_hours: float = np.inf, closed: Collection[int] = ()
) -> RunsToMake:
    """Up to `count` rows to run inside a budget, given samples of all rows' rates and what a run of each costs.

    closed: rows that are not run again.
    """
    plain = np.full(len(rates), 1.0 / len(rates))
    now = regret(rates, plain)
    outcomes = np.linspace(0, len(rates) - 1, min(OUTCOMES, len(rates))).astype(np.int64)
    logs = np.log(rates)
    agreement = np.zeros((len(outcomes), len(rates)))
    picks: list[Pick] = []
    spent, last = 0.0, now
    while len(picks) < count:
        open_rows = [r for r in range(rates.shape[1]) if r not in closed and r not in [p.row for p in picks]]
        open_rows = [r for r in open_rows if spent + gpu_hours[r] <= budget_gpu_hours]
        if not open_rows:
            break
        after = {r: _regret_after(rates, agreement + _agreement(logs[:, r], outcomes)) for r in open_rows}
        best = max(open_rows, key=lambda r: ((last - after[r]) / gpu_hours[r], -r))
        agreement += _agreement(logs[:, best], outcomes)
        spent, last = spent + float(gpu_hours[best]), after[best]
        picks.append(Pick(row=best, gpu_hours=float(gpu_hours[best]), regret=last))
    return RunsToMake(regret=now, picks=tuple(picks))


def _agreement(logs: Floats, outcomes: np.ndarray) -> Floats:
    """Log-likelihood of every sample for every outcome of one row's run: (outcomes, samples)."""
    return np.asarray(-0.5 * ((logs[outcomes][:, None] - logs[None, :]) / RUN_NOISE) ** 2)


def _regret_after(rates: Floats, agreement: Floats) -> float:
    """Expected regret once the outcome is known, averaged over outcomes."""
    weights = np.exp(agreement - agreement.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    chosen = np.argmax(weights @ rates, axis=1)
    lost = 1.0 - rates[:, chosen].T / rates.max(axis=1)
    return float((weights * lost).sum(axis=1).mean())


def next_runs(
    job: Job,
    table: Candidates,
    step_s: Floats,
    runs: Sequence[MeasuredRun],
    *,
    framework: str | None = None,
    known: Mapping[int, float],
    count: int = 3,
    budget_gpu_hours: float = np.inf,
    seed: int = 0,
) -> RunsToMake:
    """Rows of a ranking to run next on a job, given the runs that are known; `step_s`: seconds of a step per row.

    known: rates of rows that are runs themselves, 0 where one cannot run; they are not run again.
    """
    archs = {job.accelerator.arch, *(run.cluster.accelerator.arch for run in runs)}
    only = job.stack if job.stack.name in NOT_SOFTWARE else None
    pointed, models = suggested_by(runs), {job.model, *(run.model for run in runs)}
    hypotheses = shipped_hypotheses(framework, archs=archs, only=only, suggested=pointed, models=models)
    posterior = update(evidence_of(hypotheses, runs)).leading()
    every = [Reference(job=job, table=table)]
    lines = lines_of([h.stack for h in posterior.hypotheses], every)
    hours = job.cluster.world * ITERATIONS * np.asarray(step_s) / 3600.0
    with one_blas_thread():
        rates = sampled_rates(posterior, lines, seed, known, rows_of(every))
        return advise(rates, hours, count=count, budget_gpu_hours=budget_gpu_hours, closed=known)
