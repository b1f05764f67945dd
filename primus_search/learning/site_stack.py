"""A site's own stack: the one hypothesis that stands for the posterior, with the posterior's numbers and bands.

A search projects millions of candidates, so one stack stands for the mixture: the likeliest hypothesis with its
posterior numbers. What the runs leave of it is shared out again: that of a model on a device is in the middle of its
band, that of near configurations in `own_runs` (`cost.confidence.uncertainty.run_ratio`). Both count in the rate to
expect; widths of bands are the mixture's. Written are NAME.yaml, which any command takes as a stack, and
NAME.runs.parquet, the runs it rests on.

The two files of a site: `NAME.yaml`, its stack, and `NAME.runs.parquet`, the runs it rests on; and learning again.

`learn` with the same name adds runs to those of the file and fits all of them from the shipped stacks, so that the
order in which runs came does not matter.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.base.units import to_base, yaml_keys
from primus_search.cost.confidence.uncertainty import MEMORY, own_regime
from primus_search.declare.record_table import read_records, write_records
from primus_search.files.hardware_files import load_hardware, load_stack, site_of
from primus_search.files.learned_stacks import HEAD, RUNS_ENDING
from primus_search.files.search_path import FileKind, shipped
from primus_search.learning import posterior as mixtures
from primus_search.learning.hypotheses import (
    FRAMEWORK_STACKS,
    NOT_SOFTWARE,
    NUMBERS,
    Hypothesis,
    at,
    coordinates,
    shipped_hypotheses,
)
from primus_search.learning.logged_run import Readings, SaidBeside, measured_run
from primus_search.learning.logs import table
from primus_search.learning.posterior import Evidence, Mixture, Posterior, Reference, RunGroup
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Bools, Candidates, Floats, Recompute, degrees, joined
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import GROUP_OF, ErrorBand, OwnRun, Stack, number_of, with_numbers
from primus_search.values.measured_run import MeasuredRun
from primus_search.values.workload import Workload

MOST_DEVICES = 2
"""Kinds of devices of the runs on which usual jobs are compared."""

CONTRADICTED, MOST_WIDENED = 1.5, 3.0
"""What a posterior leaves of its own runs, over the error of a run, from which on it contradicts them; and the most
times that bands are widened then. Bands hold 93 instead of 90 % of the other runs of thirteen publishers after five
of their own, 2026-11-23."""

LOW, HIGH = 0.05, 0.95
"""Ends of the 90 % band."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteStack:
    """What was learned: the stack, the hypothesis it stands on, the posterior behind it, the runs.

    unexplained  root mean square of log(measured / projected) of the runs themselves; NaN without any
    doubt        that the runs are not of the stack that was named; empty where they may be
    """

    stack: Stack
    chosen: Hypothesis
    posterior: Posterior
    runs: tuple[MeasuredRun, ...]
    unexplained: float
    doubt: str = ""

    @property
    def warning(self) -> str:
        """Why the bands are wider than the posterior says, else why the named stack is doubted; empty where the stack
        explains its own runs."""
        if _widened(self.unexplained) == 1.0:
            return self.doubt
        return (
            f"the stack projects its own runs {np.expm1(self.unexplained):.0%} off: they contradict each other or what "
            f"their logs say, so bands are {_widened(self.unexplained):.1f} times as wide"
        )

    @property
    def leading(self) -> list[tuple[str, float]]:
        """The hypotheses that weigh most, with their probabilities."""
        order = np.argsort(-self.posterior.weights)[:5]
        return [(self.posterior.hypotheses[i].name, float(self.posterior.weights[i])) for i in order]


def learn_stack(
    name: str,
    runs: Sequence[MeasuredRun],
    *,
    framework: str | None = None,
    base: str | None = None,
    without: Sequence[str] = (),
    cluster: Cluster | None = None,
    seen: Evidence | None = None,
) -> SiteStack:
    """The stack of a site from its runs, possibly none.

    base: only this stack's habits are considered. without: stacks that take no part. cluster: whose devices the stack
    is for; that of the runs where None, so it is needed where there are no runs. seen: the runs on all hypotheses,
    where that is known already.
    """
    runs = sorted(runs, key=lambda run: run.id)
    clusters = [cluster] if cluster is not None else list({run.hardware: run.cluster for run in runs}.values())
    if not clusters:
        raise ValueError("without runs the cluster must be named")
    if seen is None:
        archs = {one.accelerator.arch for one in clusters}
        pointed, models = base or suggested_by(runs, without), {run.model for run in runs}
        hypotheses = shipped_hypotheses(framework, without, archs, suggested=pointed, models=models)
        seen = mixtures.evidence_of(hypotheses, runs)
    posterior = mixtures.update(seen)
    doubt = _doubt(posterior, base) if base is not None and runs else ""
    posterior = posterior if base is None else posterior.of_stack(base)
    varied = variant_habits(runs)
    habits = tuple((f"stack.{field}", value) for field, value in varied.items())
    everywhere = references(runs)
    everywhere += [replace(one, habits=habits) for each in clusters[:MOST_DEVICES] for one in usual(each)]
    posterior = posterior.leading()
    lines = mixtures.lines_of([h.stack for h in posterior.hypotheses], everywhere)
    rows = mixtures.rows_of(everywhere)
    groups = rows.groups
    rates, software = posterior.rates(lines, rows), posterior.of_software().rates(lines, rows)
    peaks = posterior.peaks(np.array([mixtures.log_peaks(h.stack, everywhere) for h in posterior.hypotheses]))
    likely = int(np.argmax(posterior.weights))
    chosen = posterior.hypotheses[likely].varied(varied)
    stack = _with_peaks(at(chosen.stack, coordinates(chosen.stack) + posterior.moved[likely]), runs)
    own_rates, own_peaks = mixtures.log_rates(stack, everywhere), mixtures.log_peaks(stack, everywhere)
    rated = {i: run for i, run in enumerate(runs) if run.has_rate and not run.ran_out}
    taught = [mixtures.group_of(run.job) for run in rated.values()]
    measured = np.log([run.tokens_per_s_per_gpu for run in rated.values()])
    shared = mixtures.shared_errors(list(rated.values()), measured - own_rates[list(rated)])
    unexplained = float(np.sqrt(np.mean(np.square(shared.left)))) if rated else float("nan")
    wide = _widened(unexplained)
    bands: dict[str, ErrorBand] = {}
    for kind, is_moe in (("dense", False), ("moe", True)):
        members = np.array([one.is_moe is is_moe for one in groups])
        count = sum(one.is_moe is is_moe for one in taught)
        bands[kind] = _around(1.0, _band(software, own_rates, members, count, wide))
    for group, error in zip(posterior.groups, shared.groups.tolist(), strict=True):
        found = _band(rates, own_rates, _of_group(groups, group), taught.count(group), wide)
        bands[own_regime(group.shape, group.device)] = _around(float(np.exp(error)), found)
    bands[MEMORY] = _band(peaks, own_peaks, np.ones(len(groups), np.bool_), len(posterior.peak_errors[likely]))
    own_runs = {
        run.id: OwnRun(regime=own_regime(group.shape, group.device), place=tuple(place), ratio=ratio)
        for run, group, place, ratio in zip(
            rated.values(), taught, shared.places.tolist(), np.exp(shared.own).tolist(), strict=True
        )
    }
    stack = replace(stack, name=name, errors=bands, own_runs=own_runs, is_assumed=False)
    return SiteStack(
        stack=stack, chosen=chosen, posterior=posterior, runs=tuple(runs), unexplained=unexplained, doubt=doubt
    )


def variant_habits(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """What the variants of all runs have otherwise than their stacks' files."""
    each = [run.cluster.stack.varied.items() for run in runs]
    return {field: value for field, value in (each[0] if each else ()) if all((field, value) in one for one in each)}


def _of_group(groups: Sequence[RunGroup], one: RunGroup) -> Bools:
    return np.array([group == one for group in groups])


DOUBTED = 0.05
"""Probability after the runs below which a stack that was named is doubted; it has most of it before them."""


def _doubt(posterior: Posterior, named: str) -> str:
    """What the runs say against a named stack, and which one they point to; empty where they do not."""
    probability = posterior.probability(named)
    if probability >= DOUBTED:
        return ""
    likely = posterior.hypotheses[int(np.argmax(posterior.weights))].stack.name
    return f"the runs are hardly of {named} (probability {probability:.1%}), more likely of software like {likely}"


def suggested_by(runs: Sequence[MeasuredRun], without: Sequence[str] = ()) -> str | None:
    """The stack that most records of runs without a named launcher point to, where it may take part."""
    named = Counter(run.cluster.stack.name for run in runs if run.framework is None)
    found = max(sorted(named), key=named.__getitem__, default=None)
    return found if found in set(shipped(FileKind.STACK)) - {*without, *NOT_SOFTWARE} else None


def _widened(unexplained: float) -> float:
    """How many times as wide bands are as the posterior says, by what it leaves of its own runs."""
    ratio = unexplained / mixtures.MODEL_ERROR
    return min(ratio, MOST_WIDENED) if ratio > CONTRADICTED else 1.0


def _band(mixture: Mixture, centre: Floats, rows: Bools, runs: int, wide: float = 1.0) -> ErrorBand:
    """Measured over projected: the mixture's quantiles over the stack's own figures, geometric means over rows.

    Over all rows where none of these is known.
    """
    rows = rows if rows.any() else ~rows
    low, high = (float((mixture.quantile(share) - centre)[rows].mean()) for share in (LOW, HIGH))
    extra = 0.5 * (wide - 1.0) * (high - low)
    return ErrorBand(low=float(np.exp(low - extra)), high=float(np.exp(high + extra)), runs=float(runs))


def _around(middle: float, found: ErrorBand) -> ErrorBand:
    """A band of the same width around another ratio."""
    half = math.sqrt(found.high / found.low)
    return replace(found, low=middle / half, high=middle * half)


def _with_peaks(stack: Stack, runs: Sequence[MeasuredRun]) -> Stack:
    """The stack with what measured peaks lie above its own: as fixed bytes, as slack of what comes and goes, or as both
    in halves, whichever leaves the peaks nearest.

    Peaks below the projection move the band alone: no part of the memory is known to be too large.
    """
    errors = mixtures.peak_errors(stack, runs)
    errors = errors[~np.isnan(errors)]
    factor, _ = mixtures.peak_factor(errors)
    stack = with_numbers(stack, {"peaks_seen": float(len(errors))})
    if factor <= 0.0:
        return stack
    peaks = [run.measured.peak_bytes for run in runs if run.measured.peak_bytes > 0.0]
    extra = float(np.mean(peaks)) * (1.0 - float(np.exp(-factor)))
    slack = _slack_of(stack, runs, factor)
    fixed, share = float(number_of(stack, "fixed_bytes")), float(number_of(stack, "activation_share"))
    tried = [
        with_numbers(stack, {"fixed_bytes": fixed + (1.0 - part) * extra, "activation_share": share + part * slack})
        for part in (SLACK_PARTS if slack > 0.0 else SLACK_PARTS[:1])
    ]
    left = [float(np.nansum((mixtures.peak_errors(one, runs) - (np.mean(errors) - factor)) ** 2)) for one in tried]
    return tried[int(np.argmin(left))]


SLACK_PARTS = (0.0, 0.5, 1.0)
"""Parts of missing memory that may be allocator slack; the rest is fixed."""

SLACK_STEP, MOST_SLACK = 0.1, 1.0
"""Step of the difference that says how peaks depend on the slack, and the largest slack that is learned."""


def _slack_of(stack: Stack, runs: Sequence[MeasuredRun], factor: float) -> float:
    """The slack that raises the runs' peaks by a factor (its logarithm) on average; 0 where no peak counts slack."""
    share = float(number_of(stack, "activation_share"))
    more = with_numbers(stack, {"activation_share": share + SLACK_STEP})
    slope = float(np.nanmean(mixtures.peak_errors(stack, runs) - mixtures.peak_errors(more, runs))) / SLACK_STEP
    return min(factor / slope, MOST_SLACK) if slope > 0.0 else 0.0


KEPT = 0.005
"""Relative difference from the hypothesis' number below which the runs said nothing of it."""


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "activation_share", "peaks_seen"):
        value = float(number_of(site.stack, field))
        is_kept = abs(value - float(number_of(site.chosen.stack, field))) <= KEPT * abs(value)
        key, value = _as_written(field, value)
        told = f"as {site.chosen.name}, {date}: own runs do not identify it" if is_kept else source
        groups.setdefault(GROUP_OF[field], {})[key] = {"value": value, "source": told}
    for field, value in site.chosen.habits.items():
        if field not in [number.field for number in NUMBERS]:
            groups.setdefault(GROUP_OF[field], {})[field] = {"value": value, "source": source}
    ends = ("low", "high", "runs")
    errors = {
        key: {end: {"value": round(float(band.__getattribute__(end)), 4), "source": source} for end in ends}
        for key, band in site.stack.errors.items()
    }
    runs = {
        name: {
            "regime": run.regime,
            "place": {"value": [round(at, 3) for at in run.place], "source": source},
            "ratio": {"value": round(run.ratio, 4), "source": source},
        }
        for name, run in site.stack.own_runs.items()
    }
    weights = "; ".join(f"{name} {weight:.2f}" for name, weight in site.leading)
    head = f"# Software of a site, {source}.\n# Probabilities of the hypotheses: {weights}.\n"
    head += f"# {site.warning}.\n" if site.warning else ""
    data = {**HEAD, "name": site.stack.name, "extends": site.chosen.stack.name, **groups, "errors": errors}
    data |= {"own_runs": runs} if runs else {}
    return head + "".join(_block(key, value) for key, value in data.items())


def _as_written(field: str, value: float) -> tuple[str, float]:
    """The YAML key of a number, with the unit in which it is 1 to 1000 where it has one, and its value in it."""
    key = field
    for one in yaml_keys(field):
        scaled = value / to_base(one, 1.0)[1] if one != field else value
        if 1.0 <= abs(scaled) < 1000.0:
            key = one
            break
    factor = to_base(key, 1.0)[1] if key != field else 1.0
    return key, float(f"{value / factor:.6g}")


def _block(key: str, value: Any, indent: int = 0) -> str:
    """A key of a YAML file; mappings of mappings as blocks, all else in the flow style that JSON is."""
    lead = "  " * indent
    is_block = isinstance(value, Mapping) and "value" not in value
    if not is_block:
        return f"{lead}{key}: {json.dumps(value, ensure_ascii=False)}\n"
    return f"{lead}{key}:\n" + "".join(_block(str(k), v, indent + 1) for k, v in value.items())


MOST_JOBS = 3
TENSOR_SIZES = (1, 2, 4, 8)
BATCH_FACTORS = (1, 2)
RECOMPUTES = (Recompute.NONE, Recompute.FULL)


def usual(cluster: Cluster) -> list[Reference]:
    """Usual jobs on the devices of a cluster, those that divide there."""
    found = []
    for one in table("software")["usual"]:
        workload = Workload(seq_length=one["seq_length"], global_batch_size=one["global_batch_size"])
        job = Job(load_model(one["model"]), replace(cluster, num_nodes=one["nodes"]), workload)
        rows = joined([Candidates.from_words(row) for row in one["rows"]])
        whole = degrees(rows, world=job.cluster.world, global_batch_size=job.workload.global_batch_size)
        rows = rows.take(np.flatnonzero(whole.is_whole & (rows.tp <= job.network.gpus_per_node)))
        if len(rows):
            found.append(Reference(job=job, table=rows))
    return found


def references(runs: Sequence[MeasuredRun]) -> list[Reference]:
    """The runs' own configurations, and for some of their jobs legal neighbours in tensor size, batch, recompute."""
    own = [mixtures.reference_of(run) for run in runs]
    jobs = list({(one.job.model, one.job.workload, one.job.cluster.num_nodes): one for one in own}.values())
    return own + [replace(one, table=table) for one in jobs[:MOST_JOBS] for table in _neighbours(one)]


def _neighbours(one: Reference) -> Iterator[Candidates]:
    """One table of the legal neighbours of a run, none where it has none."""
    row, model = one.table.row(0), one.job.model
    tables = []
    for tp, factor, recompute in product(TENSOR_SIZES, BATCH_FACTORS, RECOMPUTES):
        if model.num_kv_heads % tp or tp > one.job.network.gpus_per_node:
            continue
        batch = row["micro_batch_size"] * factor
        changed = row | {"tp": tp, "micro_batch_size": batch, "sequence_parallel": tp > 1}
        changed |= {"recompute": "none" if recompute is Recompute.NONE else "full", "recompute_num_layers": 0}
        table = Candidates.from_words(changed)
        whole = degrees(table, world=one.job.cluster.world, global_batch_size=one.job.workload.global_batch_size)
        if bool(np.all(whole.is_whole)):
            tables.append(table)
    if tables:
        yield joined(tables)


PLAIN_STACK = "megatron_lm"
"""The stack that runs of a framework without a stack file are recorded with; hypotheses do not depend on it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def stack_path(folder: Path, name: str) -> Path:
    """Where the stack of a site stands."""
    return folder / f"{name}.yaml"


def runs_path(folder: Path, name: str) -> Path:
    """Where the runs of a site stand."""
    return folder / f"{name}{RUNS_ENDING}"


def learn_from(
    readings: Readings, name: str, said: SaidBeside, *, base: str | None, folder: Path, framework: str | None = None
) -> SiteStack:
    """The stack of a site from what was read and from the runs of its file; `framework`: of a site without runs.

    Raises `InputError` for a name that cannot be used, an unknown base, and with every fact that the runs lack.
    """
    _check(name, base)
    new = _runs(readings, said, base)
    path = runs_path(folder, name)
    kept = read_records(path).runs if path.is_file() else ()
    seen = {run.id for run in new}
    runs = [run for run in kept if run.id not in seen] + new
    frameworks = Counter(run.framework for run in runs if run.framework)
    framework = frameworks.most_common(1)[0][0] if frameworks else framework
    cluster = None if runs else _unmeasured(said, load_stack(base or PLAIN_STACK))
    return learn_stack(name, runs, framework=framework, base=base, cluster=cluster)


def _unmeasured(said: SaidBeside, stack: Stack) -> Cluster:
    """The devices of a site that has no runs yet."""
    if said.hardware is None:
        raise InputError([Problem("FILES", "are needed, or --hardware NAME: what is known of software before it ran")])
    hardware = load_hardware(said.hardware)
    return Cluster(
        accelerator=hardware.accelerator, network=hardware.network, stack=stack, num_nodes=1, site=site_of(hardware)
    )


def write_runs(runs: Sequence[MeasuredRun], path: Path) -> None:
    """Write the runs of a site. Raises `InputError` where that is impossible."""
    try:
        write_records(runs, path)
    except OSError as error:
        raise InputError([Problem(f"--into {path}", f"cannot be written: {error.strerror}")]) from error


def _check(name: str, base: str | None) -> None:
    problems: list[Problem] = []
    if not _NAME.fullmatch(name):
        problems.append(Problem(f"--as {name}", "a name has letters, digits, '_', '.' and '-' only"))
    elif name in shipped(FileKind.STACK):
        problems.append(Problem(f"--as {name}", "is a stack that ships with the package; choose another name"))
    known = [one for one in shipped(FileKind.STACK) if one not in NOT_SOFTWARE]
    if base is not None and base not in known:
        problems.append(Problem(f"--base {base}", f"is no shipped stack; known: {', '.join(known)}"))
    if problems:
        raise InputError(problems)


def _runs(readings: Readings, said: SaidBeside, base: str | None) -> list[MeasuredRun]:
    """Every reading as a measured run; the facts that are missing in any of them are one error."""
    found = list(readings.measured)
    problems: list[Problem] = []
    for reading in readings.runs:
        named = FRAMEWORK_STACKS.get(reading.framework, (PLAIN_STACK,))[0]
        try:
            found.append(measured_run(reading, said, load_stack(base or named)))
        except InputError as error:
            source = reading.source  # many logs are read at once
            problems += (p if source in p.where else replace(p, where=f"{source} @ {p.where}") for p in error.problems)
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return found


def needed(readings: Readings, said: SaidBeside, base: str | None) -> Sequence[Problem]:
    """What `learn_from` would ask for of these readings."""
    try:
        _runs(readings, said, base)
    except InputError as error:
        return error.problems
    return ()
