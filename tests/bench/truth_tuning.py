"""How soon the best of the recorded trainings of `truth` is found: by `next`, by Optuna's TPE, at random.

    python tests/bench/truth_tuning.py [--trials 5] [--seeds 20]

The trainings are those of results/measurements/truth.csv (13 of a small GPT, 13 of a small MoE, of 117 legal ones);
nothing is trained. A trial gives the recorded step time. Printed: by how much the best row tried so far is slower than
the true best, mean over models and seeds.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import optuna

from primus_search.cost.project import Projector
from primus_search.files.hardware_files import load_cluster
from primus_search.learning.next_runs import next_runs
from primus_search.values.candidates import joined
from primus_search.values.job import Job
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance
from tools.truth.case_space import MODELS, WORKLOAD, TruthCase, legal

TABLE = Path("results/measurements/truth.csv")
Chooser = Callable[[int, int], list[int]]


def recorded() -> dict[str, float]:
    """Trained seconds of a step by configuration."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: float(row["trained_s"]) for row in csv.DictReader(file) if not row["failure"]}


def by_next(cases: Sequence[TruthCase], job: Job, seconds: np.ndarray) -> Chooser:
    """Rows in the order in which `next` picks them, each given the trials before."""
    table = joined([case.row for case in cases])
    projected = Projector(job).project(table).step.total

    def choose(trials: int, seed: int) -> list[int]:
        tried: list[int] = []
        for _ in range(trials):
            rates = [WORKLOAD.tokens_per_step / seconds[i] / job.cluster.world for i in tried]
            runs = [_run(cases[i], job, rate) for i, rate in zip(tried, rates, strict=True)]
            known = dict(zip(tried, rates, strict=True))
            advice = next_runs(job, table, projected, runs, known=known, count=1, seed=seed)
            tried.append(advice.picks[0].row)
        return tried

    return choose


def _run(case: TruthCase, job: Job, rate: float) -> MeasuredRun:
    return MeasuredRun(
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        candidates=case.row,
        measured=Measurement(tokens_per_s_per_gpu=rate),
        provenance=Provenance(id=case.name),
        hardware="host",
    )


def by_tpe(cases: Sequence[TruthCase], seconds: np.ndarray) -> Chooser:
    """Rows in the order in which TPE asks for them; of values that no row has it is told nothing."""
    rows = [{name: str(value) for name, value in case.row.row(0).items()} for case in cases]
    axes = {name: sorted({row[name] for row in rows}) for name in rows[0]}
    axes = {name: values for name, values in axes.items() if len(values) > 1}

    def choose(trials: int, seed: int) -> list[int]:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=2)
        study = optuna.create_study(sampler=sampler)
        tried: list[int] = []
        while len(tried) < trials:
            trial = study.ask()
            asked = {name: trial.suggest_categorical(name, values) for name, values in axes.items()}
            same = [sum(row[name] == value for name, value in asked.items()) for row in rows]
            nearest = int(np.argmax([-1 if i in tried else count for i, count in enumerate(same)]))
            tried.append(nearest)
            study.tell(trial, seconds[nearest])
        return tried

    return choose


def at_random(count: int) -> Chooser:
    """Rows in random order."""
    return lambda trials, seed: np.random.default_rng(seed).permutation(count)[:trials].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    cluster, times = load_cluster("host", 1), recorded()
    lost: dict[str, list[list[float]]] = {"next": [], "TPE": [], "random": []}
    for model in MODELS.values():
        cases = [case for case in legal(cluster) if case.model is model and case.name in times]
        seconds = np.array([times[case.name] for case in cases])
        choosers = {
            "next": by_next(cases, Job(model, cluster, WORKLOAD), seconds),
            "TPE": by_tpe(cases, seconds),
            "random": at_random(len(cases)),
        }
        for name, choose in choosers.items():
            for seed in range(1 if name == "next" else given.seeds):
                best = np.minimum.accumulate(seconds[choose(given.trials, seed)])
                lost[name].append((best / seconds.min() - 1.0).tolist())
    for name, found in lost.items():
        print(f"{name:8}" + "  ".join(f"{share:6.1%}" for share in np.mean(found, axis=0)))


if __name__ == "__main__":
    main()
