"""Trains the chosen cases for real, in rounds, and measures what the projection needs in between.

The host is calibrated once, the cases are chosen by what is projected then (`truth.space`), and rounds follow:
calibrate again, then train every case for a few steps and measure its layers right afterwards, in an order of its own
each time, so that what drifts or disturbs meets every case alike. A case whose calm steps agree is left out of further
rounds; rounds end when all agree or when the seconds are spent, in the middle of a round if need be.

What the rounds have found, case by case: as trained, as projected, and as projected with its layers measured.
"""

import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from primus_search.base.errors import InputError, Problem
from primus_search.cost.project import Projector
from primus_search.measure.candidate_bench import Bencher, MeasurementCache
from primus_search.measure.device.device_info import CPU, describe
from primus_search.measure.device.device_table import to_csv
from primus_search.measure.device.timing import PieceMeasurement
from primus_search.measure.host_calibration import WARM, CalibrationError, calibration_job, fit, mean_of, rows_of
from primus_search.measure.isolate import ProcessOutcome
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import RankJob, failure_of, run_jobs
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tools.truth import samples
from tools.truth.case_space import COUNT, FLOAT, MODELS, RANKS, SEED, WORKLOAD, TruthCase, chosen, legal
from tools.truth.samples import PieceSample, Sample, Yardstick, estimate, is_tight, lower_quartile
from tools.truth.truth_report import Report, TruthRow

MEASUREMENTS = "truth_layers.jsonl"
HOST = "truth_host.csv"
STEPS_FILE = "truth_steps.csv"


@dataclass(slots=True, kw_only=True)
class Found:
    """What the rounds have found so far: calibrations, measurements by piece, samples by case and visit, memory.

    figures  of each calibration, all ranks   peaks  held, reserved and of a bare process, bytes
    """

    figures: list[list[dict[str, Any]]] = field(default_factory=list)
    pieces: dict[tuple[str, str], list[PieceSample]] = field(default_factory=dict)
    visits: dict[str, list[list[Sample]]] = field(default_factory=dict)
    peaks: dict[str, tuple[float, ...]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def yardstick(self) -> Yardstick:
        """What all steps say of it; a calm core's is 0 before anything was trained."""
        return (
            samples.yardstick_of([self.steps_of(name) for name in self.visits])
            if self.visits
            else Yardstick(calm_s=0.0)
        )

    def steps_of(self, name: str, visits: slice = slice(None)) -> list[Sample]:
        """All steps of one case, or those of some of its visits."""
        return [sample for steps in self.visits[name][visits] for sample in steps]

    def take(self, name: str, values: Sequence[dict[str, Any]]) -> None:
        """What the ranks say of one visit (`train.train`)."""
        self.visits.setdefault(name, []).append(samples.samples_of(values, os.cpu_count() or 1))
        sizes = ("peak_bytes", "reserved_bytes", "baseline_bytes")
        self.peaks.setdefault(name, tuple(max(value[size] for value in values) for size in sizes))
        for one in (one for value in values for one in value["pieces"]):
            sample = PieceSample(measurement=PieceMeasurement(**one["measurement"]), yard_s=one["yard_s"])
            key = (sample.measurement.kernel, sample.measurement.shape)
            self.pieces.setdefault(key, []).append(sample)

    def calibration(self) -> dict[str, Any]:
        """The host's figures: kernels by the lower quartile of ranks and rounds, links, which need all ranks, of
        rounds."""
        links = lower_quartile([mean_of([one["links"] for one in same]) for same in self.figures])
        kernels = lower_quartile([one for same in self.figures for one in same])
        return dict(kernels | {"links": links})

    def cluster(self, stack: Stack) -> Cluster:
        """This machine as calibrated so far."""
        accelerator, network = fit(self.calibration(), RANKS)
        return Cluster(accelerator=accelerator, network=network, stack=stack, num_nodes=1)


def compare(wanted: Sequence[TruthCase], found: Found, cluster: Cluster, folder: Path) -> tuple[TruthRow, ...]:
    """A row of every case; every step, the host's calibration and the pieces are written to the folder."""
    (folder / STEPS_FILE).write_text(steps_csv(found), encoding="utf-8")
    table = to_csv(rows_of(found.calibration(), RANKS, describe(CPU).label))
    (folder / HOST).write_text(table, encoding="utf-8")
    cache = MeasurementCache(folder / MEASUREMENTS)
    yardstick = found.yardstick
    cache.add(_merged(same, yardstick) for same in found.pieces.values())
    benchers = {model.name: _bencher(model, cache) for model in MODELS.values()}
    return tuple(_row(case, found, yardstick, cluster, benchers[case.model.name]) for case in wanted)


def steps_csv(found: Found) -> str:
    """Every timed step as a row, seconds of each rank in columns of its own."""
    rows = [
        {"name": name, "visit": visit, "wall_s": one.wall_s, "foreign_share": one.foreign_share}
        | {f"cpu_s_{rank}": seconds for rank, seconds in enumerate(one.cpus_s)}
        | {f"yardstick_s_{rank}": seconds for rank, seconds in enumerate(one.yards_s)}
        for name, visits in found.visits.items()
        for visit, steps in enumerate(visits, start=1)
        for one in steps
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def _merged(same: Sequence[PieceSample], yardstick: Yardstick) -> PieceMeasurement:
    """One measurement from those of all ranks, cases and rounds, every note once."""
    spreads = lower_quartile([sample.measurement.spreads_s for sample in same])
    notes = tuple(dict.fromkeys(note for sample in same for note in sample.measurement.notes))
    return replace(
        same[0].measurement, seconds=samples.undisturbed_piece(same, yardstick), spreads_s=spreads, notes=notes
    )


def _bencher(model: Model, cache: MeasurementCache) -> Bencher:
    return Bencher(model=model, workload=WORKLOAD, device=describe(CPU), dtype=FLOAT, cache=cache)


def _row(case: TruthCase, found: Found, yardstick: Yardstick, cluster: Cluster, bencher: Bencher) -> TruthRow:
    if case.name not in found.visits:
        return TruthRow(name=case.name, failure=found.failures.get(case.name, "not trained"))
    layers = bencher.layers(case.row, [0])
    if not layers.pieces:
        return TruthRow(name=case.name, failure="its layers could not be measured")
    job = Job(case.model, cluster, WORKLOAD)
    projected, again = (Projector(job, measured=given).project(case.row) for given in (None, layers))
    steps = found.steps_of(case.name)
    trained = estimate(steps, yardstick)
    halves = [found.steps_of(case.name, slice(first, None, 2)) for first in (0, 1)]
    odd_s, even_s = (estimate(half, yardstick).seconds if half else math.nan for half in halves)
    peak, reserved, baseline = found.peaks[case.name]
    return TruthRow(
        name=case.name,
        trained_s=trained.seconds,
        trained_bytes=peak,
        reserved_bytes=reserved,
        projected_s=float(projected.step.total[0]),
        measured_s=float(again.step.total[0]),
        projected_bytes=float(projected.memory.total[0]),
        baseline_bytes=baseline,
        projected_baseline_bytes=float(projected.memory.context[0]),
        cpu_s=median(max(sample.cpus_s) for sample in steps),
        odd_s=odd_s,
        even_s=even_s,
        half_width=trained.half_width,
        calm_steps=trained.calm,
        steps=len(steps),
        is_calm=trained.is_calm,
    )


STEPS = 3  # calm ones, per round
WARMUP = 1  # finds the heap grown by the counted steps, or grows it
COUNTED = 2  # steps whose memory is counted, once; the second begins with all of the optimizer's state
PIECE_S = 0.25  # measuring one piece of one case, per round
LIMIT_S = 60.0
ENDING_S, ENDING_SHARE = 30.0, 0.2  # what begins last takes, and the comparison: at most that, or that share of all
SHORTEST_S = 10.0  # a round that is worth its start

Say = Callable[[str], object]
Take = Callable[[list[ProcessOutcome]], None]


def prove(
    stack: Stack,
    *,
    folder: Path,
    only: Sequence[str] = (),
    count: int = COUNT,
    seconds: float = 780.0,
    steps: int = STEPS,
    say: Say = print,
) -> Report:
    """Train, project and compare within `seconds`. Wants a quiet machine, and says when it had none.

    only    texts one of which a configuration's name must contain;  count  configurations to choose of these
    folder  where the measurements of this run are kept; a file of its own, so that no old one answers
    """
    found, until = Found(), time.time() + seconds - min(ENDING_S, ENDING_SHARE * seconds)
    _calibrate(found)
    cluster = found.cluster(stack)
    wanted, size = _wanted(cluster, only, count)
    say(f"{len(wanted)} of {size} legal configurations: {', '.join(case.name for case in wanted)}")
    rounds, order = 0, random.Random(SEED)
    left = list(wanted)
    while left and time.time() + SHORTEST_S < until:
        order.shuffle(left)
        began, rounds = time.time(), rounds + 1
        train_round(left, found, steps, until)
        yardstick = found.yardstick
        calm = sum(estimate(found.steps_of(name), yardstick).is_calm for name in found.visits)
        left = [
            case
            for case in wanted
            if case.name not in found.failures and not is_tight(found.visits.get(case.name, []), yardstick)
        ]
        say(
            f"round {rounds}: {time.time() - began:.0f} s; {calm} of {len(wanted)} configurations have calm steps, "
            f"{len(wanted) - len(left)} need no more"
        )
    rows = compare(wanted, found, found.cluster(stack), folder)
    notes = (f"Trained: {len(wanted)} of {size} legal configurations, chosen by projected speed.", *found.notes)
    notes = tuple(dict.fromkeys([*notes, *_notes(rows, found, rounds)]))
    device = describe(CPU)
    machine = {"host": device.name, "versions": device.versions, "date": str(datetime.now(UTC).date())}
    return Report(rows=rows, notes=notes, machine=machine)


def _wanted(cluster: Cluster, only: Sequence[str], count: int) -> tuple[list[TruthCase], int]:
    cases = legal(cluster)
    named = [case for case in cases if not only or any(text in case.name for text in only)]
    if not named:
        names = ", ".join(case.name for case in cases)
        raise InputError([Problem("--only", f"no configuration contains {', '.join(only)}; there are: {names}")])
    return chosen(named, cluster, count), len(named)


def _notes(rows: Sequence[TruthRow], found: Found, rounds: int) -> list[str]:
    steps = [sample for name in found.visits for sample in found.steps_of(name)]
    if not steps:
        return ["nothing was trained"]
    foreign, slower = (s.foreign_share for s in steps), found.yardstick.slowness(steps).max(axis=1) - 1.0
    disturbed = (
        f"other processes used {median(foreign):.0%} of the cores during the median step, beside which a core was "
        f"{median(slower):.0%} slower than at its best"
    )
    busy = [row.name for row in rows if not row.failure and not row.is_calm]
    verdict = f"{disturbed[0].upper()}{disturbed[1:]}."
    if not Report(rows=tuple(rows)).is_valid:
        verdict = f"BUSY MACHINE: {disturbed}; {len(busy)} configurations have too few calm steps to prove anything"
    elif busy:
        verdict = f"too few calm steps, so others beside them or scaled: {', '.join(busy)}; {disturbed}"
    return [
        f"{describe(CPU).label}; {rounds} rounds, {len(steps)} steps of {WORKLOAD.tokens_per_step:.0f} tokens", verdict,
    ]  # fmt: skip


# --- one round ----------------------------------------------------------------------------------------------------


def _calibrate(found: Found) -> None:
    """Calibrate the host once before anything else; without it there is nothing to choose by."""
    _run([(calibration_job(), partial(_calibrated, found))])
    if not found.figures:
        raise CalibrationError(f"this machine could not be measured: {found.notes[-1]}")


def train_round(left: Sequence[TruthCase], found: Found, steps: int, until: float) -> None:
    """Calibrate, train every case once more and measure its pieces."""
    jobs: list[tuple[RankJob, Take]] = [(calibration_job(), partial(_calibrated, found))]
    seen: set[tuple[str, str]] = set()
    yard_s = found.yardstick.calm_s
    for case in left:
        pieces = [p for p in pieces_of(case) if p.piece == "layer" or (p.piece, p.shape) not in seen]
        seen |= {(piece.piece, piece.shape) for piece in pieces}
        counted = 0 if case.name in found.peaks else COUNTED
        job = training_job(case, steps, counted=counted, pieces=pieces, yard_s=yard_s, until=until)
        jobs.append((job, partial(_trained, found, case.name)))
    _run(jobs)


def _run(jobs: Sequence[tuple[RankJob, Take]]) -> None:
    outcomes = run_jobs([job for job, _ in jobs], ranks=RANKS, threads=1, warm=WARM)
    for (_, take), same in zip(jobs, outcomes, strict=True):
        take(same)


def pieces_of(case: TruthCase) -> list[TimedPiece]:
    piece = partial(TimedPiece, model=case.model, shard=Shard.of(case.row, 0, WORKLOAD, FLOAT))
    layers = [piece(piece="layer", kind=kind) for kind in case.model.kinds]
    return layers + [piece(piece=name) for name in ("embedding", "head", "optimizer")]


def training_job(
    case: TruthCase,
    steps: int,
    *,
    warmup: int = WARMUP,
    counted: int = COUNTED,
    pieces: Sequence[TimedPiece] = (),
    yard_s: float = 0.0,
    until: float,
    workload: Workload = WORKLOAD,
    limit_s: float = LIMIT_S,
) -> RankJob:
    """Really train one case on all ranks; `counted` steps before the timed ones tell its memory."""
    shard = Shard.of(case.row, 0, workload, FLOAT)
    piece = TimedPiece(piece="layer", model=case.model, shard=shard, kind=case.model.kinds[0])
    dp = RANKS if case.mode in ("dp", "fsdp") else 1
    knobs = {"mode": case.mode, "dp": dp, "vpp": int(case.row.vpp[0]), "schedule": case.schedule}
    microbatches = workload.global_batch_size // (shard.micro_batch_size * dp)
    payload = {"piece": piece.to_json(), "knobs": knobs, "microbatches": microbatches}
    payload |= {"steps": steps, "warmup": warmup, "counted": counted, "yard_s": yard_s, "until": until}
    payload |= {"pieces": [one.to_json() for one in pieces], "piece_s": PIECE_S}
    return RankJob(function="tools.truth.training:train", payload=payload, limit_s=limit_s)


def _calibrated(found: Found, outcomes: list[ProcessOutcome]) -> None:
    failure = failure_of(outcomes)
    if failure is None:
        found.figures.append([outcome.value for outcome in outcomes])
    else:
        found.notes.append(f"calibration: {failure.verdict.value}: {failure.cause}")


def _trained(found: Found, name: str, outcomes: list[ProcessOutcome]) -> None:
    failure = failure_of(outcomes)
    if failure is not None:
        found.failures[name] = f"{failure.verdict.value}: {failure.cause}"
        if name in found.visits:
            found.notes.append(f"{name} failed in a later round: {found.failures[name]}")
        return
    values = [outcome.value for outcome in outcomes]
    if not any(value["is_late"] for value in values):
        found.take(name, values)
