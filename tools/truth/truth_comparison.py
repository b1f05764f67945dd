"""What the rounds have found, case by case: as trained, as projected, and as projected with its layers measured."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from primus_search.cost.project import Projector
from primus_search.measure.candidate_bench import Bencher, MeasurementCache
from primus_search.measure.device.device_info import CPU, describe
from primus_search.measure.device.device_table import to_csv
from primus_search.measure.device.timing import PieceMeasurement
from primus_search.measure.host_calibration import fit, mean_of, rows_of
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from tools.truth import samples
from tools.truth.case_space import FLOAT, MODELS, RANKS, WORKLOAD, TruthCase
from tools.truth.samples import PieceSample, Sample, Yardstick, estimate, lower_quartile
from tools.truth.truth_report import TruthRow

MEASUREMENTS = "truth_layers.jsonl"
HOST = "truth_host.csv"
STEPS = "truth_steps.csv"


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
