"""Tables of the terminal: figures to the right, words to the left, nothing cut off in 80 columns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from primus_search.analysis.labels import factored

CONFIGURATION, CONFIGURATION_WIDTH = "configuration", 20  # its least width; it may wrap where a window is narrow
MOST_WORDS = 30  # width that the words of a row take from its figures, at most
WORDS = ("configuration", "layout", "what differs", "stage", "cluster", "T/M")
MORE = "+"  # before the number of words that a line has no room for


class Plain(Console):
    """Shows text as it is: no markup (names and constraints may hold brackets), no emoji, no highlighting.

    A reader that goes away (`| head`) is a BrokenPipeError, as with any other output, not the end of the process: a
    search still has its folder to write.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(file=stream, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table(
    *columns: str,
    left: Collection[str] = WORDS,
    wrapped: Collection[str] = ("configuration", "cluster"),
    least: int = 0,
    rows: Iterable[Iterable[str]] = (),
) -> RichTable:
    """A table with these columns: those in `left` are words, those in `wrapped` may take several lines.

    least  characters of the configuration, whatever wraps
    """
    # The divider is a blank, and enough: in 80 columns rich drops the last ones of a table that does not fit.
    found = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        width = least if name == "configuration" else None
        justify: Literal["left", "right"] = "left" if name in left else "right"
        found.add_column(name, justify=justify, overflow="fold", no_wrap=name not in wrapped, min_width=width)
    for row in rows:
        found.add_row(*row)
    return found


def widths_of(rows: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Width that each column needs, its heading included."""
    return {name: max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in rows[0]}


def room_of(widths: Mapping[str, int]) -> int:
    """Columns of the screen that a table of these widths takes: a blank before each column, one at the end."""
    return sum(widths.values()) + len(widths) + 1


def shortened(words: Sequence[str], width: int, joint: str = ", ") -> str:
    """As many words as a line has room for, and how many more there are."""
    for shown in range(len(words), 0, -1):
        left = len(words) - shown
        text = joint.join([*words[:shown], *([f"{MORE}{left}"] if left else [])])
        if cell_len(text) <= width or shown == 1:
            return text
    return ""


def print_rows(
    console: Plain, cells: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]], spared: Sequence[str] = ()
) -> None:
    """A table of candidates: the words that all of `rows` share above it, the others of each in `configuration`.

    cells   of each row by heading, `configuration` at its place     spared   left out where there is no room, in order
    """
    shared, own = factored(rows)
    lines = [dict(one) | {CONFIGURATION: text} for one, text in zip(cells, own, strict=True)]
    widths, shown = widths_of(lines), list(cells[0])

    def room() -> int:
        return console.width - room_of({name: widths[name] for name in shown if name != CONFIGURATION}) - 1

    for name in spared:
        if room() < min(widths[CONFIGURATION], MOST_WORDS):
            shown.remove(name)
    for one, text in zip(lines, own, strict=True):
        one[CONFIGURATION] = shortened(text.split(" "), max(room(), CONFIGURATION_WIDTH), " ")
    if shared:
        console.print(f"In every row: {shared}")
    console.print(table(*shown, least=CONFIGURATION_WIDTH, rows=([one[name] for name in shown] for one in lines)))
    left_out = [name for name in spared if name not in shown]
    if left_out:
        console.print(f"{console.width} columns have no room for: {', '.join(left_out)}.")
