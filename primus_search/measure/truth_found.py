"""What training and measuring have brought so far, and the machine they describe."""

from dataclasses import dataclass, field
from typing import Any

from primus_search.cluster import Cluster
from primus_search.measure.host import fit, mean_of
from primus_search.measure.truth_samples import PieceSample, Sample, best_yard, lower_quartile
from primus_search.measure.truth_space import RANKS
from primus_search.stack import Stack


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
    def yard_s(self) -> float:
        """The yardstick of a calm core; 0 before anything was trained."""
        yards = [yard_s for name in self.visits for sample in self.steps_of(name) for yard_s in sample.yards_s]
        return best_yard(yards) if yards else 0.0

    def steps_of(self, name: str, visits: slice = slice(None)) -> list[Sample]:
        """All steps of one case, or those of some of its visits."""
        return [sample for steps in self.visits[name][visits] for sample in steps]

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
