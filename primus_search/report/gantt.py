"""A pipeline order as a picture: one row per rank, one bar per pass, in the terminal or as SVG."""

from html import escape
from itertools import groupby
from operator import itemgetter

from rich.text import Text

from primus_search.schedule import PassKind, Timeline

COLOURS = {PassKind.F: "#4e79a7", PassKind.B: "#f28e2b", PassKind.W: "#59a14f", PassKind.BW: "#d4652f"}
"""Forward blue, input gradient orange, weight gradient green, both gradients at once a darker orange."""

TERMINAL = {
    PassKind.F: "white on blue",
    PassKind.B: "black on yellow",
    PassKind.W: "black on green",
    PassKind.BW: "white on red",
}
WORDS = {
    PassKind.F: "forward",
    PassKind.B: "input gradient",
    PassKind.W: "weight gradient",
    PassKind.BW: "both gradients",
}

ROW, BAR, LEFT, RIGHT, TOP = 26, 20, 64, 150, 44
"""Pixels of the SVG: row pitch, bar height, margins."""

LABELLED = 4000
"""Passes up to which bars carry their micro-batch; more would not be readable and make the file slow."""


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
    table = timeline.table
    span = timeline.makespan or 1.0
    scale = (width - LEFT - RIGHT) / span
    height = TOP + ROW * table.stages + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#222">{escape(title)}</text>',
    ]
    labelled = len(table) <= LABELLED
    for rank in range(table.stages):
        y = TOP + ROW * rank
        peak = float(timeline.peak_activations[rank])
        idle = 1.0 - float(timeline.busy[rank]) / span
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end" fill="#222">rank {rank}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{scale * span:.2f}" height="{BAR}" fill="#ececec">'
            "<title>idle</title></rect>"
        )
        parts.append(
            f'<text x="{LEFT + scale * span + 8:.2f}" y="{y + 15}" fill="#222">'
            f"peak {peak:.4g}, idle {100 * idle:.1f} %</text>"
        )
        rows = range(int(table.offsets[rank]), int(table.offsets[rank + 1]))
        parts.extend(_bar(timeline, i, y, scale, labelled) for i in rows)
    parts.extend(_axis(timeline, scale))
    parts.append("</svg>")
    return "\n".join(parts)


def _bar(timeline: Timeline, i: int, y: int, scale: float, labelled: bool) -> str:
    table = timeline.table
    kind = PassKind(int(table.kind[i]))
    start, end = float(timeline.start[i]), float(timeline.end[i])
    x, width = LEFT + start * scale, (end - start) * scale
    micro = int(table.micro_batch[i])
    hint = f"{WORDS[kind]}, virtual stage {int(table.stage[i])}, micro-batch {micro}: {start:g} to {end:g}"
    # The way back up of a V, and every further lap of an interleaved order, is drawn lighter.
    later = int(table.stage[i]) % table.model_stages >= table.stages
    bar = (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="{BAR}" fill="{COLOURS[kind]}" '
        f'fill-opacity="{0.7 if later else 1.0}" stroke="#ffffff" stroke-width="0.5"><title>{hint}</title></rect>'
    )
    if labelled and width >= 8.0 * len(str(micro)):
        bar += (
            f'<text x="{x + width / 2:.2f}" y="{y + 14}" text-anchor="middle" font-size="10" fill="#ffffff" '
            f'pointer-events="none">{micro}</text>'
        )
    return bar


def _axis(timeline: Timeline, scale: float) -> list[str]:
    table = timeline.table
    y = TOP + ROW * table.stages + 14
    parts = []
    for step in range(11):
        at = timeline.makespan * step / 10
        parts.append(
            f'<text x="{LEFT + at * scale:.2f}" y="{y}" text-anchor="middle" font-size="10" fill="#555">{at:.4g}</text>'
        )
    x = float(LEFT)
    for kind in _used(timeline):
        parts.append(f'<rect x="{x:.0f}" y="{y + 14}" width="14" height="14" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{y + 26}" fill="#222">{WORDS[kind]}</text>')
        x += 140
    parts.append(f'<rect x="{x:.0f}" y="{y + 14}" width="14" height="14" fill="#ececec"/>')
    parts.append(f'<text x="{x + 20:.0f}" y="{y + 26}" fill="#222">idle</text>')
    return parts


def _used(timeline: Timeline) -> list[PassKind]:
    kinds = set(timeline.table.kind.tolist())
    return [kind for kind in PassKind if int(kind) in kinds]
