"""The few rows of a ranking worth comparing: the best of each genuinely different choice, and what differs in words.

By default two rows are one choice if they agree in parallel layout, precision class and schedule family; the rows of a
ranking between them differ in switches worth a percent. Some rows are always among the choices: the best that surely
fits, the best in BF16, the simplest close to the best, the best on fewer nodes.

    for choice in choices(run.ranking, most=8):
        print(choice.rank, choice.roles, choice.differences, choice.change)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.cost.memory.fit import FITS, OUT_OF_MEMORY
from primus_search.declare.source import did_you_mean
from primus_search.exploration.expected import RATE
from primus_search.exploration.result import is_on_cluster_of
from primus_search.schedule import algorithm
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.knobs import KNOB, KNOBS, Kind

Row = Mapping[str, Any]

CLOSE = 0.02
"""Share of the best rate that the simplest candidate may lose."""
REPEATS = 4
"""One row of so many may repeat a layout and precision that is shown, with another schedule family."""

LAYOUT = tuple(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)
BEST_FIT = "best that FITS"
BEST_BF16 = "best in BF16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRow:
    """One row of a ranking beside the first.

    rank         place in ranking.csv, from 1        roles    why it is always shown: `best in BF16`
    differences  names of the knobs that differ from the first row's    change   of the expected rate, -0.31
    """

    rank: int
    row: Row
    roles: tuple[str, ...]
    differences: tuple[str, ...]
    change: float


def _layout(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LAYOUT)


def _precision(row: Row) -> str:
    return {"none": "BF16", "nvfp4": "FP4"}.get(row["fp8"], "FP8")


def _family(row: Row) -> str:
    return algorithm(row["schedule"]).family if row["pp"] > 1 else ""


CLASSES: Mapping[str, Callable[[Row], Any]] = {"layout": _layout, "precision": _precision, "family": _family}
"""What rows may be told apart by, beside the axes."""
DEFAULT_KEYS = tuple(CLASSES)


def keys_of(text: str) -> tuple[str, ...]:
    """Names after `--distinct`: axes, or `layout`, `precision` and `family`. Raises InputError for others."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    known = (*CLASSES, *COLUMN_NAMES)
    problems = [
        Problem("--distinct", f"'{name}' is no axis{did_you_mean(name, known)}: use {', '.join(known)}")
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError(problems)
    return names or DEFAULT_KEYS


def choices(rows: Sequence[Row], *, most: int, keys: Sequence[str] = DEFAULT_KEYS) -> tuple[ChoiceRow, ...]:
    """At most `most` rows of a ranking, by rank, the first among them.

    `rows` as ranking.csv lists them. Rows of other clusters than the first row's are only looked at for the best on
    fewer nodes.
    """
    first = rows[0]
    mine = [
        place
        for place, row in enumerate(rows)
        if is_on_cluster_of(row, first) and row["memory_verdict"] != OUT_OF_MEMORY
    ]
    roles = _roles(rows, mine)
    shown = list(dict.fromkeys([0, *roles]))[: max(most, 1)]
    shown += _distinct(rows, mine, shown, most - len(shown), keys)
    return tuple(
        ChoiceRow(
            rank=place + 1,
            row=rows[place],
            roles=tuple(roles.get(place, ())),
            differences=tuple(name for name in COLUMN_NAMES if rows[place][name] != first[name]),
            change=rows[place][RATE] / first[RATE] - 1.0,
        )
        for place in sorted(shown)
    )


def _distinct(
    rows: Sequence[Row], mine: Sequence[int], shown: Sequence[int], room: int, keys: Sequence[str]
) -> list[int]:
    """The best rows of groups that are not shown; few of them repeat a layout and precision in another family."""
    seen = {_key(rows[place], keys) for place in shown}
    layouts = {_key(rows[place], ("layout", "precision")) for place in shown}
    is_plain = tuple(keys) == DEFAULT_KEYS
    repeats = (room + len(shown)) // REPEATS - (len(shown) - len(layouts)) if is_plain else len(rows)
    found: list[int] = []
    for place in mine:
        if len(found) >= room:
            break
        key, layout = _key(rows[place], keys), _key(rows[place], ("layout", "precision"))
        if key in seen or (layout in layouts and repeats <= 0):
            continue
        repeats -= layout in layouts
        seen.add(key)
        layouts.add(layout)
        found.append(place)
    return found


def _roles(rows: Sequence[Row], mine: Sequence[int]) -> dict[int, list[str]]:
    """Places of the rows that are always shown, with why."""
    first, found = rows[0], dict[int, list[str]]()
    best = first[RATE]
    near = [place for place in mine if rows[place][RATE] >= best * (1.0 - CLOSE)]
    wanted = {
        BEST_FIT: [place for place in mine if rows[place]["memory_verdict"] == FITS],
        BEST_BF16: [place for place in mine if rows[place]["fp8"] == "none"],
        "simplest": sorted(near, key=lambda place: (complexity(rows[place]), place)),
        "fewer nodes": [place for place, row in enumerate(rows) if row.get("nodes", 0) < first.get("nodes", 0)],
    }
    for role, places in wanted.items():
        if places and (places[0] != 0 or role == "simplest"):
            found.setdefault(places[0], []).append(role)
    return found


def complexity(row: Row) -> int:
    """Knobs that are not at their default: what has to be set, and can go wrong."""
    return sum(row[knob.name] != knob.word(knob.default) for knob in KNOBS if knob.name not in ("pp", "tp", "ep"))


def _key(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(CLASSES[name](row) if name in CLASSES else row[name] for name in keys)


def words_of(choice: ChoiceRow, first: Row) -> list[str]:
    """What differs from the first row, the most telling first; parallel degrees are left to the layout."""
    names = [name for name in choice.differences if name not in (*LAYOUT, "vpp")]
    names = list(dict.fromkeys(KNOB[name].detail_of or name for name in names))
    order = {name: place for place, name in enumerate(("fp8", "recompute", "sharding", "schedule"))}
    names.sort(key=lambda name: order.get(name, len(order)))
    return [KNOB[name].told(choice.row) for name in names if not (name == "fp8" and BEST_BF16 in choice.roles)]
