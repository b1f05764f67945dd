"""The ranking as a table of 80 columns, one line a row."""

from collections.abc import Mapping, Sequence
from typing import Any

from primus_search.analysis.labels import between, chance, evidence_of, factored
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.report.plain_tables import CONFIGURATION_WIDTH, Plain, print_rows, room_of, shortened, widths_of
from primus_search.values.knobs import KNOB, KNOBS, Kind

Row = Mapping[str, Any]

TIED = "="
"""Beside a rank: as fast as the first, as far as one run of each could tell."""
SPARED = ("MFU", "T/M", "bubble", "projected", "90 %", "fits")
"""Columns that a narrow window leaves out, first to last."""
MOST_WORDS = 30
"""Width that the words of a row take from its figures, at most."""


LAYOUT = tuple(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)


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
