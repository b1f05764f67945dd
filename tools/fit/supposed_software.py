"""Published runs as if their software were another, or unknown."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from primus_search.cost.confidence.uncertainty import ASSUMED
from primus_search.evidence.published.convert import NONE, converted, overrides_beside
from primus_search.evidence.published.run_machine import build_hardware, stack_file, stack_without_words
from primus_search.evidence.published.run_table import PublishedRun, is_published, read_rows
from primus_search.evidence.validate.undescribed import Undescribed
from primus_search.files.evidence_files import load_sites
from primus_search.files.framework_files import DEFAULT_BY_VENDOR
from primus_search.files.hardware_files import load_cluster
from primus_search.files.search_path import FileKind, shipped
from primus_search.files.word_rules import vocabulary
from primus_search.learning.inference.hypotheses import shipped_hypotheses
from primus_search.learning.inference.projected_runs import log_rates
from primus_search.learning.usual_jobs import usual
from primus_search.values.measured_run import MeasuredRun

WITHOUT_RUNS: tuple[str, ...] = tuple(vocabulary("stacks")["without_runs"])
"""Stacks that may be named or assumed although no run of them is in a fit."""


def made_with(run: MeasuredRun, stack: str) -> MeasuredRun:
    """A run as if it had been made with another stack, which then is assumed."""
    row = _row_of(run)
    if row is None:
        cluster = replace(run.cluster, stack=replace(stack_file(stack), is_assumed=True))
        return replace(run, cluster=cluster, overrides=(), assumed=(f"{stack} supposed",))
    return converted(row, overrides_beside(row.table).get(row.id, NONE), supposed=stack)


def stack_without_source(run: MeasuredRun) -> str:
    """`stack_without_words` of a record."""
    hardware = build_hardware(run.hardware)
    row = _row_of(run)
    if row is None:
        return hardware.default_stack or run.cluster.stack.name
    return stack_without_words(row, hardware)


def _row_of(run: MeasuredRun) -> PublishedRun | None:
    """The published row that a record was converted from; None for a record that was given as such."""
    table, line = run.place
    return _rows(table).get(line) if is_published(Path(table)) else None


@lru_cache(maxsize=8)
def _rows(table: str) -> dict[int, PublishedRun]:
    return {row.line: row for row in read_rows(Path(table))}


def copies(name: str) -> list[str]:
    """A stack and every one whose file extends it or says that it has a number as it has."""
    pattern = re.compile(rf'^extends: *"?{re.escape(name)}"?$|"as {re.escape(name)}[,"]', re.M)
    files = shipped(FileKind.STACK).items()
    return [one for one, path in files if one == name or pattern.search(path.read_text(encoding="utf-8"))]


LAUNCHER = {"megatron": "megatron-lm"}
"""What `learn` calls the framework that a space without one is planned for."""


def supposed_bands(hardware: str) -> Iterator[str]:
    """Lines of `errors:` for the default stack of a device: where rates of the mixture over what may run under the
    framework that is assumed there lie over those of that stack, a site's errors included; median over usual jobs."""
    cluster = load_cluster(hardware, 1)
    framework = LAUNCHER[DEFAULT_BY_VENDOR[cluster.accelerator.vendor]]
    date = datetime.now(tz=UTC).date()
    source = f"mixture over stacks under {framework}, median of usual jobs, {date}: tools.fit supposed"
    ends: dict[str, list[tuple[float, float]]] = {"dense": [], "moe": []}
    named: dict[str, Undescribed] = {}
    for one in usual(cluster):
        model, arch = one.job.model, cluster.accelerator.arch
        every = shipped_hypotheses(framework, archs={arch}, models={model})
        weights = np.exp([hypothesis.log_prior for hypothesis in every])
        logs = np.array([log_rates(hypothesis.stack, [one]) for hypothesis in every])
        for mixed, plain in zip(logs.T, log_rates(cluster.stack, [one]), strict=True):
            found = Undescribed(
                weights=weights / weights.sum(), logs=mixed - plain, names=tuple(each.stack.name for each in every)
            )
            rate = found.rate(model, load_sites().errors.of(cluster.stack))
            ends[model.family].append((np.log(rate.rate), 0.5 * np.log(rate.high / rate.low)))
            named[model.family] = found
    for family, pairs in ends.items():
        middle, half = np.median(pairs, axis=0)
        yield f"  {ASSUMED}{family}/{cluster.accelerator.arch}:"
        for name, value in {"low": np.exp(middle - half), "high": np.exp(middle + half), "runs": 0}.items():
            yield f'    {name}: {{value: {value:.3g}, source: "{source}"}}'
        yield f"    stacks: {str(named[family]).rpartition('likely ')[2]}"
