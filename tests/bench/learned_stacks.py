"""Software that no file describes: every shipped stack left out in turn and learned again from k of its own runs.

    python tests/bench/learned_stacks.py [--tables LIST.txt] [--most 30] [--draws 5] [--out results.json]

For every stack with at least three runs: the stack, the stacks that extend it or copy its numbers ("as NAME") take no
part. k = 0, 1, 3, 5, 10, 20 of its runs, drawn at random, go to `learn_stack`; the rest are projected with the stack it
returns, as `run` and `validate --stack` do, and scored: median and 90th percentile of the error of the rate, share of
runs inside the 90 % band, Kendall's tau within sweeps (one source and model) and regret of the first choice there.
Beside it, with the same draws: the nearest shipped file, and the nearest file with one factor. Runs of a stack share a
weight of 1. Rates of devices are not fitted again without the left-out stack.
"""

import argparse
import itertools
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.cost.confidence.uncertainty import band
from primus_search.cost.project import Projector
from primus_search.declare.hardware_files import load_stack
from primus_search.declare.search_path import FileKind, shipped
from primus_search.lab.published import measured_table
from primus_search.learn.hypotheses import NOT_SOFTWARE
from primus_search.learn.posterior import reference_of
from primus_search.learn.site_stack import learn_stack
from primus_search.measured_run import MeasuredRun, on_stack
from primus_search.stack import Stack

RUNS = (0, 1, 3, 5, 10, 20)
SMALLEST_SWEEP = 4
FEWEST_LEFT = 3
TIE = 0.02
FRAMEWORKS = {
    "nemo": "nemo",
    "primus_megatron": "primus",
    "torchtitan": "torchtitan",
    "primus_torchtitan": "torchtitan",
}
FRAMEWORKS |= {"maxtext": "maxtext", "deepspeed": "deepspeed", "fsdp_2023": "hf-trainer", "megatron": "megatron-lm"}
"""How a log of a left-out stack's runs would name its framework, by the beginning of the stack's name."""


def selected(path: Path, most: int) -> dict[str, list[MeasuredRun]]:
    """Runs with a rate whose software is known, by stack: whole sweeps in random order up to about `most`."""
    rng = random.Random(0)
    by_stack: dict[str, list[MeasuredRun]] = defaultdict(list)
    seen = set()
    for run in measured_table(path).runs:
        key = (run.duplicate_key, run.group, run.workload, run.cluster.world, run.candidate_key)
        if run.has_rate and not run.ran_out and not run.cluster.stack.is_assumed and key not in seen:
            seen.add(key)
            by_stack[run.cluster.stack.name].append(run)
    for name, runs in by_stack.items():
        sweeps = defaultdict(list)
        for run in runs:
            sweeps[run.group].append(run)
        groups = list(sweeps.values())
        rng.shuffle(groups)
        kept: list[MeasuredRun] = []
        for group in groups:
            if len(kept) < most:
                kept += group[: most // 2]
        by_stack[name] = kept
    return dict(sorted(by_stack.items()))


def copies(name: str) -> list[str]:
    """A stack and every one whose file extends it or says that it has a number as it has."""
    pattern = re.compile(rf'^extends: *"?{re.escape(name)}"?$|"as {re.escape(name)}[,"]', re.M)
    files = shipped(FileKind.STACK).items()
    return [one for one, path in files if one == name or pattern.search(path.read_text(encoding="utf-8"))]


def rate(run: MeasuredRun, stack: Stack) -> float:
    """Tokens/s/GPU of a run's configuration on a stack."""
    moved = on_stack(run, stack)
    return float(Projector(moved.job).project(moved.candidates).tokens_per_s_per_gpu[0])


def kendall(logs: np.ndarray, measured: np.ndarray, groups: Sequence[Any]) -> tuple[int, int]:
    """Concordant and discordant pairs within sweeps."""
    good = bad = 0
    for i, j in itertools.combinations(range(len(groups)), 2):
        if groups[i] == groups[j] and abs(measured[i] - measured[j]) > TIE:
            if (logs[i] - logs[j]) * (measured[i] - measured[j]) > 0:
                good += 1
            else:
                bad += 1
    return good, bad


def regrets(logs: np.ndarray, measured: np.ndarray, groups: Sequence[Any]) -> list[float]:
    """What the configuration projected fastest lies below the fastest one, per sweep."""
    found = []
    for group in set(groups):
        rows = np.array([i for i, one in enumerate(groups) if one == group])
        if len(rows) >= SMALLEST_SWEEP:
            best = measured[rows].max()
            found.append(1.0 - math.exp(measured[rows][np.argmax(logs[rows])] - best))
    return found


class Score:
    """Errors of one method at one k over all stacks and draws."""

    def __init__(self) -> None:
        self.errors: list[tuple[np.ndarray, float]] = []
        self.covers: list[float] = []
        self.pairs = [0, 0]
        self.regrets: list[float] = []

    def add(self, logs: np.ndarray, measured: np.ndarray, groups: Sequence[Any], inside: np.ndarray | None) -> None:
        self.errors.append((np.abs(np.expm1(logs - measured)), 1.0 / len(logs)))
        if inside is not None:
            self.covers.append(float(inside.mean()))
        good, bad = kendall(logs, measured, groups)
        self.pairs[0] += good
        self.pairs[1] += bad
        self.regrets += regrets(logs, measured, groups)

    def figures(self) -> dict[str, float]:
        errors = np.concatenate([e for e, _ in self.errors])
        weights = np.concatenate([np.full(len(e), w) for e, w in self.errors])
        order = np.argsort(errors)
        share = np.cumsum(weights[order]) / weights.sum()
        at = lambda q: float(errors[order][np.searchsorted(share, q)])  # noqa: E731
        return {
            "median": at(0.5),
            "p90": at(0.9),
            "cover": float(np.mean(self.covers)) if self.covers else math.nan,
            "kendall": (self.pairs[0] - self.pairs[1]) / max(sum(self.pairs), 1),
            "regret": float(np.mean(self.regrets)) if self.regrets else math.nan,
        }


def framework_of(name: str) -> str | None:
    return next((word for start, word in FRAMEWORKS.items() if name.startswith(start)), None)


def score_stack(name: str, runs: list[MeasuredRun], draws: int, scores: dict[tuple[str, int], Score]) -> None:
    """All k and draws of one left-out stack."""
    without = copies(name)
    others = [load_stack(one) for one in shipped(FileKind.STACK) if one not in (*without, *NOT_SOFTWARE)]
    anonymous = [
        replace(run, cluster=replace(run.cluster, stack=replace(run.cluster.stack, errors={}))) for run in runs
    ]
    by_file = np.log([[rate(run, stack) for stack in others] for run in anonymous])
    measured = np.log([run.tokens_per_s_per_gpu for run in runs])
    rng = np.random.default_rng(1)
    for k in RUNS:
        if k and len(runs) - k < max(FEWEST_LEFT, 0.25 * len(runs)):
            continue
        for _ in range(draws if k else 1):
            taught = rng.choice(len(runs), k, replace=False)
            left = np.setdiff1d(np.arange(len(runs)), taught)
            groups = [runs[i].group for i in left]
            around = [reference_of(anonymous[i]) for i in left] if not k else []
            site = learn_stack(
                "site", [anonymous[i] for i in taught], framework=framework_of(name), without=without, around=around
            )
            logs = np.log([rate(anonymous[i], site.stack) for i in left])
            bands = [
                band(on_stack(runs[i], site.stack).cluster, runs[i].model, int(runs[i].candidates.fp8[0])) for i in left
            ]
            ratio = np.exp(measured[left] - logs)
            inside = np.array([b.low <= r <= b.high for b, r in zip(bands, ratio, strict=True)])
            scores["learned", k].add(logs, measured[left], groups, inside)
            if k:
                residuals = measured[taught][:, None] - by_file[taught]
                nearest = int(np.argmin(np.abs(residuals).mean(axis=0)))
                scores["nearest file", k].add(by_file[left, nearest], measured[left], groups, None)
                factors = np.median(residuals, axis=0)
                best = int(np.argmin(np.abs(residuals - factors).mean(axis=0) if k > 1 else np.abs(residuals)[0]))
                scores["one factor", k].add(by_file[left, best] + factors[best], measured[left], groups, None)
        print(
            name,
            k,
            {
                m: {n: round(v, 3) for n, v in s.figures().items()}
                for (m, kk), s in scores.items()
                if kk == k and m == "learned"
            },
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("tests/oracle/data/trained_on.txt"))
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    scores: dict[tuple[str, int], Score] = defaultdict(Score)
    for name, runs in selected(given.tables, given.most).items():
        if len(runs) >= FEWEST_LEFT and given.only in name:
            score_stack(name, runs, given.draws, scores)
    table = {f"{method}, k = {k}": score.figures() for (method, k), score in sorted(scores.items())}
    for label, figures in table.items():
        print(f"{label:20}" + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    if given.out:
        given.out.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
