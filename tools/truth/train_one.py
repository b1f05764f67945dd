"""Trains one candidate for real on this machine and prints its steps as a log, for `tune` on `hardware: host`.

    python -m tools.truth.train_one candidate.json [--steps 8]

candidate.json is what `tune` writes beside the launch files: the model by name or path, the workload, the candidate.
"""

import json
import time
from pathlib import Path
from typing import Any

import typer

from primus_search.measure.host_calibration import WARM
from primus_search.measure.rank_group import failure_of, run_jobs
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.workload import Workload
from tools.truth.case_space import RANKS, TruthCase
from tools.truth.rounds import training_job

FACTS, STEP, PEAK = "small trainer facts: ", "small trainer step ", "small trainer peak bytes: "
"""What the format `small-trainer` reads."""
STEPS = 8
WARM_UP = 2
LIMIT_S = 600.0


def train_one(candidate: Path, steps: int = STEPS) -> None:
    """Train, print, and exit with 1 and the cause where that fails."""
    data = json.loads(candidate.read_text(encoding="utf-8"))
    case = TruthCase(name="one", model=load_model(data["model"]), row=Candidates.from_words(data["candidate"]))
    workload = Workload(**data["workload"])
    facts = {name: data["candidate"][name] for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size")}
    facts |= {"gpus": RANKS, "device": "host", "model": case.model.name} | data["workload"]
    print(f"{FACTS}{json.dumps(facts)}")
    until = time.time() + LIMIT_S
    job = training_job(case, steps, warmup=WARM_UP, until=until, workload=workload, limit_s=LIMIT_S)
    outcomes = run_jobs([job], ranks=RANKS, threads=1, warm=WARM)[0]
    failure = failure_of(outcomes)
    if failure is not None:
        print(f"small trainer failed: {failure.verdict.value}: {failure.cause}")
        raise typer.Exit(1)
    values: list[dict[str, Any]] = [outcome.value for outcome in outcomes]
    for number, seconds in enumerate(zip(*(value["walls_s"] for value in values), strict=True), start=1 + WARM_UP):
        print(f"{STEP}{number}: {max(seconds):.6f} s")
    print(f"{PEAK}{max(value['peak_bytes'] for value in values):.0f}")


if __name__ == "__main__":
    typer.run(train_one)
