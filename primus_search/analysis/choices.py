"""Choices beside the recommendation, each with when to take it, and what saved memory would gain.

A choice is a different idea from those above it: another precision, less memory, plainer switches, another split. Rows
inside the noise of one run are one choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from string import ascii_uppercase
from typing import Any

from primus_search.analysis.row_words import Row, difference_in_words, number_format
from primus_search.base.units import GB
from primus_search.cost.confidence.fit import FITS, OUT_OF_MEMORY, room_to_fit_bytes
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.answer_values import Choice
from primus_search.exploration.expected import RATE, is_measured
from primus_search.exploration.neighbours import Evaluator, change_text, values_of
from primus_search.exploration.ranking_table import MEASURED, is_row_lost, switch_names
from primus_search.exploration.remedies import cheapest_saving
from primus_search.exploration.result import is_on_cluster_of
from primus_search.schedule import algorithm
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.job import Job

MOST_CHOICES = 5
LESS_MEMORY, SLOWEST = 0.9, 0.8
"""A choice of less memory takes at most this share of the first row's; none of its number format has less than this
share of its rate."""


NO_OTHERS: Mapping[int, str] = {}


def num_gpus(row: Row) -> int:
    """Devices of the cluster that a row of a ranking is for."""
    return int(row["dp"] * row["tp"] * row["pp"] * row["cp"])


def _idea(row: Row) -> tuple[Any, ...]:
    """What tells choices apart: rows of one split and precision are one; CPn x mbs n is as mbs 1."""
    per_rank = row["micro_batch_size"] / row["cp"]
    family = algorithm(row["schedule"]).family if row["pp"] > 1 else ""
    return (row["tp"], row["pp"], row["ep"], row["etp"], per_rank, number_format(row), row["recompute"], family)


def choices_of(
    rows: Sequence[Row],
    job: Job,
    find_faster: "Callable[[], FasterIfMemorySaved | None]",
    others: Mapping[int, str] = NO_OTHERS,
) -> tuple[Choice, ...]:
    """The first row and at most four others, each of them another idea that FITS, or what saving memory would give.

    job: of the first row's cluster. find_faster: `faster_if_memory_saved`, called where there is a place for its row.
    others: when to take the rows at these places, which are of other clusters.
    """
    first = rows[0]
    mine = [
        place
        for place, row in enumerate(rows)
        if row["memory_verdict"] == FITS
        and is_on_cluster_of(row, first)
        and not (row["vpp"] > 1 and row["pp"] * row["vpp"] >= job.model.num_layers)  # one layer a chunk: for papers
    ]
    found: dict[int, str] = {0: "default"}
    if first["memory_verdict"] != FITS and mine:
        found[max(mine, key=lambda place: rows[place][RATE])] = "A runs out of memory"
    found |= others
    found |= _of_measured_kind(rows, [0, *mine], job)
    for when, is_one in _wanted(first):
        ideas = {_idea(rows[place]) for place in found}
        taken = {_split(rows[place]) for place in found} - {_split(first)}
        place = _nearest(
            [p for p in mine if is_one(rows[p]) and not {_idea(rows[p]), _split(rows[p])} & (ideas | taken)], rows
        )
        is_format = place is not None and number_format(rows[place]) != number_format(first)
        if place is not None and (is_format or rows[place][RATE] >= SLOWEST * first[RATE]):
            found[place] = when(rows[place])
    faster = find_faster() if len(found) < MOST_CHOICES else None
    if faster is not None and faster.gain > TIE:
        found[faster.rank - 1] = _when_faster(faster)
    fewer = next((p for p, row in enumerate(rows) if num_gpus(row) < num_gpus(first)), None)
    if fewer is not None and fewer not in found:
        found[fewer] = f"only {num_gpus(rows[fewer]):,} GPUs are free"
    shown = sorted(list(found.items())[:MOST_CHOICES], key=lambda pair: (pair[0] != 0, -rows[pair[0]][RATE]))
    return tuple(
        Choice(
            letter=letter,
            rank=place + 1,
            what="as above" if place == 0 else _what(rows[place], first),
            when=when,
            rate=rows[place][RATE],
            change=rows[place][RATE] / first[RATE] - 1.0,
            memory_bytes=rows[place]["memory_bytes"],
            verdict=rows[place]["memory_verdict"],
        )
        for letter, (place, when) in zip(ascii_uppercase, shown, strict=False)
    )


def _of_measured_kind(rows: Sequence[Row], places: Sequence[int], job: Job) -> dict[int, str]:
    """Where no run had the switches of the first row together, or its regime, a best row of its format that runs speak
    for. places: the first row's, then those that may stand beside it.
    """
    word, least = number_format(rows[0]), SLOWEST * rows[0][RATE]
    places = [p for p in places if number_format(rows[p]) == word and rows[p][RATE] >= least]
    table = Candidates.from_rows([{name: rows[p][name] for name in COLUMN_NAMES} for p in places])
    known = [p for p, is_known in zip(places, is_measured(job, table).tolist(), strict=True) if is_known]
    place = None if not known or known[0] == 0 else _nearest(known, rows)
    return {} if place is None else {place: "measured kind"}


def _when_faster(faster: "FasterIfMemorySaved") -> str:
    """When to take a faster row that does not surely fit."""
    remedy = f" ({faster.remedy})" if faster.remedy else ""
    free = f"you free {ceil(faster.saving_bytes / GB)} GB{remedy}"
    if faster.row["memory_verdict"] == OUT_OF_MEMORY or is_row_lost(faster.row):
        return free
    return f"you may try it first (fits: {faster.row['fit_probability']:.0%}), or {free}"


def _nearest(places: Sequence[int], rows: Sequence[Row]) -> int | None:
    """Of the rows inside the noise of the first of some places, best first, the one that changes least of A."""
    near = [place for place in places if rows[place][RATE] >= (1.0 - TIE) * rows[places[0]][RATE]]
    return min(near, key=lambda place: sum(rows[place][name] != rows[0][name] for name in COLUMN_NAMES), default=None)


def _what(row: Row, first: Row) -> str:
    if not is_on_cluster_of(row, first) and "nodes" in row:
        return f"{num_gpus(row):,} {row.get('hardware', 'GPUs')}, {difference_in_words(row, first)}"
    return difference_in_words(row, first)


Wanted = tuple[Callable[[Row], str], Callable[[Row], bool]]


def _wanted(first: Row) -> list[Wanted]:
    """When to take another row than the first, and which rows answer that, the most wanted first."""
    word, less_bytes = number_format(first), min(LESS_MEMORY * first["memory_bytes"], first["memory_bytes"] - GB)

    def is_faster_format(row: Row) -> bool:
        return number_format(row) != "BF16" and row[RATE] > first[RATE] * (1.0 + TIE)

    def is_plainer(row: Row) -> bool:
        return len(switch_names(row)) < len(switch_names(first)) and _split(row) == _split(first)

    def in_format(is_one: Callable[[Row], bool]) -> Callable[[Row], bool]:
        return lambda row: number_format(row) == word and is_one(row)

    return [
        (
            lambda row: f"you train in {number_format(row)}",
            is_faster_format if word == "BF16" else lambda row: number_format(row) == "BF16",
        ),
        (
            lambda row: f"sequences grow: {(first['memory_bytes'] - row['memory_bytes']) / GB:.0f} GB less",
            in_format(lambda row: row["memory_bytes"] <= less_bytes),
        ),
        (lambda row: "a switch of A fails", in_format(is_plainer)),
        (lambda row: _when_split(row, first), in_format(lambda row: _num_degrees_changed(row, first) == 1)),
    ]


def _split(row: Row) -> tuple[Any, ...]:
    return (number_format(row), *(row[name] for name in ("tp", "pp", "ep", "etp")))


def _num_degrees_changed(row: Row, first: Row) -> int:
    return sum(one != other for one, other in zip(_split(row), _split(first), strict=True))


def _when_split(row: Row, first: Row) -> str:
    """What another split is good for."""
    if row["pp"] > first["pp"]:
        return "NICs are slower than rated"
    if row["pp"] < first["pp"]:
        return "fewer stages suit you"
    if row["tp"] != first["tp"]:
        return "the batch must shrink" if row["tp"] > first["tp"] else "links in the node are slow"
    return "expert exchange is slow" if row["ep"] < first["ep"] else "memory of experts is short"


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterIfMemorySaved:
    """A row that is faster than the first one and does not surely fit.

    rank           place in ranking.csv, from 1     gain    of the expected rate over the first row's, 0.012
    saving_bytes   less memory with which it FITS
    remedy         the fastest single change that saves so much, in words; empty where none does or the gain is noise
    """

    rank: int
    row: Row
    gain: float
    saving_bytes: float
    remedy: str


def faster_if_memory_saved(rows: Sequence[Row], evaluator: Evaluator) -> FasterIfMemorySaved | None:
    """The fastest row of the first row's cluster that is faster than the first and AT RISK or OOM; None without any.

    rows: as ranking.csv lists them. evaluator: of the first row's cluster. Rows timed on a device are compared with
    each other only.
    """
    first = rows[0]
    places = [
        place
        for place, row in enumerate(rows)
        if row[RATE] > first[RATE]
        and row["memory_verdict"] != FITS
        and (row["time_evidence"] == MEASURED) == (first["time_evidence"] == MEASURED)
        and is_on_cluster_of(row, first)
    ]
    if not places or first["memory_verdict"] != FITS:
        return None
    place = max(places, key=lambda place: (rows[place][RATE], -place))
    row = rows[place]
    one, projector = Candidates.from_words({n: row[n] for n in COLUMN_NAMES}), evaluator.projector
    projected = projector.project(one).memory
    slack = float(projected.allocator_slack[0])  # of the projection: a trace replaces activations
    sure_bytes = float(room_to_fit_bytes(projector.job, one, projector.memory_margin)[0])
    saving = row["memory_bytes"] - slack - sure_bytes
    gain = row[RATE] / first[RATE] - 1.0
    found = cheapest_saving(evaluator, values_of(one), saving) if gain > TIE else None
    return FasterIfMemorySaved(
        rank=place + 1,
        row=row,
        gain=gain,
        saving_bytes=saving,
        remedy="" if found is None else change_text(found),
    )
