"""A pipeline order as a picture: one row per rank, one bar per pass, in the terminal or as SVG."""

from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.text import Text

from primus_search.base.html_templates import rendered
from primus_search.schedule import PassKind, Timeline

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
