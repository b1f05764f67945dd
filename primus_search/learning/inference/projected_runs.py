"""What hypotheses about software project for runs and candidates: log-rates with their slopes, and log-peaks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from primus_search.cost.project import Projector
from primus_search.learning.inference import hypotheses as software
from primus_search.learning.inference.hypotheses import NUMBERS, Hypothesis
from primus_search.values.candidates import Candidates, Floats, Ints, joined
from primus_search.values.job import Job
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, overridden, own_settings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Candidates of one job on which hypotheses are compared; `habits`: what the run itself sets in any stack."""

    job: Job
    table: Candidates
    settings: tuple[tuple[str, object], ...] = ()

    def on(self, stack: Stack) -> Job:
        """The job with another stack, the run's own settings on top."""
        cluster = overridden(replace(self.job.cluster, stack=stack), dict(self.settings))
        return replace(self.job, cluster=cluster)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """Of one hypothesis: log-rates of rows at its centre (rows,), and their slopes (rows, numbers)."""

    rates: Floats
    slopes: Floats


def lines_of(stacks: Sequence[Stack], references: Sequence[Reference]) -> tuple[Lines, ...]:
    """Lines of every stack over the rows of all references; what differs in numbers alone is projected together."""
    together = _by_job(references)
    places = np.argsort(np.concatenate([places for _, places in together]), kind="stable")
    alike: dict[Stack, list[int]] = {}
    for i, stack in enumerate(stacks):
        alike.setdefault(software.without_numbers(stack), []).append(i)
    lines: dict[int, Lines] = {}
    for members in alike.values():
        jobs = [([one.on(stacks[i]) for i in members], one.table) for one, _ in together]
        found = [software.rates_and_slopes(own[0], [job.stack for job in own], table) for own, table in jobs]
        for place, parts in zip(members, zip(*found, strict=True), strict=True):
            rates, slopes = (np.concatenate(columns)[places] for columns in zip(*parts, strict=True))
            lines[place] = Lines(rates=rates, slopes=slopes)
    return tuple(lines[i] for i in range(len(stacks)))


def _by_job(references: Sequence[Reference]) -> list[tuple[Reference, Ints]]:
    """One reference per job with all rows on it, and the places of these rows among those of all references."""
    ends = np.cumsum([len(one.table) for one in references])
    found: list[tuple[Reference, list[Candidates], list[Ints]]] = []
    for one, end in zip(references, ends.tolist(), strict=True):
        places = np.arange(end - len(one.table), end)
        same = next((entry for entry in found if entry[0].settings == one.settings and entry[0].job == one.job), None)
        if same is None:
            found.append((one, [one.table], [places]))
        else:
            same[1].append(one.table)
            same[2].append(places)
    return [(replace(one, table=joined(tables)), np.concatenate(places)) for one, tables, places in found]


def log_rates(stack: Stack, references: Sequence[Reference]) -> Floats:
    """log(tokens/s/GPU) of the rows of all references on a stack."""
    return _logs(stack, references, lambda projector, table: projector.project(table).tokens_per_s_per_gpu)


def log_peaks(stack: Stack, references: Sequence[Reference]) -> Floats:
    """Logarithm of the bytes that the driver shows, of the rows of all references on a stack."""
    return _logs(stack, references, lambda projector, table: projector.memory(table).driver)


def _logs(stack: Stack, references: Sequence[Reference], figure: Callable[[Projector, Candidates], Floats]) -> Floats:
    found = np.empty(sum(len(one.table) for one in references))
    for one, places in _by_job(references):
        found[places] = figure(Projector(one.on(stack)), one.table)
    return np.log(found)


def reference_of(run: MeasuredRun) -> Reference:
    """A run's own configuration and habits."""
    return Reference(job=run.job, table=run.candidates, settings=tuple(own_settings(run).items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What every hypothesis projects for measured runs.

    lines   of each hypothesis, over all runs
    peaks   log(measured / projected) of the peaks on each hypothesis, NaN for a run without one: (hypotheses, runs)
    """

    hypotheses: tuple[Hypothesis, ...]
    runs: tuple[MeasuredRun, ...]
    lines: tuple[Lines, ...]
    peaks: Floats

    def take(self, places: Sequence[int]) -> "Evidence":
        """That of some of the runs."""
        rows = np.array(places, np.int64)
        return replace(
            self,
            runs=tuple(self.runs[i] for i in places),
            lines=tuple(Lines(rates=line.rates[rows], slopes=line.slopes[rows]) for line in self.lines),
            peaks=self.peaks[:, rows],
        )


def evidence_of(hypotheses: tuple[Hypothesis, ...], runs: Sequence[MeasuredRun]) -> Evidence:
    """Every run projected on every hypothesis."""
    empty = Lines(rates=np.zeros(0), slopes=np.zeros((0, len(NUMBERS))))
    references = [reference_of(run) for run in runs]
    return Evidence(
        hypotheses=hypotheses,
        runs=tuple(runs),
        lines=lines_of([h.stack for h in hypotheses], references) if runs else (empty,) * len(hypotheses),
        peaks=np.array([peak_errors(h.stack, runs) for h in hypotheses]).reshape(len(hypotheses), len(runs)),
    )


def peak_errors(stack: Stack, runs: Sequence[MeasuredRun]) -> Floats:
    """log(measured / projected) of the peak of every run, each counted as its log counts it; NaN where it has none."""
    errors = np.full(len(runs), np.nan)
    counted = [i for i, run in enumerate(runs) if run.measured.peak_bytes > 0.0]
    for one, places in _by_job([reference_of(runs[i]) for i in counted]):
        memory = Projector(one.on(stack)).memory(one.table)
        for row, place in enumerate(places.tolist()):
            measured = runs[counted[place]].measured
            errors[counted[place]] = np.log(measured.peak_bytes / memory.counted(measured.peak_kind)[row])
    return errors
