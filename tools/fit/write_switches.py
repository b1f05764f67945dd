"""The switches that measured runs had on together, and the share of projected gains that measured pairs show.

The share of a family is the slope through the origin of measured on projected log ratios, over pairs of runs of one
sweep (source, model, device, number of devices, workload, precision and stack) that differ in switches alone, each
projected with its source and model left out of the fit. A share above 1 is written as 1: no gain is raised.
"""

import datetime
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.cost.confidence.switch_evidence import SWITCHES, family, shape_of
from primus_search.declare.evidence_files import COLUMNS, RUNS
from primus_search.runs.published import validated
from primus_search.runs.validate.score_runs import ScoredRun
from primus_search.values.measured_run import MeasuredRun
from tools.fit.training_run import left_out_rates

SPLIT = "source and model"


def write_switches(training: Path, path: Path) -> None:
    """Write the file from a table of training runs, or a list of tables; raises InputError for a bad one."""
    found = validated(training)
    rows = found.with_rates(left_out_rates([row.run for row in found.rows], SPLIT)).rows
    pairs = list(_pairs(rows))
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    lines = [
        "# Switches that measured runs had on together, and the share of projected gains of switches that measured",
        "# pairs of runs show. Written by `python -m tools.fit ranges`; docs/cost/uncertainty.md says how it is",
        "# used.",
        "shares:",
    ]
    for name in sorted({name for name, *_ in pairs}):
        x, y = (np.array([pair[i] for pair in pairs if pair[0] == name]) for i in (1, 2))
        share = min(float((x * y).sum() / (x * x).sum()), 1.0)
        source = f"pairs of {training.name}, projected with their source and model left out, {today}"
        lines.append(f'  {name}: {{value: {share:.2f}, pairs: {len(x)}, source: "{source}"}}')
    lines.append("devices:")
    runs = [row.run for row in rows]
    names = {shape_of(run.model): run.model.name for run in runs}
    for device, by_shape in sorted(_combinations(runs).items()):
        lines.append(f"  {device}:")
        for shape, counts in sorted(by_shape.items()):
            lines.append(f"    {shape}:  # {names[shape]}")
            lines += [f"      - {_entry(values, count)}" for values, count in counts.most_common()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


Values = tuple[tuple[str, Any], ...]
"""Columns of a run that are not at their default, with their words."""


def _on(run: MeasuredRun, columns: Sequence[str] = SWITCHES) -> Values:
    defaults = type(run.candidates).table().row(0)
    row = run.candidates.row(0)
    return tuple((name, row[name]) for name in columns if row[name] != defaults[name])


def _combinations(runs: Iterable[MeasuredRun]) -> Mapping[str, Mapping[str, Counter[Values]]]:
    found: dict[str, dict[str, Counter[Values]]] = defaultdict(lambda: defaultdict(Counter))
    for run in runs:
        found[run.cluster.accelerator.name][shape_of(run.model)][_on(run, COLUMNS)] += 1
    return found


def _entry(values: Values, runs: int) -> str:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values}
    parts = [f"{RUNS}: {runs}", *(f"{name}: {word}" for name, word in words.items())]
    return f"{{{', '.join(parts)}}}"


def _pairs(rows: Sequence[ScoredRun]) -> Iterator[tuple[str, float, float]]:
    """Family, projected and measured log ratio of two runs of a sweep that differ in switches alone."""
    sweeps: dict[tuple[Any, ...], list[ScoredRun]] = defaultdict(list)
    for row in rows:
        run = row.run
        rest = tuple(value for name, value in run.candidates.row(0).items() if name not in SWITCHES)
        job = (run.group, run.gpu, run.cluster.world, run.workload, run.precision, run.cluster.stack.name)
        sweeps[job, rest].append(row)
    for sweep in sweeps.values():
        for a, b in combinations(sweep, 2):
            if _on(a.run) != _on(b.run):
                measured = a.run.tokens_per_s_per_gpu / b.run.tokens_per_s_per_gpu
                yield family(a.run.model), math.log(a.predicted / b.predicted), math.log(measured)
