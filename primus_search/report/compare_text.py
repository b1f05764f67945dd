"""What `compare` prints."""

from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Group
from rich.table import Table as RichTable

from primus_search.analysis.labels import ROUNDING
from primus_search.analysis.run_comparison import Comparison
from primus_search.base.guards.files import table_beside
from primus_search.base.units import GB
from primus_search.report.plain_tables import Plain, table
from primus_search.values.candidates import spoken

MOST_INPUTS = 40
MOST_SHOWN = 60
HASH_SHOWN = 16  # characters of a value; the first of a hash tell it from another
HEADINGS: Mapping[str, str] = table_beside(__file__)
"""How a figure is headed, where not by its name."""


def print_comparison(c: Comparison, stream: TextIO) -> None:
    """What changed, then why."""
    console = Plain(stream)
    console.print(f"A: {c.a}\nB: {c.b}")
    for part in (_figures, _winner, _inputs, _moved):
        console.print(part(c))


def _figures(c: Comparison) -> RichTable:
    rows = []
    for name, (a, b) in c.figures.items():
        scale = GB if name.endswith("_bytes") else 1.0
        # Of a ratio that is nothing but rounding, how often as large it became says nothing.
        a, b = (0.0 if abs(value) < ROUNDING else value for value in (a, b))
        change = f"{b / a - 1.0:+.1%}" if a else ""
        rows.append((HEADINGS.get(name, name.replace("_", " ")), _number(a / scale), _number(b / scale), change))
    return _sides("best of each run", "A", "B", "change", rows=rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _winner(c: Comparison) -> Group | str:
    if not c.winner:
        return "The same configuration wins."
    rows = ((name, spoken(a), spoken(b)) for name, (a, b) in c.winner.items())
    return Group(_sides("the winner's", "A", "B", are_words=True, rows=rows))


def _inputs(c: Comparison) -> Group | str:
    if not c.inputs:
        return "Inputs, versions and settings are the same."
    rows = []
    for one in c.inputs[:MOST_INPUTS]:
        most = HASH_SHOWN if one.what.endswith("sha256") else MOST_SHOWN
        rows.append((one.what, _cut(one.a, most), _cut(one.b, most)))
    more = len(c.inputs) - MOST_INPUTS
    found = _sides("input", "A", "B", are_words=True, rows=rows)
    return Group(found, *([f"and {more} more (--json shows all)"] if more > 0 else []))


def _cut(value: object, most: int) -> str:
    text = spoken(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _moved(c: Comparison) -> Group:
    lines: list[str] = []
    if c.recorded is not None and abs(c.recorded[1] / c.recorded[0] - 1.0) > 1e-9:
        change = c.recorded[1] / c.recorded[0] - 1.0
        lines.append(f"A recorded {c.recorded[0]:,.1f} tokens/s/GPU; today's code says {change:+.2%} with A's inputs.")
    if c.unexplained:
        return Group(*lines, c.unexplained)
    if not c.moved:
        return Group(*lines, "No input that moves a figure differs.")
    rows = [("A's winner under A's inputs", f"{c.moved[0].before:,.1f}", "")]
    for one in c.moved:
        after = "not legal" if one.after is None else f"{one.after:,.1f}"
        rows.append((one.group, after, "" if one.change is None else f"{one.change:+.2%}"))
    found = _sides("what moved the number", "tokens/s/GPU", "change", rows=rows)
    last = "B's inputs are put in one after the other; the last line is B's winner where it differs."
    return Group(*lines, found, last)


def _sides(*columns: str, are_words: bool = False, rows: Iterable[Iterable[str]] = ()) -> RichTable:
    return table(*columns, left=columns if are_words else columns[:1], wrapped=columns[1:], rows=rows)
