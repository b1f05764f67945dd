"""A pipeline order as a picture: one row per rank, one bar per pass, in the terminal or as SVG.

The projected step as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing open.

One track per pipeline rank with its passes, an arrow per message between ranks, the activations each rank holds, and
behind the pipeline what every rank does before the next step. Times are microseconds, as the format has them.
Source: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import gzip
import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from rich.text import Text

from primus_search.base.errors import InputError, Problem
from primus_search.base.html_templates import rendered
from primus_search.cost.breakdown import stages_of, timeline
from primus_search.cost.projection import Projection
from primus_search.schedule import Costs, PassKind, Timeline, build, simulate
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job

# Forward blue, input gradient orange, weight gradient green, both gradients at once a darker orange.
COLOURS = {PassKind.F: "#4e79a7", PassKind.B: "#f28e2b", PassKind.W: "#59a14f", PassKind.BW: "#d4652f"}

TERMINAL = dict(zip(COLOURS, ("white on blue", "black on yellow", "black on green", "white on red"), strict=True))
WORDS = dict(zip(COLOURS, ("forward", "input gradient", "weight gradient", "both gradients"), strict=True))

ROW, BAR, LEFT, RIGHT, TOP = 26, 20, 64, 150, 44  # pixels of the SVG: row pitch, bar height, margins

LABELLED = 4000  # passes up to which bars carry their micro-batch; more would not be readable and make the file slow


def terminal(timeline: Timeline, width: int = 100) -> Text:
    """A Gantt chart, `width` characters for the whole makespan.

    Every bar starts with its letter and micro-batch as far as there is room; a dot is idle time. Where several passes
    share one character the one that runs in its middle is shown.
    """
    table = timeline.table
    scale = width / timeline.makespan if timeline.makespan > 0.0 else 0.0
    chart = Text()
    for rank in range(table.stages):
        cells = [("·", "")] * width
        for i in range(int(table.offsets[rank]), int(table.offsets[rank + 1])):
            kind = PassKind(int(table.kind[i]))
            first, last = round(float(timeline.start[i]) * scale), round(float(timeline.end[i]) * scale)
            text = f"{kind.name[0] if kind is not PassKind.BW else 'b'}{int(table.micro_batch[i])}"
            shown = text if last - first >= len(text) else text[0]
            bar = shown.ljust(last - first)[: max(min(last, width) - first, 0)]
            cells[first : first + len(bar)] = [(letter, TERMINAL[kind]) for letter in bar]
        runs = (("".join(cell for cell, _ in run), style) for style, run in groupby(cells, key=itemgetter(1)))
        chart.append_text(Text.assemble(f"rank {rank:>3} ", *runs, f" peak {timeline.peak_activations[rank]:g}\n"))
    for kind in _used(timeline):
        letter = "b" if kind is PassKind.BW else kind.name
        chart.append_text(Text.assemble("  " if chart.plain[-1] != "\n" else " " * 9, (f" {letter} ", TERMINAL[kind])))
        chart.append(f" {WORDS[kind]}")
    return chart.append("  · idle")


def svg(timeline: Timeline, title: str, width: int = 1400) -> str:
    """A Gantt chart as a self-contained SVG; hovering a bar shows the pass, its stage and its times."""
    table, makespan = timeline.table, timeline.makespan or 1.0
    scale = (width - LEFT - RIGHT) / makespan
    ranks = []
    for rank in range(table.stages):
        idle = 100.0 * (1.0 - float(timeline.busy[rank]) / makespan)
        rows = range(int(table.offsets[rank]), int(table.offsets[rank + 1]))
        bars = [_bar(timeline, i, scale) for i in rows]
        ranks.append((TOP + ROW * rank, float(timeline.peak_activations[rank]), idle, bars))
    axis = TOP + ROW * table.stages + 14
    legend = [*((COLOURS[kind], WORDS[kind]) for kind in _used(timeline)), ("#ececec", "idle")]
    return rendered(
        "gantt.svg", width=width, height=axis + 50, left=LEFT, bar=BAR, title=title, ranks=ranks, scale=scale,
        span=scale * makespan, makespan=timeline.makespan, axis=axis, legend=legend, colours=COLOURS, words=WORDS,
    )  # fmt: skip


def _bar(timeline: Timeline, i: int, scale: float) -> dict[str, Any]:
    """A pass; the way back up of a V, and every further lap of an interleaved order, is `is_later`, drawn lighter."""
    table, start, end = timeline.table, float(timeline.start[i]), float(timeline.end[i])
    stage, micro, width = int(table.stage[i]), int(table.micro_batch[i]), (end - start) * scale
    is_labelled = len(table) <= LABELLED and width >= 8.0 * len(str(micro))
    bar = {"x": LEFT + start * scale, "width": width, "start": start, "end": end, "stage": stage, "micro": micro}
    later = stage % table.model_stages >= table.stages
    return bar | {"kind": PassKind(int(table.kind[i])), "is_later": later, "is_labelled": is_labelled}


def _used(timeline: Timeline) -> list[PassKind]:
    kinds = set(timeline.table.kind.tolist())
    return [kind for kind in PassKind if int(kind) in kinds]


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
