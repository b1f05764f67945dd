"""The frontier of memory per GPU against expected tokens/s/GPU: a plot, and points along it as a table."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from primus_search.analysis.labels import evidence_of
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.exploration.ranking_table import MEASURED, PROJECTED, RUN
from primus_search.exploration.result import SearchResult, cluster_columns, is_on_cluster_of
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.plain_tables import Plain, print_rows

MOST_POINTS = 12
LEAST_WIDTH, PLOT_HEIGHT = 40, 18
# Points of the plot by what they stand on.
MARKS: Mapping[str, str] = {".": "projected", "t": "memory traced", "m": "time measured", "r": "run before"}
CHOSEN = "#"
UNLIKE = "Measured, traced and projected figures are not compared; each kind of evidence has its own frontier."
EVIDENCE = "T/M: what time and memory stand on (p projected, t traced with torch, m measured on a device, r own run)."


def print_frontier(result: SearchResult, stream: TextIO | None = None) -> None:
    """The frontier as a plot with the winner marked, then points along it as a table."""
    best = result.ranking.row(0) if len(result.ranking) else None
    _print_frontier(list(result.frontier.rows()), best, stream or sys.stdout)


def print_saved_frontier(run: SavedRun, stream: TextIO | None = None) -> None:
    """The frontier of a run folder, as `print_pareto` prints it: of several clusters that of the best."""
    best = run.ranking[0]
    mine = [row for row in run.frontier if is_on_cluster_of(row, best)]
    _print_frontier(mine, best, stream or sys.stdout)
    Plain(stream).print(EVIDENCE)
    if len(mine) < len(run.frontier):
        labels = {name: best[name] for name in cluster_columns(best)}
        where = ", ".join(f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}" for n, v in labels.items())
        Plain(stream).print(f"This is the frontier of {where}; pareto.csv has those of the other clusters as well.")


def _print_frontier(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, stream: TextIO) -> None:
    if not rows:
        return
    width = shutil.get_terminal_size((80, 24)).columns
    stream.write(plot(rows, best, max(LEAST_WIDTH, min(width, 100))) + "\n")
    _print_points(Plain(stream), rows)
    if len({evidence_of(row) for row in rows}) > 1:
        Plain(stream).print(UNLIKE)


def plot(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, width: int) -> str:
    """Memory per GPU (GB, across) against expected tokens/s/GPU (up), as text."""
    import plotext

    marked = {mark: [row for row in rows if _mark(row) == mark] for mark in MARKS}
    marked |= {CHOSEN: [best] if best else []}
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, PLOT_HEIGHT)
    for mark, points in marked.items():
        if points:
            memory = [row["memory_bytes"] / GB for row in points]
            figure.draw(figure.signal(memory, [row[RATE] for row in points], marker=mark))
    legend = "  ".join(f"{mark} {word}" for mark, word in MARKS.items() if marked[mark])
    figure.title(f"frontier: {legend}  {CHOSEN} chosen")
    figure.label("memory, GB", axis="x")
    figure.label("expected tokens/s/GPU", axis="y")
    return str(plotext.uncolorize(str(figure.build())))


def _mark(row: Mapping[str, Any]) -> str:
    """What a point of the plot stands on, as a key of `MARKS`."""
    if row["time_evidence"] in (MEASURED, RUN):
        return str(row["time_evidence"][0])
    return "." if row["memory_evidence"] == PROJECTED else "t"


def _print_points(console: Plain, rows: Sequence[Mapping[str, Any]]) -> None:
    """Points along the frontier, one line each; words that all of them share stand above."""
    ordered = sorted(rows, key=lambda row: row["memory_bytes"])
    shown = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_POINTS)).round().astype(int)
    points = [ordered[i] for i in shown]  # the leanest and the fastest among them
    cells = [
        {
            "GB": f"{row['memory_bytes'] / GB:.1f}",
            "projected": f"{row['tokens_per_s_per_gpu']:,.0f}",
            "tok/s/GPU": f"{row[RATE]:,.0f}",
            "T/M": evidence_of(row),
            "configuration": "",
        }
        for row in points
    ]
    print_rows(console, cells, points)
