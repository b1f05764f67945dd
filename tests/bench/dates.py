"""Dates that are kept: `python tests/bench/dates.py TABLE ...` writes docs/dev/dates.md.

A date is a probability: the rate that meets it is exceeded with the chance that `exploration.scaling_table.chance_of`
gives. Of runs of publishers that no number was fitted to (`tools.fit.first_contact`), each publisher of equal weight:
how often a rate that was given 50, 80 or 90 % was reached.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from primus_search.evidence.validate.scores import duplicate_weights
from primus_search.exploration.scaling_table import chance_of
from tools.fit.first_contact import LeftOut, Seen, left_out_trainers, seen, words

ROOT = Path(__file__).resolve().parents[2]
TABLES, PAGE = ROOT / "tests" / "oracle" / "data" / "trained_on.txt", ROOT / "docs" / "dev" / "dates.md"
MAKERS = ROOT / "hardware" / "sites" / "first_contact.yaml"
GIVEN = (0.5, 0.8, 0.9)
"""Chances that a goal may ask for."""


def chances(left_out: LeftOut, is_kept: dict[bool, bool]) -> list[tuple[float, float]]:
    """The chance given to the measured rate of every run, and its weight; `is_kept`: by whether a row is doubted."""
    found = []
    for name in left_out.strangers():
        rows = [row for row in left_out.publishers[name] if is_kept[row.is_doubted]]
        weights = duplicate_weights(row.run.duplicate_key for row in rows)
        found += [(_chance(row, left_out), w / sum(weights)) for row, w in zip(rows, weights, strict=True)]
    return found


def _chance(row: Seen, left_out: LeftOut) -> float:
    low, high, middle = row.ends(left_out.errors[row.publisher])
    return chance_of(math.exp(row.error - middle), math.exp(middle), math.exp(low), math.exp(high))


def met(found: Sequence[tuple[float, float]], given: float) -> float:
    """Share of runs, by weight, that reached the rate that was given this chance."""
    chance, weight = np.array(found).T
    return float(weight[chance <= given].sum() / weight.sum())


def page(left_out: LeftOut) -> str:
    kinds = {"clean rows": {False: True, True: False}, "doubted ones as well": {False: True, True: True}}
    lines = [
        "# Dates: how often a chance that was given came true",
        "",
        "Written by `python tests/bench/dates.py TABLE ...`; its docstring says what is measured. A publisher has one",
        f"shift, and {len(left_out.strangers())} publishers are few: one of them moves a share by "
        f"{1 / len(left_out.strangers()):.0%}.",
        "",
        "| rows | number | " + " | ".join(f"given {given:.0%}" for given in GIVEN) + " |",
        "|---|---|" + "---|" * len(GIVEN),
    ]
    for name, is_kept in kinds.items():
        found = chances(left_out, is_kept)
        shares = " | ".join(f"{met(found, given):.0%}" for given in GIVEN)
        lines.append(f"| {name} | {len(found)} | {shares} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+", metavar="TABLE", help="rows of publishers of first contact")
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    rows = seen(TABLES, args.tables)
    text = page(LeftOut.of([*rows, *left_out_trainers(rows)], words(MAKERS, "makers")))
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
