"""What `run` prints: the funnel, the ranking, and the frontier of memory against throughput.

Tables and plot fit 80 columns, carry no colour in a pipe, and say of each figure what it stands on.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from primus_search.cost.coverage import coverage, in_words
from primus_search.cost.memory.fit import SURELY
from primus_search.cost.uncertainty import TIE
from primus_search.declare.ranges import load_ranges
from primus_search.report.words import between, chance, short
from primus_search.search.result import SearchResult, Table, exposed_comm_s, ladder
from primus_search.search.saved import SavedRun
from primus_search.units import GB

MOST_RULES = 12
MOST_POINTS = 12
PLOT_HEIGHT = 18
TIED = "="
"""Beside a rank: as fast as the first, as far as one run of each could tell."""
CONFIGURATION_WIDTH = 24
"""Least width of the configuration, which may wrap: with it the ranking fits 80 columns."""


def print_ranking(result: SearchResult, stream: TextIO | None = None) -> None:
    """The question, the funnel, and the best candidates."""
    # No markup: a name or a constraint of a space file may hold brackets.
    console = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)
    space = result.space
    cluster = result.best.choice.cluster
    console.print(
        f"{space.name}: {cluster.num_nodes} nodes x {cluster.network.gpus_per_node} "
        f"{cluster.accelerator.name}, stack {cluster.stack.name}, sequence {space.workload.seq_length}, "
        f"global batch {space.workload.global_batch_size}"
    )
    console.print(_funnel(result))
    console.print(_removed(result))
    console.print(_ranking(result.ranking, result.space.search.top_k))
    console.print(_confidence(result.ranking))
    console.print(_coverage(result))
    console.print(_evidence(result))
    if len(result.clusters) > 1:
        console.print(_ladder(result))


def print_pareto(result: SearchResult, stream: TextIO | None = None) -> None:
    """The frontier as a plot with the winner marked, then points along it as a table."""
    best = result.ranking.row(0) if len(result.ranking) else None
    _print_frontier(list(result.frontier.rows()), best, stream or sys.stdout)


def print_saved_frontier(run: SavedRun, stream: TextIO | None = None) -> None:
    """The frontier of a run folder, as `print_pareto` prints it."""
    _print_frontier(list(run.frontier), run.ranking[0] if run.ranking else None, stream or sys.stdout)


def _print_frontier(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, stream: TextIO) -> None:
    if not rows:
        return
    width = shutil.get_terminal_size((80, 24)).columns
    stream.write(plot(rows, best, min(width, 100)) + "\n")
    Console(file=stream, highlight=False, markup=False, emoji=False).print(_frontier(rows))


def plot(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, width: int) -> str:
    """Memory per GPU (GB, across) against tokens/s/GPU (up), as text."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, PLOT_HEIGHT)
    for points, marker in ((rows, "."), ([best] if best else [], "#")):
        if points:
            memory = [row["memory_bytes"] / GB for row in points]
            figure.draw(figure.signal(memory, [row["tokens_per_s_per_gpu"] for row in points], marker=marker))
    figure.title("frontier: . non-dominated  # chosen")
    figure.label("memory per GPU, GB", axis="x")
    figure.label("tokens/s/GPU", axis="y")
    return str(plotext.uncolorize(str(figure.build())))


def _funnel(result: SearchResult) -> RichTable:
    table = _table("stage", "rows", "seconds", "rows/s/core")
    for stage in result.stages:
        table.add_row(stage.name, f"{stage.rows:,}", f"{stage.seconds:.2f}", f"{stage.rows_per_s:,.0f}")
    return table


def _removed(result: SearchResult) -> str:
    removed = sorted(((n, name) for name, n in result.removed.items() if n), key=lambda pair: (-pair[0], pair[1]))
    said = ", ".join(f"{name} {n:,}" for n, name in removed[:MOST_RULES])
    more = f", and {len(removed) - MOST_RULES} rules more" if len(removed) > MOST_RULES else ""
    counts = f"{result.raw:,} in the grid, {result.legal:,} legal, {result.feasible:,} fit in memory."
    return f"{counts}\nRemoved by rule: {said or 'none'}{more}."


def _ranking(ranking: Table, top: int) -> RichTable:
    table = _table("#", "configuration", "tok/s/GPU", "90 %", "GB", "fits", "bubble", "comm", "MFU", "T/M")
    p, sure = ranking.projection, ranking.confidence
    comm = exposed_comm_s(p) / p.step.total
    for rank in range(min(top, len(ranking))):
        row = ranking.row(rank)
        tied = TIED if rank and row["ties_with_best"] else ""
        table.add_row(
            f"{rank + 1}{tied}", short(row), f"{row['tokens_per_s_per_gpu']:,.0f}",
            between(sure.low[rank], sure.high[rank]), f"{row['memory_bytes'] / GB:.0f}",
            f"{chance(sure.fits[rank])}\n{row['memory_verdict']}",
            f"{row['bubble_ratio']:.1%}", f"{comm[rank]:.0%}", f"{row['mfu']:.0%}",
            f"{row['time_evidence'][0]}/{row['memory_evidence'][0]}",
        )  # fmt: skip
    return table


def _confidence(ranking: Table) -> str:
    """What the columns `90 %` and `fits` and the mark of a tie stand on."""
    sure = ranking.confidence
    rests = f"{sure.runs:.0f} runs left out of its fit" if sure.runs else "no run at all"
    tied = int(sure.ties_with_best.sum())
    return (
        f"90 %: interval of tok/s/GPU, resting on {rests}. fits: probability that it runs in device memory, FITS from "
        f"{SURELY:.0%}, AT RISK below; what is projected to run out is not ranked. {TIED}: as good as the first; "
        f"{tied:,} of {len(ranking):,} rows lie within {TIE:.0%} of it, the noise between two runs of one job."
    )


def _coverage(result: SearchResult) -> str:
    """Which parts of the first row's projection rest on measured ranges."""
    space, table = result.space, result.ranking
    memory_bytes = float(table.projection.memory.total[0])
    first = table.candidates.take(slice(0, 1))
    parts = coverage(space.model, table.choice.cluster, space.workload, first, memory_bytes, load_ranges())
    return f"First row, {in_words(parts)}"


def _evidence(result: SearchResult) -> str:
    kind = "the exact optimum of the model" if result.exact else "the best found"
    lines = [
        "T/M: what time and memory stand on (p projected, t traced with torch, m measured on a device).",
        f"This is {kind} ({result.method}: {result.method_reason}).",
    ]
    if not result.is_complete:
        lines.append("The search stopped before the whole space was seen.")
    return "\n".join([*lines, *result.notes])


def _frontier(rows: Sequence[Mapping[str, Any]]) -> RichTable:
    table = _table("GB", "tok/s/GPU", "configuration")
    ordered = sorted(rows, key=lambda row: row["memory_bytes"])
    stride = max(1, -(-len(ordered) // MOST_POINTS))
    for row in ordered[::-1][::stride][::-1]:  # from the fast end, so that the fastest is always shown
        table.add_row(f"{row['memory_bytes'] / GB:.1f}", f"{row['tokens_per_s_per_gpu']:,.0f}", short(row))
    return table


def _ladder(result: SearchResult) -> RichTable:
    table = _table("cluster", "GPUs", "tokens/s", "tok/s/GPU", "efficiency")
    for rung in ladder(result):
        name = ", ".join(f"{key}={value}" for key, value in rung.labels)
        table.add_row(
            name, f"{rung.world:,}", f"{rung.tokens_per_s:,.0f}", f"{rung.tokens_per_s_per_gpu:,.0f}",
            f"{rung.efficiency:.1%}",
        )  # fmt: skip
    return table


def _table(*columns: str) -> RichTable:
    # The divider is a blank, and enough: in 80 columns rich drops the last ones of a table that does not fit.
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        is_text = name in ("configuration", "stage", "cluster", "T/M")
        # A configuration is words and may wrap; figures may not.
        table.add_column(
            name,
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=name != "configuration",
            min_width=CONFIGURATION_WIDTH if name == "configuration" else None,
        )
    return table
