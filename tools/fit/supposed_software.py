"""Published runs as if their software were another, or unknown."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from primus_search.runs.published.convert import NONE, converted, overrides_beside
from primus_search.runs.published.parts_of_run import build_hardware, inferred_stack, stack_file
from primus_search.runs.published.run_table import PublishedRun, is_published, read_rows
from primus_search.runs.rules import vocabulary
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
    """What would be assumed of a run's software if nothing but its configuration were known."""
    hardware = build_hardware(run.hardware)
    row = _row_of(run)
    if row is None:
        return hardware.default_stack or run.cluster.stack.name
    return inferred_stack(row.without("source", "flags", "notes", "stack"), hardware)


def _row_of(run: MeasuredRun) -> PublishedRun | None:
    """The published row that a record was converted from; None for a record that was given as such."""
    table, line = run.place
    return _rows(table).get(line) if is_published(Path(table)) else None


@lru_cache(maxsize=8)
def _rows(table: str) -> dict[int, PublishedRun]:
    return {row.line: row for row in read_rows(Path(table))}
