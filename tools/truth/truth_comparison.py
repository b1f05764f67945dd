"""What the rounds have found, case by case: as trained, as projected, and as projected with its layers measured."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from primus_search.cost.project import Projector
from primus_search.measure.candidate_bench import Bencher, MeasurementCache
from primus_search.measure.device.device_info import CPU, describe
from primus_search.measure.device.device_table import to_csv
from primus_search.measure.device.timing import PieceMeasurement
from primus_search.measure.host_calibration import rows_of
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.model import Model
from tools.truth.case_space import FLOAT, MODELS, RANKS, WORKLOAD, TruthCase
from tools.truth.gathered import Found
from tools.truth.samples import PieceSample, Yardstick, estimate, lower_quartile, undisturbed_piece
from tools.truth.truth_report import TruthRow

MEASUREMENTS = "truth_layers.jsonl"
HOST = "truth_host.csv"
STEPS = "truth_steps.csv"


def compare(wanted: Sequence[TruthCase], found: Found, cluster: Cluster, folder: Path) -> tuple[TruthRow, ...]:
    """A row of every case; every step, the host's calibration and the pieces are written to the folder."""
    (folder / STEPS).write_text(steps_csv(found), encoding="utf-8")
    table = to_csv(rows_of(found.calibration(), RANKS, describe(CPU).label))
    (folder / HOST).write_text(table, encoding="utf-8")
    cache = MeasurementCache(folder / MEASUREMENTS)
    yardstick = found.yardstick
    cache.add(_merged(same, yardstick) for same in found.pieces.values())
    benchers = {model.name: _bencher(model, cache) for model in MODELS.values()}
    return tuple(_row(case, found, yardstick, cluster, benchers[case.model.name]) for case in wanted)


def steps_csv(found: Found) -> str:
    """Every timed step as a row, seconds of each rank in columns of its own."""
    text = io.StringIO()
    ranks = range(RANKS)
    writer = csv.writer(text, lineterminator="\n")
    cpus, yards = ([f"{name}_s_{rank}" for rank in ranks] for name in ("cpu", "yardstick"))
    writer.writerow(["name", "visit", "wall_s", "foreign_share", *cpus, *yards])
    for name, visits in found.visits.items():
        for visit, steps in enumerate(visits, start=1):
            for one in steps:
                numbers = (one.wall_s, one.foreign_share, *one.cpus_s, *one.yards_s)
                writer.writerow([name, visit, *(f"{number:.6g}" for number in numbers)])
    return text.getvalue()


def _merged(same: Sequence[PieceSample], yardstick: Yardstick) -> PieceMeasurement:
    """One measurement from those of all ranks, cases and rounds, every note once."""
    spreads = lower_quartile([sample.measurement.spreads_s for sample in same])
    notes = tuple(dict.fromkeys(note for sample in same for note in sample.measurement.notes))
    return replace(same[0].measurement, seconds=undisturbed_piece(same, yardstick), spreads_s=spreads, notes=notes)


def _bencher(model: Model, cache: MeasurementCache) -> Bencher:
    return Bencher(model=model, workload=WORKLOAD, device=describe(CPU), dtype=FLOAT, cache=cache)


def _row(case: TruthCase, found: Found, yardstick: Yardstick, cluster: Cluster, bencher: Bencher) -> TruthRow:
    if case.name not in found.visits:
        return TruthRow(name=case.name, failure=found.failures.get(case.name, "not trained"))
    layers = bencher.layers(case.row, [0])
    if not layers.pieces:
        return TruthRow(name=case.name, failure="its layers could not be measured")
    projected = Projector(Job(case.model, cluster, WORKLOAD)).project(case.row)
    again = Projector(Job(case.model, cluster, WORKLOAD), measured=layers).project(case.row)
    samples = found.steps_of(case.name)
    trained = estimate(samples, yardstick)
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
        cpu_s=median(max(sample.cpus_s) for sample in samples),
        odd_s=odd_s,
        even_s=even_s,
        half_width=trained.half_width,
        calm_steps=trained.calm,
        steps=len(samples),
        is_calm=trained.is_calm,
    )
