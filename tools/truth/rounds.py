"""Trains the chosen cases for real, in rounds, and measures what the projection needs in between.

The host is calibrated once, the cases are chosen by what is projected then (`truth.space`), and rounds follow:
calibrate again, then train every case for a few steps and measure its layers right afterwards, in an order of its own
each time, so that what drifts or disturbs meets every case alike. A case whose calm steps agree is left out of further
rounds; rounds end when all agree or when the seconds are spent, in the middle of a round if need be.
"""

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from primus_search.base.errors import InputError, Problem
from primus_search.measure.device.device_info import CPU, describe
from primus_search.measure.host_calibration import WARM, CalibrationError, calibration_job
from primus_search.measure.isolate import ProcessOutcome
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import RankJob, failure_of, run_jobs
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.workload import Workload
from tools.truth.case_space import COUNT, FLOAT, RANKS, SEED, WORKLOAD, TruthCase, chosen, legal
from tools.truth.samples import estimate, is_tight
from tools.truth.truth_comparison import Found, compare
from tools.truth.truth_report import Report, TruthRow

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
