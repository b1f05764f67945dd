"""What `run` prints: the funnel, the ranking, and the frontier of memory against throughput.

Tables and plot fit 80 columns, carry no colour in a pipe, and say of each figure what it stands on.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any, TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable

from primus_search.candidates import COLUMN_NAMES, Ints
from primus_search.cost.confidence.coverage import in_words
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.memory.fit import SURELY
from primus_search.declare.framework_files import framework_names, load_framework
from primus_search.exploration.result import MEASURED, PROJECTED, RankingTable, SearchResult, exposed_comm_s, ladder
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.exploration.trials import Judge, values_of
from primus_search.report.console import Plain
from primus_search.report.labels import between, chance, counted, rests, short
from primus_search.units import GB

MOST_RULES = 12
MOST_POINTS = 12
PLOT_HEIGHT = 18
TIED = "="
"""Beside a rank: as fast as the first, as far as one run of each could tell."""
SHOWN_SHARE = 0.015
"""Share of the step, or of the memory, below which a part is left to `explain`."""
MARKS: Mapping[str, str] = {".": "projected", "t": "memory traced", "m": "time measured"}
"""Points of the plot by what they stand on."""
CHOSEN = "#"
UNLIKE = "Measured, traced and projected figures are not compared; each kind of evidence has its own frontier."
EVIDENCE = "T/M: what time and memory stand on (p projected, t traced with torch, m measured on a device)."
SPARED = ("comm", "MFU", "bubble", "T/M", "90 %", "fits")
"""Columns of the ranking that a narrow window leaves out, first to last."""
CONFIGURATION_WIDTH = 20
"""Least width of the configuration, which may wrap: with it the ranking fits 80 columns."""


def print_ranking(result: SearchResult, stream: TextIO | None = None, *, token_budget: float = 0.0) -> None:
    """The question, the funnel, and the best candidates; of several clusters the best one's, and the scaling table."""
    console = Plain(stream)
    space = result.space
    cluster = result.best.choice.cluster
    several = f"the best of {len(result.clusters)} clusters, " if len(result.clusters) > 1 else ""
    console.print(
        f"{space.name}: {several}{counted(cluster.num_nodes, 'node')} x {cluster.network.gpus_per_node} "
        f"{cluster.accelerator.name}, stack {cluster.stack.title}, sequence {space.workload.seq_length}, "
        f"global batch {space.workload.global_batch_size}"
    )
    console.print(_framework(result))
    console.print(_funnel(result))
    console.print(_removed(result))
    _print_ranking_table(console, _ranking(result))
    for line in _unstarted(result):
        console.print(line)
    console.print(_confidence(result.ranking))
    console.print(_parts(result.ranking))
    console.print(f"First row, {in_words(result.ranking.coverage)}")
    console.print(_evidence(result))
    if len(result.clusters) > 1:
        console.print(f"Ranks are those of ranking.csv, over all {len(result.clusters)} clusters.")
    if len(result.clusters) > 1 or token_budget:
        console.print(_ladder(result, token_budget))


def print_pareto(result: SearchResult, stream: TextIO | None = None) -> None:
    """The frontier as a plot with the winner marked, then points along it as a table."""
    best = result.ranking.row(0) if len(result.ranking) else None
    _print_frontier(list(result.frontier.rows()), best, stream or sys.stdout)


def print_saved_frontier(run: SavedRun, stream: TextIO | None = None) -> None:
    """The frontier of a run folder, as `print_pareto` prints it: of several clusters that of the best."""
    best = run.ranking[0]
    names = list(takewhile(lambda name: name != COLUMN_NAMES[0], best))  # what tells clusters apart comes first
    mine = [row for row in run.frontier if all(row[name] == best[name] for name in names)]
    _print_frontier(mine, best, stream or sys.stdout)
    Plain(stream).print(EVIDENCE)
    if len(mine) < len(run.frontier):
        where = ", ".join(
            f"{name}={best[name]:g}" if isinstance(best[name], float) else f"{name}={best[name]}" for name in names
        )
        Plain(stream).print(f"This is the frontier of {where}; pareto.csv has those of the other clusters as well.")


def _print_frontier(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, stream: TextIO) -> None:
    if not rows:
        return
    width = shutil.get_terminal_size((80, 24)).columns
    stream.write(plot(rows, best, min(width, 100)) + "\n")
    Plain(stream).print(_frontier(rows))
    if len({_evidence_of(row) for row in rows}) > 1:
        Plain(stream).print(UNLIKE)


def plot(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, width: int) -> str:
    """Memory per GPU (GB, across) against tokens/s/GPU (up), as text."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, PLOT_HEIGHT)
    marked = {mark: [row for row in rows if _mark(row) == mark] for mark in MARKS}
    marked |= {CHOSEN: [best] if best else []}
    for mark, points in marked.items():
        if points:
            memory = [row["memory_bytes"] / GB for row in points]
            figure.draw(figure.signal(memory, [row["tokens_per_s_per_gpu"] for row in points], marker=mark))
    figure.title(
        "frontier: "
        + "  ".join(f"{mark} {word}" for mark, word in MARKS.items() if marked[mark])
        + f"  {CHOSEN} chosen"
    )
    figure.label("memory per GPU, GB", axis="x")
    figure.label("tokens/s/GPU", axis="y")
    return str(plotext.uncolorize(str(figure.build())))


def _mark(row: Mapping[str, Any]) -> str:
    """What a point of the plot stands on, as a key of `MARKS`."""
    if row["time_evidence"] == MEASURED:
        return "m"
    return "." if row["memory_evidence"] == PROJECTED else "t"


def _framework(result: SearchResult) -> str:
    """What starts the jobs that are ranked, and how to choose another."""
    choice = result.best.choice
    why = f"assumed on {choice.cluster.accelerator.name}; --framework changes it" if choice.is_framework_assumed else ""
    said = " or ".join(dict.fromkeys(one.choice.framework.title for one in result.clusters))
    return f"Framework: {said}" + (f" ({why})." if why else ".")


def _unstarted(result: SearchResult) -> list[str]:
    """Of a search over any framework: which of the rows shown no framework can start."""
    best = result.best
    if not best.choice.framework.is_any:
        return []
    vendor = best.choice.cluster.accelerator.vendor
    known = [load_framework(name) for name in framework_names()]
    judges = [
        Judge(result.space, replace(best.choice, framework=one))
        for one in known
        if not one.is_any and one.runs_on(vendor)
    ]
    rows = min(len(best.ranking), result.space.search.top_k)
    lost = [
        str(row + 1)
        for row in range(rows)
        if all(judge.broken(values_of(best.ranking.candidates, row)) for judge in judges)
    ]
    if not judges or not lost:
        return []
    names = ", ".join(judge.choice.framework.name for judge in judges)
    return [f"No framework ({names}) can start rows {', '.join(lost)}; --framework NAME ranks what one can start."]


def _funnel(result: SearchResult) -> RichTable:
    table = _table("stage", "rows", "seconds", "rows/s/core")
    for stage in result.stages:
        table.add_row(stage.name, f"{stage.rows:,}", f"{stage.seconds:.2f}", f"{stage.rows_per_s:,.0f}")
    return table


def _removed(result: SearchResult) -> str:
    removed = sorted(((n, name) for name, n in result.removed.items() if n), key=lambda pair: (-pair[0], pair[1]))
    said = ", ".join(f"{name} {n:,}" for n, name in removed[:MOST_RULES])
    more = f", and {counted(len(removed) - MOST_RULES, 'rule')} more" if len(removed) > MOST_RULES else ""
    counts = f"{result.raw:,} in the grid, {result.legal:,} legal, {result.feasible:,} fit in memory."
    return f"{counts}\nRemoved by rule: {said or 'none'}{more}."


def _print_ranking_table(console: Plain, rows: Sequence[Mapping[str, str]]) -> None:
    """The best rows; a window too narrow for every column loses the least needed ones, and is told so."""
    widths = {
        name: max(cell_len(line) for row in rows for line in f"{name}\n{row[name]}".split("\n")) for name in rows[0]
    }
    widths["configuration"] = CONFIGURATION_WIDTH
    left_out: list[str] = []
    for name in SPARED:
        if sum(widths.values()) + len(widths) + 1 > console.width:  # a blank before each column, one at the end
            left_out.append(name)
            del widths[name]
    table = _table(*widths)
    for row in rows:
        table.add_row(*(row[name] for name in widths))
    console.print(table)
    if left_out:
        console.print(f"{console.width} columns have no room for: {', '.join(left_out)}.")


def _ranking(result: SearchResult) -> list[dict[str, str]]:
    """Cells of the best cluster's best rows by the heading of their column."""
    ranking, top = result.ranking, result.space.search.top_k
    p, sure = ranking.projection, ranking.confidence
    comm = exposed_comm_s(p) / p.step.total
    places = _places(result)
    return [
        {
            "#": f"{places[rank]}{TIED if rank and row['ties_with_best'] else ''}",
            "configuration": short(row),
            "tok/s/GPU": f"{row['tokens_per_s_per_gpu']:,.0f}",
            "90 %": between(sure.low[rank], sure.high[rank]),
            "GB": f"{row['memory_bytes'] / GB:.0f}",
            "fits": f"{chance(sure.fits[rank])}\n{row['memory_verdict']}",
            "bubble": f"{row['bubble_ratio']:z.1%}",
            "comm": f"{comm[rank]:.0%}",
            "MFU": f"{row['mfu']:.0%}",
            "T/M": _evidence_of(row),
        }
        for rank, row in ((rank, ranking.row(rank)) for rank in range(min(top, len(ranking))))
    ]


def _places(result: SearchResult) -> Ints:
    """Rank in ranking.csv, from 1, of each row of the best cluster."""
    if len(result.clusters) == 1:
        return np.arange(1, len(result.ranking) + 1)
    tables = [one.ranking for one in result.clusters]
    rate = np.concatenate([table.projection.__getattribute__(result.space.search.objective) for table in tables])
    is_projected = np.array([word != MEASURED for table in tables for word in table.time_evidence])
    is_lost = np.concatenate([table.is_lost for table in tables])
    place = np.empty(len(rate), dtype=np.int64)
    place[np.lexsort((-rate, is_projected, is_lost))] = np.arange(1, len(rate) + 1)
    first = sum(len(table) for table in tables[: result.clusters.index(result.best)])
    return place[first : first + len(result.ranking)]


def _confidence(ranking: RankingTable) -> str:
    """What the columns `90 %` and `fits` and the mark of a tie stand on."""
    sure = ranking.confidence
    tied = int(sure.ties_with_best.sum())
    return (
        f"90 %: interval of tok/s/GPU, from {rests(sure)}. fits: probability that it runs in device memory, "
        f"FITS from {SURELY:.0%}, AT RISK below; candidates predicted to run out of memory are not listed. "
        f"{TIED} ties with #1 (within {TIE:.0%}, normal run-to-run noise): {tied:,} of {len(ranking):,} candidates."
    )


def _parts(ranking: RankingTable) -> str:
    """Where the step and the memory of the first row go, largest first."""
    step, memory = (
        {f.name.replace("_", " "): float(parts.__getattribute__(f.name)[0]) for f in fields(parts)}
        for parts in (ranking.projection.step, ranking.projection.memory)
    )
    seconds, held = sum(step.values()), sum(memory.values())
    times = [f"{name} {part / seconds:.0%}" for name, part in _largest(step) if part > SHOWN_SHARE * seconds]
    sizes = [f"{name} {part / GB:.1f}" for name, part in _largest(memory) if part > SHOWN_SHARE * held]
    return f"First row, {seconds:.3f} s of step: {', '.join(times)}. {held / GB:.1f} GB of memory: {', '.join(sizes)}."


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -item[1])


def _evidence(result: SearchResult) -> str:
    kind = "the exact optimum of the model" if result.exact else "the best found"
    lines = [
        EVIDENCE,
        f"This is {kind} ({result.method}: {result.method_reason}).",
    ]
    if not result.is_complete:
        lines.append("The search stopped before the whole space was seen.")
    return "\n".join([*lines, *result.space.notes, *result.notes])


def _evidence_of(row: Mapping[str, Any]) -> str:
    """`m/t`: time measured, memory traced."""
    return f"{row['time_evidence'][0]}/{row['memory_evidence'][0]}"


def _frontier(rows: Sequence[Mapping[str, Any]]) -> RichTable:
    table = _table("GB", "tok/s/GPU", "T/M", "configuration")
    ordered = sorted(rows, key=lambda row: row["memory_bytes"])
    shown = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_POINTS)).round().astype(int)
    for row in (ordered[i] for i in shown):  # the leanest and the fastest among them
        figures = (f"{row['memory_bytes'] / GB:.1f}", f"{row['tokens_per_s_per_gpu']:,.0f}", _evidence_of(row))
        table.add_row(*figures, short(row))
    return table


def _ladder(result: SearchResult, token_budget: float) -> RichTable:
    """The scaling table; with a token budget how long and how many GPU hours it takes, with a price what it costs."""
    rungs = ladder(result, token_budget)
    is_priced = any(rung.cost_USD for rung in rungs)
    budget = ("days", "GPU hours", *(("USD",) if is_priced else ())) if token_budget else ()
    table = _table("cluster", "GPUs", "tokens/s", "tok/s/GPU", "efficiency", *budget)
    for rung in rungs:
        name = ", ".join(f"{key}={value}" for key, value in rung.labels) or counted(rung.nodes, "node")
        cells = (f"{rung.days:,.1f}", f"{rung.gpu_hours:,.0f}", f"{rung.cost_USD:,.0f}")
        table.add_row(
            name, f"{rung.world:,}", f"{rung.tokens_per_s:,.0f}", f"{rung.tokens_per_s_per_gpu:,.0f}",
            f"{rung.efficiency:.1%}", *cells[: len(budget)],
        )  # fmt: skip
    return table


def _table(*columns: str) -> RichTable:
    # The divider is a blank, and enough: in 80 columns rich drops the last ones of a table that does not fit.
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        is_text = name in ("configuration", "stage", "cluster", "T/M")
        # A configuration or a cluster is words and may wrap; figures may not.
        table.add_column(
            name,
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=name not in ("configuration", "cluster"),
            min_width=CONFIGURATION_WIDTH if name == "configuration" else None,
        )
    return table
