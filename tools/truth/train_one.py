"""Trains one candidate for real on this machine and prints its steps as a log, for `tune` on `hardware: host`.

    python -m tools.truth.train_one candidate.json [--steps 8]

candidate.json is what `tune` writes beside the launch files: the model by name or path, the workload, the candidate.
"""

import json
from pathlib import Path
from typing import Any

import typer

from primus_search.measure.host_calibration import WARM
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import RankJob, failure_of, run_jobs
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.workload import Workload
from tools.truth.case_space import FLOAT, RANKS, TruthCase

FACTS, STEP, PEAK = "small trainer facts: ", "small trainer step ", "small trainer peak bytes: "
"""What the format `small-trainer` reads."""
STEPS = 8
WARM_UP, COUNTED = 2, 2
"""Steps before the timed ones: as the heap grows, and those whose memory is counted."""
LIMIT_S = 600.0


def training_job(case: TruthCase, steps: int, workload: Workload) -> RankJob:
    """Training of one case on all ranks (`training.train`)."""
    shard = Shard.of(case.row, 0, workload, FLOAT)
    piece = TimedPiece(piece="layer", model=case.model, shard=shard, kind=case.model.kinds[0])
    dp = RANKS if case.mode in ("dp", "fsdp") else 1
    knobs = {"mode": case.mode, "dp": dp, "vpp": int(case.row.vpp[0]), "schedule": case.schedule}
    microbatches = workload.global_batch_size // (shard.micro_batch_size * dp)
    payload = {"piece": piece.to_json(), "knobs": knobs, "microbatches": microbatches}
    payload |= {"counted": COUNTED, "warmup": WARM_UP, "steps": steps}
    return RankJob(function="tools.truth.training:train", payload=payload, limit_s=LIMIT_S)


def train_one(candidate: Path, steps: int = STEPS) -> None:
    """Train, print, and exit with 1 and the cause where that fails."""
    data = json.loads(candidate.read_text(encoding="utf-8"))
    case = TruthCase(name="one", model=load_model(data["model"]), row=Candidates.from_words(data["candidate"]))
    workload = Workload(**data["workload"])
    facts = {name: data["candidate"][name] for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size")}
    facts |= {"gpus": RANKS, "device": "host", "model": case.model.name} | data["workload"]
    print(f"{FACTS}{json.dumps(facts)}")
    outcomes = run_jobs([training_job(case, steps, workload)], ranks=RANKS, threads=1, warm=WARM)[0]
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
