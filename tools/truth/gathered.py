"""What training and measuring have brought so far, and the machine they describe."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from primus_search.measure.device.timing import PieceMeasurement
from primus_search.measure.host_calibration import fit, mean_of
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from tools.truth.case_space import RANKS
from tools.truth.samples import (
    PieceSample,
    Sample,
    Yardstick,
    lower_quartile,
    samples_of,
    yardstick_of,
)


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
        return yardstick_of([self.steps_of(name) for name in self.visits]) if self.visits else Yardstick(calm_s=0.0)

    def steps_of(self, name: str, visits: slice = slice(None)) -> list[Sample]:
        """All steps of one case, or those of some of its visits."""
        return [sample for steps in self.visits[name][visits] for sample in steps]

    def take(self, name: str, values: Sequence[dict[str, Any]]) -> None:
        """What the ranks say of one visit (`train.train`)."""
        self.visits.setdefault(name, []).append(samples_of(values, os.cpu_count() or 1))
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
