"""The winner's curse: `python tests/bench/first_choices.py` writes docs/dev/first_choices.md.

A search takes the configuration of the highest projected rate, so it prefers those whose error is upward. Measured on
every sweep of at least four configurations in the tables that the shipped numbers come from (one source, model, device,
number of devices, workload and precision), each run projected by numbers fitted without its source and model:

    bias      projected over measured rate, less 1: of the first choice, and of all runs of its sweep
    regret    what the first choice loses against the fastest measured configuration of its sweep
    coverage  share of measured rates inside the 90 % band of the first choice, and of all runs
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.lab.fit.training_run import left_out_rates
from primus_search.lab.published import measured_table, validated
from primus_search.validate.score_runs import ScoredRun

ROOT = Path(__file__).resolve().parents[2]
TABLES, PAGE = ROOT / "tests" / "oracle" / "data" / "trained_on.txt", ROOT / "docs" / "dev" / "first_choices.md"
SMALLEST = 4
SPLIT = "source and model"


def sweeps(rows: Sequence[ScoredRun]) -> list[list[ScoredRun]]:
    """Runs of one job, each configuration once with its fastest run."""
    jobs: dict[tuple[Any, ...], dict[tuple[object, ...], ScoredRun]] = defaultdict(dict)
    for row in rows:
        run = row.run
        found = jobs[run.group, run.gpu, run.cluster.world, run.workload, run.precision]
        before = found.get(run.candidate_key)
        if before is None or run.tokens_per_s_per_gpu > before.run.tokens_per_s_per_gpu:
            found[run.candidate_key] = row
    return [list(found.values()) for found in jobs.values() if len(found) >= SMALLEST]


def is_inside(row: ScoredRun) -> bool:
    low, high = row.interval
    return low <= row.run.tokens_per_s_per_gpu <= high


def figures(found: Sequence[Sequence[ScoredRun]]) -> dict[str, float]:
    """Figures of some sweeps, each sweep counted once."""
    chosen = [max(sweep, key=lambda row: row.predicted) for sweep in found]
    fastest = [max(row.run.tokens_per_s_per_gpu for row in sweep) for sweep in found]
    regrets = [1.0 - one.run.tokens_per_s_per_gpu / best for one, best in zip(chosen, fastest, strict=True)]
    return {
        "sweeps": len(found),
        "runs": sum(map(len, found)),
        "bias of the first choice": float(np.mean([row.error for row in chosen])),
        "bias of its sweep": float(np.mean([np.mean([row.error for row in sweep]) for sweep in found])),
        "mean regret": float(np.mean(regrets)),
        "worst regret": max(regrets),
        "first choice in its band": float(np.mean([is_inside(row) for row in chosen])),
        "all runs in their bands": float(np.mean([np.mean([is_inside(row) for row in sweep]) for sweep in found])),
    }


def page(found: Sequence[Sequence[ScoredRun]]) -> str:
    columns = {
        "all": figures(found),
        "dense": figures([sweep for sweep in found if not sweep[0].run.model.is_moe]),
        "experts": figures([sweep for sweep in found if sweep[0].run.model.is_moe]),
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
    rows = validated(TABLES).with_rates(left_out_rates(TABLES, SPLIT)).rows
    text = page(sweeps(rows))
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
