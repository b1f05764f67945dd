"""The progress bar of a search, on standard error: candidates looked at, what stages left, candidates per second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from primus_search.search.collect import Progress, Tick, silent


@contextmanager
def progress_bar(*, is_shown: bool) -> Iterator[Progress]:
    """A callback that draws; on a pipe or with `is_shown` False it stays silent."""
    if not is_shown or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[funnel]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    # No refresh thread: worker processes are forked, and a fork must not copy a lock that a thread holds.
    with Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        number = bar.add_task("search", total=None, funnel="", rate="")

        def draw(tick: Tick) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{tick.rows_done / elapsed:,.0f}/s" if elapsed else ""
            funnel = f"legal {tick.legal:,} > fits {tick.feasible:,} > projected {tick.projected:,}"
            bar.update(number, completed=tick.rows_done, total=tick.rows_total, funnel=funnel, rate=rate)
            bar.refresh()

        yield draw
