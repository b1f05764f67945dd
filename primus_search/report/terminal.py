"""What `run` prints: requested details, the scaling table of several clusters, last the first screen.

Tables and plot fit 80 columns, carry no colour in a pipe, and say of each figure what it stands on.

The progress of a search, on standard error: the best candidates so far, and how far it has come.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from primus_search.analysis.answer import answer_of
from primus_search.analysis.labels import between, chance, evidence_of, rests, short
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.cost.confidence.fit import FIT_THRESHOLD
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.exhaustive.collect import Leader, Progress, Tick, silent
from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import figures_of
from primus_search.exploration.ranking_table import RUN, RankingTable
from primus_search.exploration.result import SearchResult, is_on
from primus_search.launch.write.launch_files import refusal_of
from primus_search.report import plain_tables as tables
from primus_search.report.first_screen import first_screen
from primus_search.report.frontier_text import EVIDENCE, print_frontier
from primus_search.report.scaling_text import scaling_lines

SHOWN_SHARE = 0.015  # share of the step, or of the memory, below which a part is left to `explain`

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How much of a result is printed.

    folder      of the run, for the commands that are printed; "" for the last run
    is_raw      the ranking row by row as well
    is_verbose  the frontier, where step and memory go, stages of the funnel and every rule as well
    """

    folder: str = ""
    is_raw: bool = False
    is_verbose: bool = False


def print_result(result: SearchResult, view: View | None = None, stream: TextIO | None = None) -> None:
    """The requested details, then the first screen."""
    view = view or View()
    console = tables.Plain(stream)
    rows = result.ranked_rows
    if view.is_raw or view.is_verbose:
        ranks = [rank for rank, row in enumerate(rows, start=1) if is_on(row, result.best.choice)]
        first = result.space.search.top_k
        ranks = [rank for i, rank in enumerate(ranks) if i < first or rows[rank - 1]["time_evidence"] == RUN]
        print_ranked(console, ranks, [rows[rank - 1] for rank in ranks])
        _print_evidence(console, result, view, len(rows))
    if view.is_verbose:
        print_frontier(result, stream)
    table = scaling_lines(result, is_verbose=view.is_verbose) if len(result.clusters) > 1 else []
    for line in [*table, *([""] if table else [])]:
        console.print(line, soft_wrap=True)
    refusal = refusal_of(result.space, result.best.choice, rows[0]) if rows else ""
    for line in first_screen(
        result.answer or answer_of(result), view.folder, result.baseline, refusal, above=len(table) + bool(table)
    ):
        console.print(line, soft_wrap=True)


# --- evidence and legend ---------------------------------------------------------------------------------------------


def _print_evidence(console: tables.Plain, result: SearchResult, view: View, listed: int) -> None:
    """Where the figures come from and what the words of the tables mean."""
    console.print(_parts(result.ranking))
    if view.is_verbose:
        rows = ((s.name, f"{s.rows:,}", f"{s.seconds:.2f}", f"{s.rows_per_s:,.0f}") for s in result.stages)
        console.print(tables.table("stage", "rows", "seconds", "rows/s/core", rows=rows))
    sure = result.ranking.confidence
    values = {"tied": int(sure.ties_with_best.sum()), "source": rests(sure), "fit": FIT_THRESHOLD, "tie": TIE}
    removed = sorted(((n, name) for name, n in result.removed.items() if n), key=lambda pair: (-pair[0], pair[1]))
    text = rendered(
        "evidence.txt", result=result, is_verbose=view.is_verbose, removed=removed, listed=listed, tied_mark=TIED,
        evidence=EVIDENCE, **values,
    )  # fmt: skip
    console.print(text, end="")


def _parts(ranking: RankingTable) -> str:
    """Where the step and the memory of the first row go, largest first."""
    of = figures_of(ranking.projection, 0)
    times = [f"{name} {part / of.step_s:.0%}" for name, part in _largest(of.step, of.step_s)]
    sizes = [f"{name} {part / GB:.1f}" for name, part in _largest(of.memory, of.memory_bytes)]
    held = f"{of.memory_bytes / GB:.1f} GB of memory"
    return f"First row, {of.step_s:.3f} s of step: {', '.join(times)}. {held}: {', '.join(sizes)}."


def _largest(parts: Mapping[str, float], whole: float) -> list[tuple[str, float]]:
    shown = [(name.replace("_", " "), part) for name, part in parts.items() if part > SHOWN_SHARE * whole]
    return sorted(shown, key=lambda item: -item[1])


TIED = "="  # beside a rank: as fast as the first, as far as one run of each could tell
RAN = "r"  # beside a rank: an own run, at its measured rate
SPARED = ("MFU", "T/M", "bubble", "projected", "90 %", "fits")  # columns that a narrow window leaves out, first to last


def print_ranked(console: tables.Plain, ranks: Sequence[int], rows: Sequence[Row]) -> None:
    """Rows as they are ranked; words that all of them share stand above the table."""
    tables.print_rows(console, [_cells(rank, row) for rank, row in zip(ranks, rows, strict=True)], rows, SPARED)


def _cells(rank: int, row: Row) -> dict[str, str]:
    """Cells of a row by heading."""
    return {
        "#": f"{rank}{TIED if rank > 1 and row['ties_with_best'] else ''}{RAN if row['time_evidence'] == RUN else ''}",
        "configuration": "",
        "tok/s/GPU": f"{row[RATE]:,.0f}",
        "90 %": between(row["tokens_per_s_per_gpu_low"], row["tokens_per_s_per_gpu_high"]),
        "projected": f"{row['tokens_per_s_per_gpu']:,.0f}",
        "GB": f"{row['memory_bytes'] / GB:.0f}",
        "fits": chance(row["fit_probability"]),
        "bubble": f"{row['bubble_ratio']:z.1%}",
        "MFU": f"{row['mfu']:.0%}",
        "T/M": evidence_of(row),
    }


@contextmanager
def progress_bar(*, is_shown: bool) -> Iterator[Progress]:
    """A callback that draws; on a pipe or with `is_shown` False it stays silent."""
    if not is_shown or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    fields = TextColumn("{task.fields[funnel]}"), TextColumn("{task.fields[rate]}")
    bar = Bar(BarColumn(), MofNCompleteColumn(), *fields, TimeRemainingColumn())
    number = bar.add_task("search", total=None, funnel="", rate="")
    # No refresh thread: worker processes are forked, and a fork must not copy a lock that a thread holds.
    with Live(bar, console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def draw(tick: Tick) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{tick.rows_done / elapsed:,.0f}/s" if elapsed else ""
            funnel = f"legal {tick.legal:,} > fits {tick.feasible:,} > projected {tick.projected:,}"
            bar.update(number, completed=tick.rows_done, total=tick.rows_total, funnel=funnel, rate=rate)
            live.update(Group(best_so_far(tick.leaders()), bar), refresh=True)

        yield draw


def best_so_far(leaders: Sequence[Leader]) -> RichTable:
    """The ranking as far as it is known."""
    found = RichTable("#", "best so far", "projected tok/s/GPU", "GB", box=SIMPLE_HEAD)
    sizes = {leader.num_gpus for leader in leaders}
    for rank, leader in enumerate(leaders, start=1):
        where = f"{leader.num_gpus} GPUs " if len(sizes) > 1 else ""
        figures = (f"{leader.tokens_per_s_per_gpu:,.0f}", f"{leader.memory_bytes / GB:.1f}")
        found.add_row(str(rank), where + short(leader.knobs), *figures)
    return found
