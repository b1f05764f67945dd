"""The projected step as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing open.

One track per pipeline rank with its passes, an arrow per message between ranks, the activations each rank holds, and
behind the pipeline what every rank does before the next step. Times are microseconds, as the format has them.
Source: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from primus_search.analysis.breakdown import stages_of, timeline
from primus_search.base.errors import InputError, Problem
from primus_search.cost.projection import Projection
from primus_search.schedule import Costs, PassKind, Timeline, build, simulate
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job

US_PER_S = 1e6
MOST_PASSES = 1 << 18  # passes of a trace: about 100 MB of text

NAMES = {PassKind.F: "forward", PassKind.B: "input gradient", PassKind.W: "weight gradient", PassKind.BW: "backward"}
AFTER = ("gradient_comm", "optimizer", "overhead", "stragglers")  # parts of a step behind its pipeline, in this order

Event = dict[str, Any]


def trace_bytes(job: Job, one: Candidates, projection: Projection, *, packed: bool) -> bytes:
    """The trace of a table of one candidate as JSON, packed with gzip or not; the same bytes for the same input."""
    text = json.dumps(chrome_trace(job, one, projection), separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0) if packed else text


def chrome_trace(job: Job, one: Candidates, projection: Projection) -> dict[str, Any]:
    """The trace of a table of one candidate. Raises `InputError` where it would have too many passes."""
    m = int(projection.microbatches[0])
    passes = 3 * m * int(one.pp[0] * one.vpp[0])
    if passes > MOST_PASSES:
        raise InputError([Problem("--trace", f"{passes:,} passes are more than a trace holds ({MOST_PASSES:,})")])
    ran = _run(job, one, m)
    events = [*_tracks(ran), *_passes(ran), *_messages(ran), *_held(ran), *_after(ran, projection)]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"model": job.model.name, "schedule": ran.table.name, "step_s": float(projection.step.total[0])},
        "traceEvents": events,
    }


def _run(job: Job, one: Candidates, microbatches: int) -> Timeline:
    """When every pass runs; without a pipeline one micro-batch after the other."""
    stages = stages_of(job, one)
    found = timeline(job, stages, one, microbatches)
    if found is not None:
        return found
    seconds = [[float(each.sum())] for each in (stages.forward_s, stages.input_grad_s + stages.recompute_s)]
    costs = Costs(forward=seconds[0], backward=seconds[1], weight=[float(stages.weight_grad_s.sum())])
    return simulate(build("1f1b", stages=1, microbatches=microbatches), costs)


def _tracks(ran: Timeline) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "pipeline"}}
    for rank in range(ran.table.stages):
        at = {"ph": "M", "pid": 0, "tid": rank}
        yield at | {"name": "thread_name", "args": {"name": f"rank {rank}"}}
        yield at | {"name": "thread_sort_index", "args": {"sort_index": rank}}


def _passes(ran: Timeline) -> Iterator[Event]:
    table = ran.table
    rank = table.links.rank
    for row in range(len(table)):
        kind, stage, micro = PassKind(table.kind[row]), int(table.stage[row]), int(table.micro_batch[row])
        yield {
            "ph": "X", "name": f"{kind.name} {micro}", "cat": NAMES[kind], "pid": 0, "tid": int(rank[row]),
            "ts": _us(ran.start[row]), "dur": _us(ran.end[row]) - _us(ran.start[row]),
            "args": {"pass": NAMES[kind], "virtual_stage": stage, "micro_batch": micro},
        }  # fmt: skip


def _messages(ran: Timeline) -> Iterator[Event]:
    """An arrow from the pass that makes an activation or a gradient to the pass of another rank that takes it."""
    links = ran.table.links
    to = np.flatnonzero((links.source >= 0) & (links.rank != links.rank[links.source]))
    for row in to.tolist():
        source = int(links.source[row])
        what = "activation" if ran.table.kind[row] == PassKind.F else "gradient"
        arrow = {"name": what, "cat": "message", "pid": 0, "id": row}
        yield arrow | {"ph": "s", "tid": int(links.rank[source]), "ts": _within(ran, source, 0.999)}
        yield arrow | {"ph": "f", "bp": "e", "tid": int(links.rank[row]), "ts": _within(ran, row, 0.001)}


def _within(ran: Timeline, row: int, share: float) -> float:
    """A moment inside of a pass: an arrow binds to the slice around its end."""
    start, end = _us(ran.start[row]), _us(ran.end[row])
    return start + share * (end - start)


def _held(ran: Timeline) -> Iterator[Event]:
    """Activations of every rank, in micro-batches through one full rank, whenever they change."""
    table = ran.table
    for rank in range(table.stages):
        held = 0
        for row in range(int(table.offsets[rank]), int(table.offsets[rank + 1])):
            kind = table.kind[row]
            change = {PassKind.F: 1, PassKind.B: 0}.get(PassKind(kind), -1)
            if change:
                held += change
                when = ran.start[row] if change > 0 else ran.end[row]
                yield {
                    "ph": "C", "name": f"activations of rank {rank}", "pid": 0, "tid": rank, "ts": _us(when),
                    "args": {"micro-batches": held / table.virtual_stages},
                }  # fmt: skip


def _after(ran: Timeline, projection: Projection) -> Iterator[Event]:
    """What every rank does behind the pipeline: exposed gradient traffic, optimizer, fixed time, waiting."""
    begin = ran.makespan
    for name in AFTER:
        seconds = float(projection.step.__getattribute__(name)[0])
        if seconds > 0.0:
            for rank in range(ran.table.stages):
                yield {"ph": "X", "name": name.replace("_", " "), "cat": "step", "pid": 0, "tid": rank,
                       "ts": _us(begin), "dur": _us(begin + seconds) - _us(begin), "args": {}}  # fmt: skip
        begin += seconds


def _us(seconds: float) -> float:
    """Microseconds to the picosecond: ends meet starts whatever they were added up from."""
    return round(float(seconds) * US_PER_S, 6)
