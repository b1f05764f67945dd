"""Software that no file describes: every shipped stack left out in turn and learned again from k of its own runs.

    python tests/bench/learned_stacks.py --rows ROWS.csv [--only NAME] [--draws 5] [--ks 0,1]   project, add to ROWS.csv
    python tests/bench/learned_stacks.py --from ROWS.csv ... --into docs/dev/learning_log.md        write the tables

For every stack with at least three runs: the stack, the stacks that extend it or copy its numbers ("as NAME") take no
part. k = 0, 1, 3, 5, 10, 20 of its runs, drawn at random, go to `learn_stack`; the rest are projected with the stack it
returns, as `run` and `validate --stack` do. Beside it, with the same draws: the nearest shipped file, the nearest file
after one factor with that factor, and the nearest file after `calibrate --training` on the same runs. All stacks weigh
the same, whatever their runs. Rates of devices are not fitted again without the left-out stack.
"""

import argparse
import hashlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from primus_search.base.cores import one_blas_thread
from primus_search.cost.confidence.fit import FITS, OUT_OF_MEMORY
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.files.hardware_files import load_stack
from primus_search.files.search_path import FileKind, shipped
from primus_search.learning.inference.hypotheses import INTRODUCED, NOT_SOFTWARE
from primus_search.learning.inference.projected_runs import log_rates, reference_of
from primus_search.learning.site_stack import learn_stack
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun, on_stack
from tools.fit.supposed_software import copies
from tools.fit.training import log_rates as fitted_rates
from tools.fit.training_run import fit_cases

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run projected by one method after one draw; rates in tokens/s/GPU, peaks in bytes, NaN where not known."""

    stack: str
    method: str
    k: int
    draw: int
    run: str
    group: str
    measured: float
    predicted: float = math.nan
    low: float = math.nan
    high: float = math.nan
    peak: float = math.nan
    predicted_peak: float = math.nan
    peak_kind: str = ""
    ran_out: bool = False
    verdict: str = ""


METHODS = LEARNED, NEAREST, FACTOR, CALIBRATED = "learned", "nearest file", "one factor", "calibrate"


def framework_of(name: str) -> str | None:
    return next((word for start, word in FRAMEWORKS.items() if name.startswith(start)), None)


class LeftOut:
    """The runs of one stack, and what all other stacks project for them."""

    def __init__(self, name: str, runs: Sequence[MeasuredRun]) -> None:
        self.name, self.without = name, copies(name)
        self.runs = [_plain(run) for run in runs]
        self.others = [load_stack(one) for one in shipped(FileKind.STACK) if one not in (*self.without, *NOT_SOFTWARE)]
        self.rated = [i for i, run in enumerate(runs) if run.has_rate and not run.ran_out]
        self.measured = np.full(len(runs), math.nan)
        self.measured[self.rated] = np.log([runs[i].tokens_per_s_per_gpu for i in self.rated])
        references = [reference_of(self.runs[i]) for i in self.rated]
        self.by_file = np.full((len(runs), len(self.others)), math.nan)
        self.by_file[self.rated] = np.array([log_rates(stack, references) for stack in self.others]).T

    def rows(self, ks: Sequence[int], draws: int, methods: Sequence[str]) -> Iterator[Row]:
        """Methods at every k and draw."""
        rng = np.random.default_rng(1)
        for k in ks:
            if k and len(self.rated) - k < max(FEWEST_LEFT, 0.25 * len(self.rated)):
                continue
            for draw in range(draws if k else 1):
                taught = sorted(rng.choice(self.rated, k, replace=False).tolist(), key=lambda i: self.runs[i].id)
                if LEARNED in methods:
                    yield from self._learned(taught, draw)
                if k:
                    yield from self._baselines(taught, draw, methods)

    def _row(self, method: str, taught: Sequence[int], draw: int, i: int) -> Row:
        run = self.runs[i]
        return Row(
            stack=self.name,
            method=method,
            k=len(taught),
            draw=draw,
            run=run.id,
            group=str(run.group),
            measured=float(np.exp(self.measured[i])),
            ran_out=run.ran_out,
        )

    def _learned(self, taught: Sequence[int], draw: int) -> Iterator[Row]:
        """By the stack that `learn` writes, projected as `run` and `validate --stack` do."""
        lessons = [self.runs[i] for i in taught]
        newest = max(self.runs, key=lambda run: INTRODUCED.get(run.cluster.accelerator.arch, 0))
        site = learn_stack(
            "site",
            lessons,
            framework=framework_of(self.name),
            without=self.without,
            cluster=None if taught else newest.cluster,
        )
        left = [i for i in range(len(self.runs)) if i not in taught]
        scored, _ = project_runs([on_stack(self.runs[i], site.stack) for i in left])
        for i, one in zip(left, scored, strict=True):
            low, high = one.interval if self.runs[i].has_rate else (math.nan, math.nan)
            predicted_peak, peak = one.memory or (math.nan, math.nan)
            yield replace(
                self._row(LEARNED, taught, draw, i),
                predicted=one.predicted,
                low=low,
                high=high,
                peak=peak,
                predicted_peak=predicted_peak,
                peak_kind=self.runs[i].measured.peak_kind,
                verdict=one.verdict,
            )

    def _baselines(self, taught: Sequence[int], draw: int, methods: Sequence[str]) -> Iterator[Row]:
        """The file nearest to the runs; the one nearest after one factor, with it; the nearest, calibrated."""
        residuals = self.measured[taught][:, None] - self.by_file[taught]
        nearest = int(np.argmin(np.abs(residuals).mean(axis=0)))
        factors = np.median(residuals, axis=0)
        best = int(np.argmin(np.abs(residuals - factors).mean(axis=0) if len(taught) > 1 else np.abs(residuals)[0]))
        left = [i for i in self.rated if i not in taught]
        found: dict[str, Callable[[], np.ndarray]] = {
            NEAREST: lambda: self.by_file[left, nearest],
            FACTOR: lambda: self.by_file[left, best] + factors[best],
            CALIBRATED: lambda: self._calibrated(taught, left, self.others[nearest]),
        }
        for method in (one for one in found if one in methods):
            for i, log in zip(left, found[method]().tolist(), strict=True):
                yield replace(self._row(method, taught, draw, i), predicted=math.exp(log))

    def _calibrated(self, taught: Sequence[int], left: Sequence[int], stack: Stack) -> np.ndarray:
        """log(tokens/s/GPU) after `calibrate --training` on the runs, as runs of the nearest stack."""
        cases = [on_stack(self.runs[i], replace(stack, is_assumed=False)) for i in [*taught, *left]]
        try:
            values = fit_cases(cases[: len(taught)]).values
        except ValueError:
            values = {}
        return np.array([float(fitted_rates(case, values, 1)[0]) for case in cases[len(taught) :]])


def _plain(run: MeasuredRun) -> MeasuredRun:
    return replace(run, cluster=replace(run.cluster, stack=replace(run.cluster.stack, errors={})))


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The value below which a share of all weights lies; NaN of none."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])]) if len(values) else math.nan


def errors_of(rows: pd.DataFrame, measured: str, predicted: str) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of a method at one k, and their weights: 1 for every stack."""
    known = rows[rows[measured].notna() & rows[predicted].notna()]
    sizes = known.groupby("stack")["stack"].transform("size")
    return np.abs(known[predicted] / known[measured] - 1.0).to_numpy(), (1.0 / sizes).to_numpy(np.float64)


def kendall(rows: pd.DataFrame) -> float:
    """Kendall's tau over all pairs within sweeps (one source and model) of one draw."""
    good = bad = 0
    for _, sweep in rows[rows.measured.notna()].groupby(["stack", "draw", "group"]):
        by_run, by_rate = np.log(sweep.measured.to_numpy()), np.log(sweep.predicted.to_numpy())
        above = np.triu_indices(len(sweep), 1)
        apart, projected = (np.subtract.outer(one, one)[above] for one in (by_run, by_rate))
        agreement = (apart * projected)[np.abs(apart) > TIE]
        good, bad = good + int((agreement > 0).sum()), bad + int((agreement <= 0).sum())
    return (good - bad) / max(good + bad, 1)


def regret(rows: pd.DataFrame) -> float:
    """What the configuration projected fastest lies below the fastest of its sweep, mean over sweeps."""
    found = []
    for _, sweep in rows[rows.measured.notna()].groupby(["stack", "draw", "group"]):
        if len(sweep) >= SMALLEST_SWEEP:
            found.append(1.0 - sweep.measured[sweep.predicted.idxmax()] / sweep.measured.max())
    return float(np.mean(found)) if found else math.nan


def cover(rows: pd.DataFrame) -> float:
    """Share of runs inside the 90 % band, mean over stacks."""
    rated = rows[rows.measured.notna()]
    inside = (rated.low <= rated.measured) & (rated.measured <= rated.high)
    return float(inside.groupby(rated["stack"]).mean().mean())


def rate_table(rows: pd.DataFrame) -> Iterator[str]:
    """Rates of every method at every k."""
    yield "| method | k | median | p90 | in the band | Kendall | regret |"
    yield "|---|---|---|---|---|---|---|"
    for method in METHODS:
        for k, found in rows[rows.method == method].groupby("k"):
            errors, weights = errors_of(found, "measured", "predicted")
            ends = (f"{100.0 * quantile(errors, weights, share):.1f} %" for share in (0.5, 0.9))
            inside = f"{100.0 * cover(found):.0f} %" if method == LEARNED else ""
            cells = (method, k, *ends, inside, f"{kendall(found):.2f}", f"{100.0 * regret(found):.1f} %")
            yield "| " + " | ".join(map(str, cells)) + " |"


def memory_table(rows: pd.DataFrame) -> Iterator[str]:
    """Peaks and verdicts at every k."""
    yield "| k | peaks | median | p90 | ran, projected OOM | ran out, projected FITS |"
    yield "|---|---|---|---|---|---|"
    for k, found in rows[rows.method == LEARNED].groupby("k"):
        errors, weights = errors_of(found, "peak", "predicted_peak")
        ran, lost = found[~found.ran_out], found[found.ran_out]
        ends = (f"{100.0 * quantile(errors, weights, share):.1f} %" for share in (0.5, 0.9))
        wrong = (
            f"{(ran.verdict == OUT_OF_MEMORY).sum()} of {len(ran)}",
            f"{(lost.verdict == FITS).sum()} of {len(lost)}",
        )
        yield "| " + " | ".join(map(str, (k, len(errors), *ends, *wrong))) + " |"


def stack_table(rows: pd.DataFrame) -> Iterator[str]:
    """Median, 90th percentile and cover of every stack at every k."""
    learned = rows[(rows.method == LEARNED) & rows.measured.notna()]
    ks = sorted(set(learned.k))
    yield "| stack | runs | " + " | ".join(f"k = {k}" for k in ks) + " |"
    yield "|---|---|" + "---|" * len(ks)
    for name, found in learned.groupby("stack"):
        cells = [str(name), str(found.run.nunique())]
        for k in ks:
            errors, weights = errors_of(found[found.k == k], "measured", "predicted")
            ends = (f"{100.0 * quantile(errors, weights, share):.1f}" for share in (0.5, 0.9))
            cells.append(" / ".join(ends) + f", {100.0 * cover(found[found.k == k]):.0f}" if len(errors) else "")
        yield "| " + " | ".join(cells) + " |"


TABLES_OF = {"rates": rate_table, "memory": memory_table, "stacks": stack_table}
"""Tables of docs/dev/learning_log.md, each between comments of its name."""


def write_tables(rows: pd.DataFrame, into: Path | None) -> None:
    """Print the tables, and put them into a page where one is given."""
    text = into.read_text(encoding="utf-8") if into else ""
    for name, table in TABLES_OF.items():
        lines = "\n".join(table(rows))
        print(lines, end="\n\n")
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text = between.sub(lambda found, lines=lines: f"{found[1]}\n{lines}\n\n{found[2]}", text)
    if into:
        into.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, nargs="+", default=TABLES)
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--ks", default=",".join(map(str, RUNS)))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--only", default="", help="part of the name of the stacks that are left out")
    parser.add_argument("--half", type=int, choices=(0, 1), help="leave out the stacks of one half only")
    parser.add_argument("--rows", type=Path, help="CSV of one row per projected run")
    parser.add_argument("--from", type=Path, nargs="+", dest="kept", help="CSVs of rows; nothing is projected")
    parser.add_argument("--into", type=Path, help="page whose tables are replaced")
    given = parser.parse_args()
    if given.kept:
        rows = pd.concat([pd.read_csv(path, keep_default_na=False, na_values=["nan", ""]) for path in given.kept])
        write_tables(rows.reset_index(drop=True), given.into)
        return
    found: list[Row] = []
    for name, runs in selected(given.tables, given.most).items():
        is_chosen = given.only in name and given.half in (None, half_of(name))
        if is_chosen and sum(run.has_rate for run in runs) >= FEWEST_LEFT:
            with one_blas_thread():
                found += LeftOut(name, runs).rows([int(k) for k in given.ks.split(",")], given.draws, given.methods)
            if given.rows:
                pd.DataFrame([asdict(row) for row in found]).to_csv(given.rows, index=False)
    write_tables(pd.DataFrame([asdict(row) for row in found]), given.into)


def half_of(name: str) -> int:
    """The half of the stacks that a stack belongs to: constants are chosen on half 0 and checked on half 1."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


if __name__ == "__main__":
    main()
