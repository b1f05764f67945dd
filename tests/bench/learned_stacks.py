"""Software that no file describes: every shipped stack left out in turn and learned again from k of its own runs.

    python tests/bench/learned_stacks.py [--tables LIST.txt ...] [--most 30] [--draws 5] [--ks 0,1] [--out results.json]

For every stack with at least three runs: the stack, the stacks that extend it or copy its numbers ("as NAME") take no
part. k = 0, 1, 3, 5, 10, 20 of its runs, drawn at random, go to `learn_stack`; the rest are projected with the stack it
returns, as `run` and `validate --stack` do, and scored: median and 90th percentile of the error of the rate, share of
runs inside the 90 % band, Kendall's tau within sweeps (one source and model) and regret of the first choice there.
Beside it, with the same draws: the nearest shipped file, and the nearest file with one factor. Runs of a stack share a
weight of 1. Peaks of memory and verdicts likewise: median and 90th percentile of the error of a peak, share of runs
that ran and are projected to run out (false OOM), of runs that ran out and are projected to fit (false FITS). Rates of
devices are not fitted again without the left-out stack.
"""

import argparse
import hashlib
import itertools
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.cores import one_blas_thread
from primus_search.cost.memory.fit import FITS, OUT_OF_MEMORY
from primus_search.declare.hardware_files import load_stack
from primus_search.declare.search_path import FileKind, shipped
from primus_search.lab.published import measured_table
from primus_search.learn.hypotheses import INTRODUCED, NOT_SOFTWARE, shipped_hypotheses
from primus_search.learn.posterior import evidence_of, log_rates, reference_of
from primus_search.learn.site_stack import learn_stack
from primus_search.measured_run import MeasuredRun, on_stack
from primus_search.validate.score_runs import ScoredRun, project_runs

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


DATA = Path("tests/oracle/data")
OTHERS = ("unseen_runs_4.csv", "blind_trainers.csv", "blind_runs.csv", "oom_runs.csv")
TABLES = [DATA / name for name in ("trained_on.txt", *OTHERS)]


def selected(paths: Sequence[Path], most: int) -> dict[str, list[MeasuredRun]]:
    """Runs whose software is known, by stack: whole sweeps in random order up to about `most`."""
    rng = random.Random(0)
    by_stack: dict[str, list[MeasuredRun]] = defaultdict(list)
    seen = set()
    for run in (run for path in paths for run in measured_table(path).runs):
        key = (run.duplicate_key, run.group, run.workload, run.cluster.world, run.candidate_key)
        if is_measured(run) and not run.cluster.stack.is_assumed and key not in seen:
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


def is_measured(run: MeasuredRun) -> bool:
    """Whether a run has a rate, a peak, or ran out of memory."""
    return run.has_rate or run.ran_out or run.measured.peak_bytes > 0.0


def copies(name: str) -> list[str]:
    """A stack and every one whose file extends it or says that it has a number as it has."""
    pattern = re.compile(rf'^extends: *"?{re.escape(name)}"?$|"as {re.escape(name)}[,"]', re.M)
    files = shipped(FileKind.STACK).items()
    return [one for one, path in files if one == name or pattern.search(path.read_text(encoding="utf-8"))]


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
        self.peaks: list[tuple[np.ndarray, float]] = []
        self.ran, self.false_oom, self.ran_out, self.false_fits = 0, 0, 0, 0

    def join(self, other: "Score") -> None:
        """Add what another score has seen."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            if name == "pairs":
                self.pairs = [a + b for a, b in zip(own, value, strict=True)]
            else:
                setattr(self, name, own + value)

    def add_memory(self, scored: Sequence[ScoredRun]) -> None:
        """Peaks and verdicts of runs."""
        errors = [abs(row.memory[0] / row.memory[1] - 1.0) for row in scored if row.memory is not None]
        if errors:
            self.peaks.append((np.array(errors), 1.0 / len(errors)))
        lost = [row for row in scored if row.run.ran_out]
        self.ran_out += len(lost)
        self.false_fits += sum(row.verdict == FITS for row in lost)
        self.ran += len(scored) - len(lost)
        self.false_oom += sum(row.verdict == OUT_OF_MEMORY for row in scored if not row.run.ran_out)

    def add(self, logs: np.ndarray, measured: np.ndarray, groups: Sequence[Any], inside: np.ndarray | None) -> None:
        self.errors.append((np.abs(np.expm1(logs - measured)), 1.0 / len(logs)))
        if inside is not None:
            self.covers.append(float(inside.mean()))
        good, bad = kendall(logs, measured, groups)
        self.pairs[0] += good
        self.pairs[1] += bad
        self.regrets += regrets(logs, measured, groups)

    def figures(self) -> dict[str, float]:
        return {
            "median": quantile(self.errors, 0.5),
            "p90": quantile(self.errors, 0.9),
            "cover": float(np.mean(self.covers)) if self.covers else math.nan,
            "kendall": (self.pairs[0] - self.pairs[1]) / max(sum(self.pairs), 1),
            "regret": float(np.mean(self.regrets)) if self.regrets else math.nan,
            "peak median": quantile(self.peaks, 0.5),
            "peak p90": quantile(self.peaks, 0.9),
            "false OOM": self.false_oom / max(self.ran, 1),
            "false FITS": self.false_fits / max(self.ran_out, 1),
        }


def quantile(errors: Sequence[tuple[np.ndarray, float]], share: float) -> float:
    """The error below which a share of all lies; every stack's errors have its weight."""
    if not errors:
        return math.nan
    values = np.concatenate([e for e, _ in errors])
    weights = np.concatenate([np.full(len(e), w) for e, w in errors])
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]) / weights.sum(), share)])


def framework_of(name: str) -> str | None:
    return next((word for start, word in FRAMEWORKS.items() if name.startswith(start)), None)


def score_stack(name: str, runs: list[MeasuredRun], ks: Sequence[int], draws: int) -> dict[tuple[str, int], Score]:
    """All k and draws of one left-out stack."""
    scores: dict[tuple[str, int], Score] = defaultdict(Score)
    without = copies(name)
    others = [load_stack(one) for one in shipped(FileKind.STACK) if one not in (*without, *NOT_SOFTWARE)]
    runs = [replace(run, cluster=replace(run.cluster, stack=replace(run.cluster.stack, errors={}))) for run in runs]
    rated = [i for i, run in enumerate(runs) if run.has_rate and not run.ran_out]
    by_file = np.full((len(runs), len(others)), math.nan)
    own = [reference_of(runs[i]) for i in rated]
    by_file[rated] = np.array([log_rates(stack, own) for stack in others]).T
    measured = np.full(len(runs), math.nan)
    measured[rated] = np.log([runs[i].tokens_per_s_per_gpu for i in rated])
    rng = np.random.default_rng(1)
    seen = evidence_of(shipped_hypotheses(framework_of(name), without), runs)
    newest = max(runs, key=lambda run: INTRODUCED.get(run.cluster.accelerator.arch, 0))
    for k in ks:
        if k and len(rated) - k < max(FEWEST_LEFT, 0.25 * len(rated)):
            continue
        for _ in range(draws if k else 1):
            taught = rng.choice(rated, k, replace=False)
            cluster = newest.cluster if not k else None
            lessons = [runs[i] for i in taught]
            own = None
            if k:
                archs = {run.cluster.accelerator.arch for run in lessons}
                own = replace(seen, hypotheses=shipped_hypotheses(framework_of(name), without, archs))
                own = own.take(sorted(taught, key=lambda i: runs[i].id))
            site = learn_stack(
                "site", lessons, framework=framework_of(name), without=without, cluster=cluster, seen=own
            )
            others_runs = [i for i in range(len(runs)) if i not in taught]
            rows, _ = project_runs([on_stack(runs[i], site.stack) for i in others_runs])
            scored = dict(zip(others_runs, rows, strict=True))
            left = np.array([i for i in rated if i not in taught])
            groups = [runs[i].group for i in left]
            logs = np.log([scored[i].predicted for i in left])
            ends = np.array([scored[i].interval for i in left])
            rates = np.exp(measured[left])
            score = scores["learned", k]
            score.add(logs, measured[left], groups, (ends[:, 0] <= rates) & (rates <= ends[:, 1]))
            score.add_memory(list(scored.values()))
            if k:
                residuals = measured[taught][:, None] - by_file[taught]
                nearest = int(np.argmin(np.abs(residuals).mean(axis=0)))
                scores["nearest file", k].add(by_file[left, nearest], measured[left], groups, None)
                factors = np.median(residuals, axis=0)
                best = int(np.argmin(np.abs(residuals - factors).mean(axis=0) if k > 1 else np.abs(residuals)[0]))
                scores["one factor", k].add(by_file[left, best] + factors[best], measured[left], groups, None)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, nargs="+", default=TABLES)
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--ks", default=",".join(map(str, RUNS)))
    parser.add_argument("--only", default="", help="part of the name of the stacks that are left out")
    parser.add_argument("--half", type=int, choices=(0, 1), help="leave out the stacks of one half only")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ks = [int(k) for k in given.ks.split(",")]
    scores: dict[tuple[str, int], Score] = defaultdict(Score)
    tables: dict[str, Any] = {}
    for name, runs in selected(given.tables, given.most).items():
        is_chosen = given.only in name and given.half in (None, half_of(name))
        if is_chosen and sum(run.has_rate for run in runs) >= FEWEST_LEFT:
            with one_blas_thread():
                found = score_stack(name, runs, ks, given.draws)
            for key, score in found.items():
                scores[key].join(score)
            tables[name] = show(name, found)
    tables["all"] = show("all", dict(sorted(scores.items())))
    if given.out:
        given.out.write_text(json.dumps(tables, indent=2))


def half_of(name: str) -> int:
    """The half of the stacks that a stack belongs to: constants are chosen on half 0 and checked on half 1."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


def show(name: str, scores: Mapping[tuple[str, int], Score]) -> dict[str, Any]:
    """Print the figures of scores, and return them."""
    table = {f"{method}, k = {k}": score.figures() for (method, k), score in scores.items()}
    for label, figures in table.items():
        print(f"{name:22} {label:22}" + "  ".join(f"{key} {value:.3f}" for key, value in figures.items()), flush=True)
    return table


if __name__ == "__main__":
    main()
