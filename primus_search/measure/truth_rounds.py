"""Trains every case for real, in rounds, and measures what the projection needs in between.

One round: calibrate the host, then for every case measure its layers (and what else no earlier case of the round has
measured) and train it for a few steps. Each of these is a forked job of the ranks' processes, which start once a round.
Rounds repeat, every other one backwards, while seconds last: what drifts or disturbs meets every case alike, and
measured layers and real training share the state of the machine. Of both the least of all samples counts.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from primus_search.cluster import Cluster
from primus_search.cost.project import Projector
from primus_search.measure.bench import Piece
from primus_search.measure.bencher import Bencher, joined_measurements
from primus_search.measure.cache import MeasurementCache
from primus_search.measure.device import CPU, describe
from primus_search.measure.device_table import to_csv
from primus_search.measure.host import WARM, calibration_job, fit, mean_of, rows_of
from primus_search.measure.isolate import Outcome
from primus_search.measure.ranks import Job, failure_of, run_jobs
from primus_search.measure.shard import DtypeName, Shard
from primus_search.measure.timing import Measurement
from primus_search.measure.truth import (
    GPT,
    MOE,
    RANKS,
    WORKLOAD,
    Case,
    Report,
    Row,
    Sample,
    cases,
    undisturbed,
)
from primus_search.model import Model
from primus_search.stack import Stack

STEPS = 2  # calm ones, per round
WARMUP = 2  # the second step finds the heap grown
COUNTED = 2  # steps whose memory is counted, once; the second begins with all of the optimizer's state
PIECE_S = 0.25  # measuring one piece of one case, per round
LIMIT_S = 120.0
MIN_ROUNDS = 2
FLOAT: DtypeName = "float32"
MEASUREMENTS = "truth_layers.jsonl"

Say = Callable[[str], object]


@dataclass(slots=True, kw_only=True)
class Found:
    """What the rounds have found so far: calibrations, measurements by piece, samples by case and round, memory.

    peaks  held, reserved and of a bare process, bytes
    """

    figures: list[dict[str, Any]] = field(default_factory=list)
    pieces: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict)
    samples: dict[str, list[list[Sample]]] = field(default_factory=dict)
    peaks: dict[str, tuple[float, ...]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def yard_s(self) -> float:
        """Least yardstick of all steps of all cases."""
        return min(sample.yard_s for name in self.samples for sample in self.steps_of(name))

    def steps_of(self, name: str, rounds: slice = slice(None)) -> list[Sample]:
        """All steps of one case, or those of some of its rounds."""
        return [sample for steps in self.samples[name][rounds] for sample in steps]


def prove(
    stack: Stack,
    *,
    folder: Path,
    chosen: Sequence[Case] | None = None,
    seconds: float = 780.0,
    steps: int = STEPS,
    say: Say = print,
) -> Report:
    """Train the cases, project them, and report. Takes minutes; wants a quiet machine and says when it had none.

    folder  where the measurements of this run are kept; a file of its own, so that no old one answers
    """
    wanted = tuple(chosen) if chosen is not None else cases()
    found, started, took = Found(), time.perf_counter(), 0.0
    for number in range(1, 1000):
        began = time.perf_counter()
        if number > MIN_ROUNDS and began - started + took > seconds:
            break
        train_round(wanted if number % 2 else wanted[::-1], found, steps)
        took = time.perf_counter() - began
        calm = sum(undisturbed(found.steps_of(name), found.yard_s)[1] for name in found.samples)
        say(f"round {number}: {took:.0f} s; {calm} of {len(wanted)} configurations have calm steps")
        if not found.figures:
            break
    rows = compare(wanted, found, stack, folder)
    notes = tuple(dict.fromkeys([*found.notes, *_notes(rows, found, number - 1)]))
    device = describe(CPU)
    machine = {"host": device.name, "versions": device.versions, "date": str(datetime.now(UTC).date())}
    return Report(rows=rows, notes=notes, machine=machine)


def _notes(rows: Sequence[Row], found: Found, rounds: int) -> list[str]:
    steps = [sample for name in found.samples for sample in found.steps_of(name)]
    shares, slower = [s.foreign_share for s in steps], [s.yard_s / found.yard_s - 1.0 for s in steps]
    notes = [f"{describe(CPU).label}; {rounds} rounds, {len(shares)} steps of {WORKLOAD.tokens_per_step:.0f} tokens"]
    busy = [row.name for row in rows if not row.failure and not row.is_calm]
    if not Report(rows=tuple(rows)).is_valid:
        notes.append(
            f"BUSY MACHINE: other processes used {median(shares):.0%} of the cores during the median step, a core was "
            f"{median(slower):.0%} slower than at its best, and {len(busy)} configurations have no calm steps: these "
            "step times prove nothing"
        )
    elif busy:
        notes.append(f"no calm steps, so their fastest one: {', '.join(busy)}")
    return notes


# --- one round ----------------------------------------------------------------------------------------------------


def train_round(wanted: Sequence[Case], found: Found, steps: int) -> None:
    """Calibrate, measure pieces and train every case once more."""
    jobs: list[tuple[Job, Callable[[list[Outcome]], None]]] = [(calibration_job(), _Calibrated(found))]
    seen: set[tuple[str, str]] = set()
    for case in wanted:
        if case.name not in found.failures:
            pieces = [p for p in pieces_of(case) if p.piece == "layer" or (p.piece, p.shape) not in seen]
            seen |= {(piece.piece, piece.shape) for piece in pieces}
            jobs.append((_measuring_job(pieces), _Measured(found)))
            counted = 0 if case.name in found.peaks else COUNTED
            jobs.append((training_job(case, steps, counted=counted), _Trained(found, case.name)))
    outcomes = run_jobs([job for job, _ in jobs], ranks=RANKS, threads=1, warm=WARM)
    for (_, take), same in zip(jobs, outcomes, strict=True):
        take(same)


def _measuring_job(pieces: Sequence[Piece]) -> Job:
    payload = {"pieces": [piece.to_json() for piece in pieces], "device": CPU, "budget_s": PIECE_S * len(pieces)}
    return Job(function="primus_search.measure.worker:bench_pieces", payload=payload, limit_s=LIMIT_S)


def shard_of(case: Case) -> Shard:
    return Shard.of(case.candidates(), 0, WORKLOAD, FLOAT)


def pieces_of(case: Case) -> list[Piece]:
    shard = shard_of(case)
    layers = [Piece(piece="layer", model=case.model, shard=shard, kind=kind) for kind in case.model.kinds]
    return layers + [Piece(piece=name, model=case.model, shard=shard) for name in ("embedding", "head", "optimizer")]


def training_job(case: Case, steps: int, warmup: int = WARMUP, counted: int = COUNTED) -> Job:
    """Really train one case on all ranks; `counted` steps before the timed ones tell its memory."""
    shard, c = shard_of(case), case.candidates()
    piece = Piece(piece="layer", model=case.model, shard=shard, kind=case.model.kinds[0])
    dp = RANKS if case.mode in ("dp", "fsdp") else 1
    knobs = {"mode": case.mode, "dp": dp, "vpp": int(c.vpp[0]), "schedule": case.schedule}
    microbatches = WORKLOAD.global_batch_size // (shard.micro_batch_size * dp)
    payload = {"piece": piece.to_json(), "knobs": knobs, "microbatches": microbatches}
    payload |= {"steps": steps, "warmup": warmup, "counted": counted}
    return Job(function="primus_search.measure.truth_train:train", payload=payload, limit_s=LIMIT_S)


@dataclass(frozen=True, slots=True)
class _Calibrated:
    found: Found

    def __call__(self, outcomes: list[Outcome]) -> None:
        failure = failure_of(outcomes)
        if failure is None:
            self.found.figures.append(mean_of([outcome.value for outcome in outcomes]))
        else:
            self.found.notes.append(f"calibration: {failure.verdict.value}: {failure.cause}")


@dataclass(frozen=True, slots=True)
class _Measured:
    found: Found

    def __call__(self, outcomes: list[Outcome]) -> None:
        failure = failure_of(outcomes)
        if failure is not None:
            self.found.notes.append(f"benchmark: {failure.verdict.value}: {failure.cause}")
            return
        for one in joined_measurements([outcome.value for outcome in outcomes]):
            self.found.pieces.setdefault((one.kernel, one.shape), []).append(one)


@dataclass(frozen=True, slots=True)
class _Trained:
    found: Found
    name: str

    def __call__(self, outcomes: list[Outcome]) -> None:
        failure = failure_of(outcomes)
        if failure is not None:
            self.found.failures[self.name] = f"{failure.verdict.value}: {failure.cause}"
            return
        values = [outcome.value for outcome in outcomes]
        self.found.samples.setdefault(self.name, []).append(list(samples_of(values, os.cpu_count() or 1)))
        names = ("peak_bytes", "reserved_bytes", "baseline_bytes")
        self.found.peaks.setdefault(self.name, tuple(max(v[name] for v in values) for name in names))


def samples_of(values: Sequence[dict[str, Any]], cores: int) -> Iterable[Sample]:
    """The timed steps of one job: the slower rank's seconds, and what neither rank used of the machine meanwhile."""
    names = ("walls_s", "cpus_s", "machine_s", "yards_s")
    for by_rank in zip(*(zip(*(v[name] for name in names), strict=True) for v in values), strict=True):
        walls, cpus, machine, yards = zip(*by_rank, strict=True)
        foreign_s = max(median(machine) - sum(cpus), 0.0)
        share = foreign_s / (max(walls) * cores)
        yield Sample(wall_s=max(walls), cpu_s=max(cpus), foreign_share=share, yard_s=max(yards))


# --- what it adds up to -------------------------------------------------------------------------------------------


def least(trees: Sequence[Any]) -> Any:
    """The element-wise minimum of equal trees of numbers: what a call takes when nothing disturbs it."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: least([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list):
        return [least(list(column)) for column in zip(*trees, strict=True)]
    return float(min(trees))


def compare(wanted: Sequence[Case], found: Found, stack: Stack, folder: Path) -> tuple[Row, ...]:
    """Every case as trained, as projected, and as projected with its layers measured."""
    if not found.figures:
        why = found.notes[-1] if found.notes else "the host could not be calibrated"
        return tuple(Row(name=case.name, failure=why) for case in wanted)
    figures = least(found.figures)
    accelerator, network = fit(figures, RANKS)
    (folder / "truth_host.csv").write_text(to_csv(rows_of(figures, RANKS, describe(CPU).label)), encoding="utf-8")
    cluster = Cluster(accelerator=accelerator, network=network, stack=stack, num_nodes=1)
    cache = MeasurementCache(folder / MEASUREMENTS)
    cache.add(_merged(same) for same in found.pieces.values())
    benchers = {model.name: _bencher(model, cache) for model in (GPT, MOE)}
    return tuple(_row(case, found, cluster, benchers[case.model.name]) for case in wanted)


def _merged(same: Sequence[Measurement]) -> Measurement:
    """One measurement from those of all rounds and cases, every note once."""
    seconds, spreads = least([m.seconds for m in same]), least([m.spreads_s for m in same])
    notes = tuple(dict.fromkeys(note for m in same for note in m.notes))
    return replace(same[0], seconds=seconds, spreads_s=spreads, notes=notes)


def _bencher(model: Model, cache: MeasurementCache) -> Bencher:
    return Bencher(model=model, workload=WORKLOAD, device=describe(CPU), dtype=FLOAT, cache=cache)


def _row(case: Case, found: Found, cluster: Cluster, bencher: Bencher) -> Row:
    if case.name in found.failures or case.name not in found.samples:
        return Row(name=case.name, failure=found.failures.get(case.name, "not trained"))
    c = case.candidates()
    layers = bencher.layers(c, [0])
    if not layers.pieces:
        return Row(name=case.name, failure="its layers could not be measured")
    projected = Projector(case.model, cluster, WORKLOAD).project(c)
    again = Projector(case.model, cluster, WORKLOAD, measured=layers).project(c)
    samples = found.steps_of(case.name)
    trained_s, is_calm = undisturbed(samples, found.yard_s)
    halves = [found.steps_of(case.name, slice(first, None, 2)) for first in (0, 1)]
    odd_s, even_s = (undisturbed(half, found.yard_s)[0] if half else math.nan for half in halves)
    peak, reserved, baseline = found.peaks[case.name]
    return Row(
        name=case.name,
        trained_s=trained_s,
        trained_bytes=peak,
        reserved_bytes=reserved,
        projected_s=float(projected.step.total[0]),
        measured_s=float(again.step.total[0]),
        projected_bytes=float(projected.memory.total[0]),
        baseline_bytes=baseline,
        projected_baseline_bytes=float(projected.memory.context[0]),
        cpu_s=median(sample.cpu_s for sample in samples),
        odd_s=odd_s,
        even_s=even_s,
        steps=len(samples),
        is_calm=is_calm,
    )
