"""What `compare` prints."""

from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table as RichTable

from primus_search.report.compare import Comparison
from primus_search.report.trials import spoken
from primus_search.units import GB

MOST_INPUTS = 40
BYTES = ("memory_bytes", "headroom_bytes")
NOTHING = 1e-9
"""A share below this is rounding: how often as large it became says nothing."""


def print_comparison(c: Comparison, stream: TextIO) -> None:
    """What changed, then why."""
    console = Console(file=stream, highlight=False)
    console.print(f"A: {escape(c.a)}\nB: {escape(c.b)}")
    console.print(_figures(c))
    console.print(_winner(c))
    console.print(_inputs(c))
    console.print(_moved(c))


def _figures(c: Comparison) -> RichTable:
    table = _table("best of each run", "A", "B", "change")
    for name, (a, b) in c.figures.items():
        scale, unit = (GB, " GB") if name in BYTES else (1.0, "")
        is_small = abs(a) < NOTHING and abs(b) < 1.0
        change = "" if a == 0 or is_small else f"{b / a - 1.0:+.1%}"
        label = name.removesuffix("_bytes") if unit else name
        table.add_row(f"{label.replace('_', ' ')}{unit}", _number(a / scale), _number(b / scale), change)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _winner(c: Comparison) -> Group | str:
    if not c.winner:
        return "The same configuration wins."
    table = _table("the winner's", "A", "B")
    for name, (a, b) in c.winner.items():
        table.add_row(name, escape(spoken(a)), escape(spoken(b)))
    return Group(table)


def _inputs(c: Comparison) -> Group | str:
    if not c.inputs:
        return "Inputs, versions and settings are the same."
    table = _table("input", "A", "B")
    for one in c.inputs[:MOST_INPUTS]:
        table.add_row(escape(one.what), escape(_cut(one.a)), escape(_cut(one.b)))
    more = len(c.inputs) - MOST_INPUTS
    return Group(table, *([f"and {more} more (--json shows all)"] if more > 0 else []))


def _cut(value: object, most: int = 60) -> str:
    text = spoken(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _moved(c: Comparison) -> Group:
    lines: list[str] = []
    if c.recorded is not None and abs(c.recorded[1] / c.recorded[0] - 1.0) > 1e-9:
        change = c.recorded[1] / c.recorded[0] - 1.0
        lines.append(f"A recorded {c.recorded[0]:,.1f} tokens/s/GPU; today's code says {change:+.2%} with A's inputs.")
    if c.unexplained:
        return Group(*lines, escape(c.unexplained))
    if not c.moved:
        return Group(*lines, "No input that moves a figure differs.")
    table = _table("what moved the number", "tokens/s/GPU", "change")
    table.add_row("A's winner under A's inputs", f"{c.moved[0].before:,.1f}", "")
    for one in c.moved:
        after = "not legal" if one.after is None else f"{one.after:,.1f}"
        share = "" if one.change is None else f"{one.change:+.2%}"
        table.add_row(escape(one.group), after, share)
    return Group(
        *lines, table, "B's inputs are put in one after the other; the last line is B's winner where it differs."
    )


def _table(*columns: str) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    return table
