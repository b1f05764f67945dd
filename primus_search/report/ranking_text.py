"""The ranking as tables of 80 columns, one line a row: the choices, or every row as it is ranked."""

from collections.abc import Mapping, Sequence
from typing import Any

from primus_search.analysis.choices import LAYOUT, ChoiceRow, words_of
from primus_search.analysis.labels import between, chance, evidence_of, factored
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.report.console import Plain
from primus_search.report.plain_tables import CONFIGURATION_WIDTH, print_rows, room_of, shortened, widths_of
from primus_search.values.knobs import KNOB

Row = Mapping[str, Any]

TIED = "="
"""Beside a rank: as fast as the first, as far as one run of each could tell."""
SPARED = ("MFU", "T/M", "bubble", "projected", "90 %", "fits")
"""Columns that a narrow window leaves out, first to last."""
LEAST_WORDS = 24
"""Width of the words that tell a choice from the first row, at least."""
MOST_WORDS = 30
"""Width that the words of a row take from its figures, at most."""
DIFFERENCE = "what differs"


def print_choices(console: Plain, chosen: Sequence[ChoiceRow]) -> None:
    """The choices: the first row's layout and knobs, then of each other row what differs from it, in words."""
    first = chosen[0].row
    cells = [_figures(choice.rank, choice.row) | {"vs #1": f"{choice.change:+.0%}" if index else ""}
             for index, choice in enumerate(chosen)]  # fmt: skip
    order = ("#", "layout", "tok/s/GPU", "vs #1", "GB", "fits", "90 %", "projected", "bubble", "MFU", "T/M")
    widths = widths_of([{"layout": layout_of(choice.row)} | one for choice, one in zip(chosen, cells, strict=True)])
    shown = [name for name in order if name in widths]
    for name in SPARED[:-1]:
        if room_of({name: widths[name] for name in shown}) + LEAST_WORDS + 1 > console.width:
            shown.remove(name)
    room = console.width - room_of({name: widths[name] for name in shown}) - 1
    rows = []
    for choice, one in zip(chosen, cells, strict=True):
        role = ", ".join(choice.roles)
        words = [] if choice.row is first else words_of(choice, first)
        if role:
            words = _with_role(role, words, max(room, LEAST_WORDS))
        told = shortened(words, max(room, LEAST_WORDS)) or ("as recommended" if choice.row is first else "layout alone")
        told = told if len(told) <= max(room, LEAST_WORDS) else f"{told[: max(room, LEAST_WORDS) - 1]}…"
        all_cells = {"layout": layout_of(choice.row)} | one | {DIFFERENCE: told}
        rows.append({name: all_cells[name] for name in (*shown, DIFFERENCE)})
    print_rows(console, rows)


def _with_role(role: str, words: Sequence[str], width: int) -> list[str]:
    """Words that begin with a role; the first word stands apart where both are too long for a line."""
    if not words:
        return [role]
    first = f"{role}: {words[0]}"
    return [first, *words[1:]] if len(first) + len(", +99") <= width else [role, *words]


def layout_of(row: Row) -> str:
    """Parallel degrees in words: `TP1 PP8x7 EP8`; a degree of 1 is left out but for TP and PP."""
    names = ("tp", "pp", *(name for name in LAYOUT if name not in ("tp", "pp")))
    degrees = {key: value for key, value in row.items() if key != "dp"}
    return " ".join(text for text in (KNOB[name].label_of(degrees) for name in names) if text)


def print_ranked(console: Plain, ranks: Sequence[int], rows: Sequence[Row]) -> None:
    """Rows as they are ranked; words that all of them share stand above the table."""
    shared, own = factored(rows)
    cells = [_figures(rank, row) | {"configuration": text} for rank, row, text in zip(ranks, rows, own, strict=True)]
    order = ("#", "configuration", "tok/s/GPU", "90 %", "projected", "GB", "fits", "bubble", "MFU", "T/M")
    widths = widths_of(cells)
    needed = min(widths["configuration"], MOST_WORDS)
    shown = list(order)
    for name in SPARED:
        if room_of({name: widths[name] for name in shown if name != "configuration"}) + needed + 1 > console.width:
            shown.remove(name)
    room = console.width - room_of({name: widths[name] for name in shown if name != "configuration"}) - 1
    for one, text in zip(cells, own, strict=True):
        one["configuration"] = shortened(text.split(" "), max(room, CONFIGURATION_WIDTH), " ")
    if shared:
        console.print(f"In every row: {shared}")
    print_rows(console, [{name: one[name] for name in shown} for one in cells])
    left_out = [name for name in SPARED if name not in shown]
    if left_out:
        console.print(f"{console.width} columns have no room for: {', '.join(left_out)}.")


def _figures(rank: int, row: Row) -> dict[str, str]:
    """Cells of a row by heading."""
    return {
        "#": f"{rank}{TIED if rank > 1 and row['ties_with_best'] else ''}",
        "tok/s/GPU": f"{row[RATE]:,.0f}",
        "projected": f"{row['tokens_per_s_per_gpu']:,.0f}",
        "90 %": between(row["tokens_per_s_per_gpu_low"], row["tokens_per_s_per_gpu_high"]),
        "GB": f"{row['memory_bytes'] / GB:.0f}",
        "fits": chance(row["fit_probability"]),
        "bubble": f"{row['bubble_ratio']:z.1%}",
        "MFU": f"{row['mfu']:.0%}",
        "T/M": evidence_of(row),
    }
