"""The winner's curse: `python tests/bench/first_choices.py` writes docs/dev/first_choices.md.

A search takes the configuration of the highest projected rate, so it prefers those whose error is upward. Measured on
every sweep (`primus_search.evidence.validate.score_runs`) of the tables behind the shipped numbers, each run projected
by numbers fitted without its source and model.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from primus_search.evidence.published.convert import measured_table, validated
from primus_search.evidence.validate.first_choices import first_choices, sweeps
from primus_search.evidence.validate.score_runs import ScoredRun
from tools.fit.training_run import left_out_rates

ROOT = Path(__file__).resolve().parents[2]
TABLES, PAGE = ROOT / "tests" / "oracle" / "data" / "trained_on.txt", ROOT / "docs" / "dev" / "first_choices.md"
SPLIT = "source and model"


def page(found: Sequence[Sequence[ScoredRun]]) -> str:
    columns = {
        "all": first_choices(found),
        "dense": first_choices([sweep for sweep in found if not sweep[0].run.model.is_moe]),
        "experts": first_choices([sweep for sweep in found if sweep[0].run.model.is_moe]),
    }
    lines = [
        "# First choices: what an argmax over projections costs",
        "",
        "Written by `python tests/bench/first_choices.py`; its docstring says what is measured.",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name in columns["all"]:
        cells = [f"{c[name]:,.0f}" if name in ("sweeps", "runs") else f"{c[name]:+.1%}" for c in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    assert measured_table(TABLES).runs
    found = validated(TABLES)
    rows = found.with_rates(left_out_rates([row.run for row in found.rows], SPLIT)).rows
    text = page(sweeps(rows))
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
