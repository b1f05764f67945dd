"""Ground truth of our own: small models trained for real on this machine, against what the projection says of them.

Every case is one configuration of a small GPT or MoE on the host's devices: data, tensor, pipeline (torch's own
schedules), fully sharded and expert parallelism, recomputation, micro-batch sizes. Each is trained in fresh processes,
its step timed and its peak resident memory read; the same candidate is projected for `hardware: host`, then
re-validated with measured layers, and the three are compared: rank correlation of tokens/s, place of the true best,
median errors of step time and memory.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from primus_search.candidates import Candidates, Recompute, Sharding
from primus_search.cluster import Cluster
from primus_search.cost.project import Projector
from primus_search.measure.bench import Piece
from primus_search.measure.isolate import Verdict
from primus_search.measure.ranks import run_ranks
from primus_search.measure.revalidate import Benchmark, make_bencher
from primus_search.measure.shard import Shard
from primus_search.model import MixtureOfExperts, Model
from primus_search.workload import Workload

GPT = Model(
    name="truth-gpt", num_layers=4, hidden=256, ffn_hidden=1024, num_heads=4, num_kv_heads=2, head_dim=64,
    vocab_size=4096, source="made for this comparison",
)  # fmt: skip
MOE = Model(
    name="truth-moe", num_layers=4, hidden=256, ffn_hidden=1024, num_heads=4, num_kv_heads=2, head_dim=64,
    vocab_size=4096, moe=MixtureOfExperts(num_experts=4, top_k=2, expert_ffn_hidden=512), source="as truth-gpt",
)  # fmt: skip
WORKLOAD = Workload(seq_length=256, global_batch_size=16)
RANKS = 2
STEPS, WARMUP = 5, 1
LIMIT_S = 180.0
CALM_LOAD = 0.5  # running processes per core besides ours, above which a wall clock says little

PLAIN, FULL, CORE = Recompute.NONE, Recompute.FULL, Recompute.CORE_ATTENTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration: its name, how the trainer splits the work, and its knobs as columns of `Candidates`."""

    name: str
    model: Model
    mode: str
    knobs: dict[str, int] = field(default_factory=dict)
    schedule: str = "1f1b"

    def candidates(self) -> Candidates:
        """The case as a table of one row."""
        sharding = Sharding.FSDP2 if self.mode == "fsdp" else Sharding.NONE
        fixed: dict[str, Any] = {"sharding": int(sharding), "sequence_parallel": False, "loss_fusion": True}
        return Candidates.table(schedules=(self.schedule,), **(fixed | self.knobs))


def cases() -> tuple[Case, ...]:
    """All configurations, 33 of them."""
    found = []
    for b in (1, 2, 4):
        size = {"micro_batch_size": b}
        for model, prefix in ((GPT, "gpt"), (MOE, "moe")):
            found.append(Case(name=f"{prefix} dp2 b{b}", model=model, mode="dp", knobs=size))
            found.append(Case(name=f"{prefix} fsdp2 b{b}", model=model, mode="fsdp", knobs=size))
            found.append(Case(name=f"{prefix} pp2 1f1b b{b}", model=model, mode="pp", knobs=size | {"pp": 2}))
        found.append(Case(name=f"gpt tp2 b{b}", model=GPT, mode="tp", knobs=size | {"tp": 2}))
        found.append(Case(name=f"moe ep2 b{b}", model=MOE, mode="dp", knobs=size | {"ep": 2}))
    for b in (1, 2):
        size = {"micro_batch_size": b}
        full = size | {"recompute": int(FULL)}
        found.append(Case(name=f"gpt dp2 recompute b{b}", model=GPT, mode="dp", knobs=full))
        found.append(Case(name=f"gpt pp2 gpipe b{b}", model=GPT, mode="pp", knobs=size | {"pp": 2}, schedule="gpipe"))
        v = size | {"pp": 2, "vpp": 2}
        found.append(Case(name=f"gpt pp2 v2 b{b}", model=GPT, mode="pp", knobs=v, schedule="interleaved"))
    size = {"micro_batch_size": 2}
    full = size | {"recompute": int(FULL)}
    found.append(Case(name="gpt tp2 recompute b2", model=GPT, mode="tp", knobs=full | {"tp": 2}))
    found.append(Case(name="moe ep2 recompute b2", model=MOE, mode="dp", knobs=full | {"ep": 2}))
    found.append(Case(name="gpt dp2 selective b2", model=GPT, mode="dp", knobs=size | {"recompute": int(CORE)}))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case, three ways. Seconds of a step, bytes of a process at its peak; `failure` says why there are none.

    cpu_s  CPU seconds of a step on the slower rank: what a busy machine does not spoil, but blind to waiting
    """

    name: str
    trained_s: float = float("nan")
    trained_bytes: float = float("nan")
    projected_s: float = float("nan")
    measured_s: float = float("nan")
    projected_bytes: float = float("nan")
    baseline_bytes: float = float("nan")
    cpu_s: float = float("nan")
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All cases and what they add up to. Errors are fractions; `place` is where the true best stands, from 1."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> list[Row]:
        return [row for row in self.rows if not row.failure]

    def kendall(self, which: str = "measured_s") -> float:
        """Rank correlation of step time with real training."""
        good = self.complete
        found = kendalltau([row.__getattribute__(which) for row in good], [row.trained_s for row in good])
        return float(found.statistic)

    def place(self, which: str = "measured_s") -> int:
        """Place of the truly fastest case in the ranking."""
        good = self.complete
        best = min(good, key=lambda row: row.trained_s)
        return sorted(good, key=lambda row: row.__getattribute__(which)).index(best) + 1

    def step_error(self, which: str = "measured_s") -> float:
        """Median relative error of the step time."""
        return median(float(abs(row.__getattribute__(which) / row.trained_s - 1.0)) for row in self.complete)

    @property
    def memory_error(self) -> float:
        return median(abs(row.projected_bytes / row.trained_bytes - 1.0) for row in self.complete)

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json` and for results/."""
        rows = [{name: row.__getattribute__(name) for name in Row.__dataclass_fields__} for row in self.rows]
        figures: dict[str, Any] = {"configurations": len(self.complete)}
        if self.complete:
            figures |= {"kendall": self.kendall(), "kendall_projected": self.kendall("projected_s")}
            figures |= {"place_of_true_best": self.place(), "step_median_error": self.step_error()}
            figures |= {"step_median_error_projected": self.step_error("projected_s")}
            figures |= {"memory_median_error": self.memory_error}
        return figures | {"notes": list(self.notes), "rows": rows}


def train(case: Case, *, steps: int = STEPS, warmup: int = WARMUP, limit_s: float = LIMIT_S) -> Row:
    """Really train one case; step seconds are those of the slower rank, memory that of the larger."""
    c = case.candidates()
    shard = Shard.of(c, 0, WORKLOAD, "float32")
    piece = Piece(piece="layer", model=case.model, shard=shard, kind=case.model.kinds[0])
    dp = RANKS if case.mode in ("dp", "fsdp") else 1
    knobs = {"mode": case.mode, "dp": dp, "vpp": int(c.vpp[0]), "schedule": case.schedule}
    microbatches = WORKLOAD.global_batch_size // (shard.micro_batch_size * dp)
    payload = {"piece": piece.to_json(), "knobs": knobs, "microbatches": microbatches, "steps": steps}
    outcomes = run_ranks(
        "primus_search.measure.truth_train:train", payload | {"warmup": warmup}, ranks=RANKS, limit_s=limit_s
    )
    for outcome in outcomes:
        if outcome.verdict is not Verdict.DONE:
            return Row(name=case.name, failure=f"{outcome.verdict.value}: {outcome.cause}")
    values = [outcome.value for outcome in outcomes]
    return Row(
        name=case.name,
        trained_s=max(_undisturbed(value["walls_s"]) for value in values),
        trained_bytes=max(float(value["peak_bytes"]) for value in values),
        baseline_bytes=max(float(value["baseline_bytes"]) for value in values),
        cpu_s=max(_undisturbed(value["cpus_s"]) for value in values),
    )


def _undisturbed(walls: Sequence[float]) -> float:
    """The lower quartile of step times: other work only ever makes a step longer."""
    return float(np.quantile(walls, 0.25))


def compare(cluster: Cluster, rows: Sequence[tuple[Case, Row]], how: Benchmark) -> tuple[Row, ...]:
    """Project and re-validate every trained case."""
    done = []
    benchers = {model.name: make_bencher(model, cluster, WORKLOAD, how, "cpu") for model in (GPT, MOE)}
    budget_s = how.seconds / max(len(rows), 1)
    for case, row in rows:
        if row.failure:
            done.append(row)
            continue
        c, bencher = case.candidates(), benchers[case.model.name]
        projected = Projector(case.model, cluster, WORKLOAD).project(c)
        measured_s = float("nan")
        if bencher.measure(c, 0, budget_s):
            layers = bencher.layers(c, [0])
            again = Projector(case.model, cluster, WORKLOAD, measured=layers).project(c)
            measured_s = float(again.step.total[0])
        failure = "" if measured_s == measured_s else f"benchmark: {bencher.failures[-1].cause}"
        done.append(
            replace(
                row,
                projected_s=float(projected.step.total[0]),
                measured_s=measured_s,
                projected_bytes=float(projected.memory.total[0]),
                failure=failure,
            )
        )
    return tuple(done)


def prove(
    cluster: Cluster,
    how: Benchmark,
    *,
    chosen: Sequence[Case] | None = None,
    steps: int = STEPS,
    say: Callable[[str], object] = print,
) -> Report:
    """Train the cases, project them, and report. Takes minutes; wants a quiet machine and says when it had none."""
    wanted = tuple(chosen) if chosen is not None else cases()
    notes = []
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] / cores
    if load > CALM_LOAD:
        notes.append(f"the machine was busy (load {load:.1f} per core before the first case): step times are not calm")
    trained = []
    for number, case in enumerate(wanted, start=1):
        row = train(case, steps=steps)
        trained.append((case, row))
        say(f"{number}/{len(wanted)} {case.name}: {row.failure or f'{row.trained_s:.3f} s'}")
    return Report(rows=compare(cluster, trained, how), notes=tuple(notes))
