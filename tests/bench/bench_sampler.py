"""How good the samplers are where the truth is known: every space below is walked entirely, then sampled.

    python tests/bench/bench_sampler.py [--seeds 10] [--evaluations 2000] [--methods tpe,nsga2] [SPACE ...]

Per space and method: the regret of the best row (share of tokens/s missed) and the share of the true frontier's
hypervolume (memory against throughput), worst and median over the seeds; in how many seeds the best is within 1 % and
the hypervolume at least 98 %; after how many evaluations the median seed was within 1 %; processor seconds per seed.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

from primus_search.declare import load_space
from primus_search.exploration.exhaustive.collect import Budget, Tick, leaders
from primus_search.exploration.exhaustive.evaluate import CHUNK_ROWS, Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Shortlist
from primus_search.exploration.findings import Findings
from primus_search.exploration.sampled.samplers import run_sampler
from tests.support.sampler_truth import hypervolume_share, regret

SPACES = ("llama3.1_405b_h100", "mixtral_8x22b", "deepseek_v2_mi355x")
METHODS = ("tpe", "nsga2")
KEEP = 1000
GOOD_REGRET, GOOD_HYPERVOLUME = 0.01, 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One seed: regret, hypervolume share, evaluations until within 1 % (0: never), processor seconds."""

    regret: float
    hypervolume: float
    reached: int
    seconds: float


def truth_of(funnel: Funnel) -> Shortlist:
    """Top list and frontier of the whole space."""
    found = Findings.none(KEEP)
    size = funnel.enumerators[0].size
    for number, start in enumerate(range(0, size, CHUNK_ROWS)):
        task = Task(number=number, cluster=0, start=start, stop=min(start + CHUNK_ROWS, size))
        found = found.plus(funnel.evaluate(task, found.shortlist.cut))
    return found.shortlist


def outcome_of(funnel: Funnel, truth: Shortlist, method: str, evaluations: int, seed: int) -> Outcome:
    """One sampled search against the truth."""
    ticks, started = list[Tick](), time.process_time()
    sampled = run_sampler(funnel, method, Budget(candidates=evaluations), seed, progress=ticks.append)
    seconds, found = time.process_time() - started, sampled.findings[0].shortlist
    good = (1.0 - GOOD_REGRET) * leaders(funnel, [truth.top])[0].tokens_per_s_per_gpu
    near = [tick.rows_done for tick in ticks if any(one.tokens_per_s_per_gpu >= good for one in tick.leaders())]
    return Outcome(
        regret=regret(found.top, truth.top),
        hypervolume=hypervolume_share(found.frontier, truth.frontier),
        reached=min(near, default=0),
        seconds=seconds,
    )


def line_of(method: str, outcomes: list[Outcome]) -> str:
    """One line of the table."""
    regrets, volumes = [o.regret for o in outcomes], [o.hypervolume for o in outcomes]
    near = sum(r <= GOOD_REGRET for r in regrets)
    covered = sum(v >= GOOD_HYPERVOLUME for v in volumes)
    reached = statistics.median(o.reached or 10**9 for o in outcomes)
    return (
        f"{method:8s} {near:3d}/{len(outcomes):<3d} {max(regrets):9.3%} {statistics.median(regrets):9.3%}"
        f" {reached:10,.0f} {covered:5d}/{len(outcomes):<3d} {min(volumes):8.2%} {statistics.median(volumes):8.2%}"
        f" {statistics.mean(o.seconds for o in outcomes):8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="*", default=SPACES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--methods", default=",".join(METHODS))
    asked = parser.parse_args()
    for name in asked.spaces:
        funnel = Funnel(load_space(name), KEEP)
        started = time.process_time()
        truth = truth_of(funnel)
        print(
            f"{name}: {funnel.enumerators[0].size:,} legal, {asked.evaluations:,} evaluated per seed, true best"
            f" {truth.top.step_s[0]:.4f} s, {len(truth.frontier)} on the frontier"
            f" (walked in {time.process_time() - started:.0f} s)"
        )
        print(
            f"{'method':8s} {'<= 1 %':>7s} {'worst':>9s} {'median':>9s} {'evals':>10s} {'>= 98 %':>9s} {'worst':>8s}"
            f" {'median':>8s} {'CPU s':>8s}"
        )
        for method in asked.methods.split(","):
            outcomes = [outcome_of(funnel, truth, method, asked.evaluations, seed) for seed in range(asked.seeds)]
            print(line_of(method, outcomes), flush=True)


if __name__ == "__main__":
    main()
