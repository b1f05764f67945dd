"""Published tables of training runs, converted into records (`MeasuredRun`).

    run_table      cells of a table, rules      run_machine  devices, network, stack with its switches
    run_candidate  the configuration            run_model    the transformer
    `files/vocabulary/`: what its words mean

Nothing is looked up by model name except what no column says (MLA sizes, sliding windows, biases): those follow from
the family, and a family that is not known is treated as the plain case. A run that lacks a needed value is skipped with
the reason, never guessed; what had to be assumed (a stack for an unknown source) is recorded.

What differed in single runs of published tables, and no column says: `run_overrides.yaml` beside the tables.

    - runs: [tt-001, tt-002]
      set: {stack.attention_kernel: sdpa}
      reason: torchtitan uses cuDNN's attention since 2025-10; these runs are older
      source: torchtitan/models/attention.py

Keys: `stack.FIELD`, `stack.variant` (one that the stack's file lists), `hardware.FIELD` (accelerator or network; base
units), `model.FIELD`, or a column of the candidate.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, PrimusSearchError
from primus_search.base.units import to_base
from primus_search.declare.record_table import read_records
from primus_search.evidence.published.run_candidate import build_candidates, of_arguments, routing
from primus_search.evidence.published.run_machine import (
    build_cluster,
    build_hardware,
    build_stack,
    hardware_of,
    stack_file,
)
from primus_search.evidence.published.run_model import build_model, has_layout_of_recipe
from primus_search.evidence.published.run_table import PublishedRun, Skipped, is_published, read_rows, tables
from primus_search.evidence.validate.score_runs import Validation, validate_runs
from primus_search.evidence.validate.undescribed import with_undescribed
from primus_search.files.hardware_files import load_stack, on_gpus
from primus_search.files.source import Document, read
from primus_search.values import measured_run
from primus_search.values.candidates import DEFAULTS, Candidates, degrees
from primus_search.values.layout import stage_layers
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance, RunOverride, RunTable, SkippedRun
from primus_search.values.model import Model
from primus_search.values.workload import Workload

FILE, VARIANT = "run_overrides.yaml", "stack.variant"
_KEYS = ("runs", "set", "reason", "source")


Special = Mapping[str, RunOverride]
"""What differs in one run, by its key."""
NONE: Special = {}


def _values(special: Special, *parts: str) -> dict[str, Any]:
    """Values of the keys that begin with one of some parts."""
    return {key: one.value for key, one in special.items() if key.startswith(parts) and key != VARIANT}


def _reason(special: Special, key: str) -> str:
    """Why the number with this dotted path differs; empty where the row's own words say so."""
    part, _, path = key.partition(".")
    same = (o.reason for k, o in special.items() if k.startswith(f"{part}.") and f".{path}".endswith(k[len(part) :]))
    return next(same, "")


@lru_cache(maxsize=64)
def overrides_beside(table: str) -> Mapping[str, Special]:
    """Overrides of the runs of a table by id; empty where no file stands beside it. Raises InputError for a bad one."""
    path = Path(table).parent / FILE
    return _read(read(path)) if table and path.is_file() else {}


def _read(document: Document) -> Mapping[str, Special]:
    entries = document.data if isinstance(document.data, list) else []
    problems = [document.problem((i,), fault) for i, entry in enumerate(entries) for fault in _faults(entry)]
    if not entries:
        problems.append(document.problem((), f"expected a list of entries with {', '.join(_KEYS)}"))
    if problems:
        raise InputError(problems)
    found: dict[str, dict[str, RunOverride]] = {}
    for entry in entries:
        reason = f"{entry['reason']} ({entry['source']})"
        own = {key: RunOverride(key=key, value=value, reason=reason) for key, value in entry["set"].items()}
        for name in map(str, entry["runs"]):
            found[name] = found.get(name, {}) | own
    return found


def _faults(entry: Any) -> list[str]:
    """What is wrong with one entry of the file."""
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        return [f"expected a mapping with {', '.join(_KEYS)}"]
    if not isinstance(entry["runs"], list) or not isinstance(entry["set"], dict):
        return ["expected runs: [ids] and set: {key: value}"]
    known = ("stack.", "hardware.", "model.")
    unknown = [key for key in entry["set"] if not str(key).startswith(known) and key not in DEFAULTS]
    return [f"unknown key {key!r}; a column of the candidate or {', '.join(known)}FIELD" for key in unknown]


FABRIC = ("nics_per_node", "nic_bytes_per_s")
"""Numbers of a network that a record has columns for."""

MOST_PASSES = 4_000_000
"""Passes of a pipeline (stages times micro-batches) beyond which a row is read as a typo: the largest published runs
have 10^5."""


def converted_rows(rows: Iterable[PublishedRun]) -> RunTable:
    """Every row that can be converted, and the others with the reason; overrides stand beside their tables."""
    runs: list[MeasuredRun] = []
    skipped: list[SkippedRun] = []
    for row in rows:
        special = overrides_beside(row.table).get(row.id, NONE)
        try:
            runs.append(converted(row, special))
        except (Skipped, PrimusSearchError, ValueError, ArithmeticError) as reason:
            skipped.append(SkippedRun(id=row.id, place=row.place, reason=str(reason)))
    return RunTable(runs=tuple(runs), skipped=tuple(skipped))


def converted(row: PublishedRun, special: Special = NONE, *, supposed: str = "") -> MeasuredRun:
    """The record of a published run. Raises `Skipped` with the reason.

    special: what differs in this run from what its words say. supposed: the stack, whatever the row says.
    """
    if not row.is_complete:
        raise Skipped("marked incomplete")
    reason = row.told("incomplete")
    if reason:
        raise Skipped(reason)
    model = build_model(row)
    model = replace(model, **{key.removeprefix("model."): value for key, value in _values(special, "model.").items()})
    name = hardware_of(row)
    hardware = build_hardware(name)
    stack, assumed = build_stack(
        row, hardware, supposed, variant=str(special[VARIANT].value) if VARIANT in special else ""
    )
    plain = build_cluster(row, hardware, stack)
    cluster = measured_run.overridden(plain, _values(special, "stack.", "hardware."))
    workload = _workload(row, model, cluster.stack)
    candidates = build_candidates(row, model, cluster.stack)
    columns = {name: one.value for name, one in special.items() if name in DEFAULTS}
    candidates = Candidates.from_words(candidates.row(0) | columns) if columns else candidates
    if has_layout_of_recipe(row) and candidates.pp[0] > 1:
        assumed = (*assumed, f"pp_layout=recipe read as {candidates.layouts[0]}")
    _must_divide(model, cluster, candidates, workload.global_batch_size)
    network = on_gpus(hardware.network, plain.network.gpus_per_node)
    nics = {name: plain.network.__getattribute__(name) for name in FABRIC}
    own_file = replace(stack_file(stack.reference), is_assumed=stack.is_assumed, has_words=stack.has_words)
    usual = replace(plain, network=replace(network, **nics), stack=own_file)
    overrides = (replace(one, reason=_reason(special, one.key)) for one in measured_run.overrides_of(usual, cluster))
    return MeasuredRun(
        model=model,
        cluster=cluster,
        workload=workload,
        candidates=candidates,
        measured=_measured(row),
        provenance=_provenance(row, model),
        hardware=name,
        overrides=tuple(overrides),
        assumed=assumed,
    )


def _workload(row: PublishedRun, model: Model, stack: Stack) -> Workload:
    is_masked = row.told("is_masked")
    capacity, spread = routing(row, model, stack)
    length = float(row.told("document_spread")) * float(row.told("mean_document")) if is_masked else 0.0
    return Workload(
        seq_length=row.count("seq_len"),
        global_batch_size=row.count("gbs"),
        routing_imbalance=capacity,
        routing_spread=spread,
        document_length=length,
        experts_in_turn=row.told("experts_in_turn"),
        pads_to_capacity=row.told("pads_to_capacity"),
    )


def _measured(row: PublishedRun) -> Measurement:
    """Figures as published; a run that ran out of memory has none. Raises `Skipped` where there is none."""
    if row.ran_out:
        return Measurement(ending="out_of_memory")
    rate, step_s, peak = (row.number(name) or 0.0 for name in ("tokens_per_s_per_gpu", "step_time_s", "peak_mem_gb"))
    if max(rate, step_s, peak) <= 0.0 and not row.ran:
        raise Skipped("no measured tokens/s/GPU, nor the time of a step")
    kind, unit = row.told("peak")
    return Measurement(
        tokens_per_s_per_gpu=rate if rate > 0.0 else math.nan,
        step_s=step_s if step_s > 0.0 else math.nan,
        peak_bytes=peak * to_base(f"peak_{unit}", 1.0)[1] if peak > 0.0 else math.nan,
        peak_kind=kind,
        ending="ran" if row.ran else "",
    )


def _provenance(row: PublishedRun, model: Model) -> Provenance:
    words = {name: row.word(name) for name in ("source", "notes", "gpu", "precision")}
    unread = of_arguments(row, model)[1]
    return Provenance(id=row.id, publisher=row.publisher, table=row.table, line=row.line, unread=unread, **words)


def _must_divide(model: Model, cluster: Cluster, candidates: Candidates, batch: int) -> None:
    d = degrees(candidates, world=cluster.world, global_batch_size=batch)
    if not d.is_whole[0]:
        raise Skipped(f"{cluster.world} GPUs and global batch {batch} do not divide by the degrees given")
    stages = int(candidates.pp[0] * candidates.vpp[0])
    if stages * int(d.microbatches[0]) > MOST_PASSES:
        raise Skipped(f"{d.microbatches[0]} micro-batches through {stages} stages are beyond any training run")
    if stage_layers(model, stages, candidates.layouts[0]) is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")


def measured_table(path: Path) -> RunTable:
    """The runs of a CSV, or of every table that a list names; with a vendor in the list those of its devices, and no
    word of what is skipped. Raises InputError for a file that is no such table."""
    runs: list[MeasuredRun] = []
    skipped: list[SkippedRun] = []
    for one, vendor in tables(path).items():
        table = converted_rows(read_rows(one)) if is_published(one) else read_records(one)
        runs += [run for run in table.runs if vendor in ("", run.cluster.accelerator.vendor)]
        skipped += [] if vendor else table.skipped
    return RunTable(runs=tuple(runs), skipped=tuple(skipped))


def validated(path: Path, stack: str | None = None) -> Validation:
    """Every run of a table projected; with `stack` on that software, what a run overrides in its own stays.

    A run whose software nobody described has the rates of the mixture over stacks.
    """
    table = measured_table(path)
    if stack is not None:
        loaded = load_stack(stack)
        table = replace(table, runs=tuple(measured_run.on_stack(run, loaded) for run in table.runs))
    return with_undescribed(validate_runs(table))
