"""The progress of a search, on standard error: the best candidates so far, and how far it has come."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from primus_search.base.units import GB
from primus_search.exploration.exhaustive.collect import Leader, Progress, Tick, silent

if TYPE_CHECKING:
    from rich.table import Table


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

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[funnel]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns)
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


def best_so_far(leaders: Sequence[Leader]) -> "Table":
    """The ranking as far as it is known."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from primus_search.analysis.labels import short

    table = Table("#", "best so far", "projected tok/s/GPU", "GB", box=SIMPLE_HEAD)
    sizes = {leader.num_gpus for leader in leaders}
    for rank, leader in enumerate(leaders, start=1):
        where = f"{leader.num_gpus} GPUs " if len(sizes) > 1 else ""
        figures = (f"{leader.tokens_per_s_per_gpu:,.0f}", f"{leader.memory_bytes / GB:.1f}")
        table.add_row(str(rank), where + short(leader.knobs), *figures)
    return table
