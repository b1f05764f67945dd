"""Tables of a catalogue: fitted to a terminal, plain and never cut in a pipe."""

import sys
from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> None:
    """Print a table; columns in `numbers` are right-aligned. The last column wraps on a terminal, and only there."""
    if sys.stdout.isatty():
        _print_fitted(header, rows, numbers)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = [
            cell.rjust(w) if i in numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _print_fitted(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> None:
    from rich import box
    from rich.table import Table

    from primus_search.report.console import Plain

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(header):
        is_last = i == len(header) - 1
        table.add_column(title, justify="right" if i in numbers else "left", overflow="fold", no_wrap=not is_last)
    for row in rows:
        table.add_row(*row)
    Plain().print(table)
