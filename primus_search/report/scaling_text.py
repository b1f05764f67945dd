"""The scaling table of several machines and sizes: rate with band, days, chance, cost, energy, side by side."""

import textwrap
from collections.abc import Callable, Mapping, Sequence

from primus_search.analysis.goals import assumptions
from primus_search.analysis.labels import between, chance, counted
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.exploration.result import SearchResult
from primus_search.exploration.scaling_table import OF_SIZE, Rung
from primus_search.space import Goal

WIDTH = 80
COLUMNS: Mapping[str, Callable[[Rung], str]] = {
    "machine": lambda rung: rung.device,
    "GPUs": lambda rung: f"{rung.world:,}",
    "tok/s/GPU": lambda rung: f"{rung.tokens_per_s_per_gpu:,.0f}",
    "90 %": lambda rung: between(rung.low, rung.high),
    "scaling": lambda rung: f"{rung.efficiency:.0%}",
    "goodput": lambda rung: f"{rung.goodput:.1%}{'?' if rung.mtbf_is_assumed else ''}",
    "days": lambda rung: f"{rung.days:,.1f}",
    "in time": lambda rung: chance(rung.chance),
    "GPU hours": lambda rung: f"{rung.gpu_hours:,.0f}",
    "M USD": lambda rung: f"{rung.cost_USD / 1e6:,.3g}" if rung.cost_USD else "-",
    "MWh": lambda rung: f"{rung.energy_MWh:,.4g}" if rung.energy_MWh else "-",
    "J/token": lambda rung: f"{rung.joules_per_token:,.3g}" if rung.joules_per_token else "-",
}
WORDS = ("machine",)
SPARED = ("GPU hours", "90 %", "scaling", "goodput")
"""Columns that 80 characters leave out where others need the room, first to last."""


def scaling_lines(result: SearchResult, *, is_verbose: bool = False) -> list[str]:
    """The table, `>` before the recommended cluster; with `is_verbose` what takes the rest of the time, too."""
    rungs, goal = result.rungs, result.space.goal
    best = result.rung_of(result.best.choice)
    cells = scaling_cells(rungs, goal)
    shown = list(cells[0])
    width = {name: max(len(name), *(len(row[name]) for row in cells)) for name in shown}
    for name in SPARED:
        if sum(width[one] + 2 for one in shown) > WIDTH - 2 and name in shown:
            shown.remove(name)
    lines = [_line(" ", {name: name for name in shown}, width)]
    lines += [_line(">" if rung is best else " ", row, width, shown) for rung, row in zip(rungs, cells, strict=True)]
    lines += [line for text in assumptions(result) for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
    if goal.tokens and is_verbose:
        lines += rendered("goodput.txt", rungs=rungs, counted=counted, GB=GB).splitlines()
    return lines


def scaling_cells(rungs: Sequence[Rung], goal: Goal) -> list[dict[str, str]]:
    """Of every rung the columns that say something, as text."""
    shown = _columns(rungs, goal)
    return [{name: COLUMNS[name](rung) for name in shown} | {"machine": machine_words(rung, rungs)} for rung in rungs]


def machine_words(rung: Rung, rungs: Sequence[Rung]) -> str:
    """The device, and what tells its clusters apart beside their size: `H200`, `H200 hardware.nic_Gbps=100`."""
    peers = [dict(other.labels) for other in rungs if other.device == rung.device]
    own = {key: value for key, value in rung.labels if key not in (*OF_SIZE, "hardware")}
    telling = [f"{key}={value}" for key, value in own.items() if any(peer.get(key) != value for peer in peers)]
    return " ".join([rung.device, *telling])


def _columns(rungs: Sequence[Rung], goal: Goal) -> list[str]:
    """The columns that say something: days need tokens, a chance a date, cost and energy a price and watts."""
    wanted = {
        "days": goal.tokens,
        "in time": goal.is_limited,
        "GPU hours": goal.tokens,
        "goodput": goal.tokens,
        "M USD": any(rung.cost_USD for rung in rungs),
        "MWh": goal.tokens and any(rung.energy_MWh for rung in rungs),
        "J/token": not goal.tokens and any(rung.joules_per_token for rung in rungs),
        "scaling": len({rung.world for rung in rungs}) > 1,
    }
    return [name for name in COLUMNS if wanted.get(name, True)]


def _line(mark: str, row: Mapping[str, str], width: Mapping[str, int], shown: Sequence[str] | None = None) -> str:
    names = list(row) if shown is None else shown
    cells = (row[name].ljust(width[name]) if name in WORDS else row[name].rjust(width[name]) for name in names)
    return f"{mark} {'  '.join(cells)}".rstrip()
