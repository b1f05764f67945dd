"""A projected step by what the device does, beside the step that a profiler saw."""

from typing import Any

import numpy as np

from primus_search.analysis.breakdown import busiest_rank, stages_of
from primus_search.analysis.slow_jobs.device_trace import StepParts, TracedStep
from primus_search.cost.parts.operations import Call, GroupedLinear, LinearOp, Module, Operation, Pass, tallied
from primus_search.cost.projection import Projection
from primus_search.cost.stage import piece_operations
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job

EXCHANGE = ("tensor_comm", "context_comm", "expert_comm", "shard_comm", "gradient_comm")
# Parts of a projected step in which the device exchanges with others or waits.
IDLE = ("bubble", "launch", "overhead", "stragglers")


def projected_parts(job: Job, one: Candidates, projection: Projection) -> StepParts:
    """Of the pipeline rank with most work; recomputed kernels count as what they repeat."""
    ran, step = _passes(job, one, int(projection.microbatches[0])), projection.step
    exchange = sum(float(step.__getattribute__(name)[0]) for name in EXCHANGE)
    idle = sum(float(step.__getattribute__(name)[0]) for name in IDLE)
    forward_s = ran["all"][Pass.FORWARD]
    again = min(1.0, float(step.recompute[0]) / forward_s) if forward_s > 0.0 else 0.0
    gemm, attention = (sum(ran[name]) + again * ran[name][Pass.FORWARD] for name in ("gemm", "attention"))
    other = float(step.total[0]) - gemm - attention - exchange - idle
    return StepParts(gemm_s=gemm, attention_s=attention, exchange_s=exchange, other_s=other, idle_s=idle)


def _passes(job: Job, one: Candidates, microbatches: int) -> dict[str, list[float]]:
    """Seconds of products, of attention's core and of all kernels of the busiest rank, each by pass."""
    stages = stages_of(job, one)
    mine = stages.counts[stages.rank == busiest_rank(stages, one)].sum(axis=0) * microbatches
    found = {name: [0.0] * len(Pass) for name in ("gemm", "attention", "all")}
    for piece in np.flatnonzero(mine).tolist():
        operations = piece_operations(job, piece, one)
        chosen: dict[str, list[Operation]] = {
            "gemm": [o for o in operations if isinstance(o, LinearOp | GroupedLinear)],
            "attention": [o for o in operations if isinstance(o, Call) and o.module is Module.CORE],
            "all": operations,
        }
        for name, some in chosen.items():
            seconds = _seconds(job, one, some)
            found[name] = [before + mine[piece] * s for before, s in zip(found[name], seconds, strict=True)]
    return found


def _seconds(job: Job, one: Candidates, operations: list[Operation]) -> list[float]:
    """Of each pass of a piece."""
    work = tallied(job, operations, one)
    return [float(work.pass_s(which)[0]) for which in Pass]


def side_by_side(job: Job, one: Candidates, projection: Projection, step: TracedStep) -> dict[str, Any]:
    """Both steps by part, for JSON: `{"projected": {...}, "traced": {...}, "steps", "hidden_exchange_s", "ran_on"}`."""
    found: dict[str, Any] = {"projected": projected_parts(job, one, projection).parts, "traced": step.parts}
    return found | {"steps": step.steps, "hidden_exchange_s": step.hidden_exchange_s, "ran_on": step.ran_on}
