"""What `next` is worth: regret of the choice after 0 to 3 of its picks, beside random picks, on left-out stacks.

    python tests/bench/next_picks.py [--fewest 12] [--draws 6]

A sweep is the runs of one source, model and device of a left-out stack. Its rows are what can be chosen; a pick gives
the measured rate. The choice is the row with the highest mean over samples of the posterior.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from learned_stacks import TABLES, copies, framework_of, selected

from primus_search.base.cores import one_blas_thread
from primus_search.learning.inference.hypotheses import shipped_hypotheses
from primus_search.learning.inference.posterior import update
from primus_search.learning.inference.projected_runs import evidence_of
from primus_search.learning.next_runs import advise, sampled_rates
from primus_search.values.measured_run import MeasuredRun

PICKS, RANDOM_PICKS = 3, 8


class Sweep:
    """The rows of one sweep, and samples of their rates given some of its runs."""

    def __init__(self, name: str, runs: Sequence[MeasuredRun]) -> None:
        self.runs = runs
        archs = {run.cluster.accelerator.arch for run in runs}
        self.seen = evidence_of(shipped_hypotheses(framework_of(name), copies(name), archs), runs)
        self.rates = np.array([run.tokens_per_s_per_gpu for run in runs])

    def samples(self, tried: Sequence[int]) -> np.ndarray:
        posterior = update(self.seen.take(tried)).leading()
        place = {id(h.stack): i for i, h in enumerate(self.seen.hypotheses)}
        lines = [self.seen.lines[place[id(h.stack)]] for h in posterior.hypotheses]
        return sampled_rates(posterior, lines, 0, {i: self.rates[i] for i in tried})

    def regret(self, samples: np.ndarray) -> float:
        return float(1.0 - self.rates[np.argmax(samples.mean(axis=0))] / self.rates.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fewest", type=int, default=12)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--tables", type=Path, nargs="+", default=TABLES)
    given = parser.parse_args()
    lost: dict[tuple[str, int], list[float]] = defaultdict(list)
    for name, runs in selected(given.tables, 60).items():
        sweeps = defaultdict(list)
        for run in runs:
            if run.has_rate and not run.ran_out:
                sweeps[run.group, run.gpu].append(run)
        for group in sweeps.values():
            if len(group) >= given.fewest:
                with one_blas_thread():
                    score(Sweep(name, group), given.draws, lost)
                print(name, len(group), flush=True)
    for (label, k), regrets in sorted(lost.items()):
        print(f"{label:7} {k} runs: regret {np.mean(regrets):.2%}, worst {max(regrets):.1%}")


def score(sweep: Sweep, draws: int, lost: dict[tuple[str, int], list[float]]) -> None:
    """Regrets of one sweep."""
    tried: list[int] = []
    samples = sweep.samples(tried)
    lost["next", 0].append(sweep.regret(samples))
    for k in range(1, PICKS + 1):
        advice = advise(samples, np.ones(len(sweep.runs)), count=1, closed=tried)
        tried.append(advice.picks[0].row)
        samples = sweep.samples(tried)
        lost["next", k].append(sweep.regret(samples))
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(sweep.runs)).tolist()
        for k in range(1, RANDOM_PICKS + 1):
            lost["random", k].append(sweep.regret(sweep.samples(order[:k])))


if __name__ == "__main__":
    main()
