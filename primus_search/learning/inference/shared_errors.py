"""Errors that runs of a site share: of all runs of one model on one device, and of near configurations.

log(measured / projected) = g + u + e,   g ~ N(0, GROUP_ERROR^2),   u ~ GP(0, LIKENESS^2 * likeness),   e of its own
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from primus_search.cost.confidence.switch_evidence import shape_of
from primus_search.cost.confidence.uncertainty import MODEL_ERROR, MOE_FACTOR, likeness, places_of
from primus_search.learning.inference.projected_runs import Reference, reference_of
from primus_search.learning.inference.regression import regress
from primus_search.values.candidates import Floats
from primus_search.values.job import Job
from primus_search.values.measured_run import MeasuredRun

GROUP_ERROR = 0.06
"""Standard deviation of log(measured / projected) with the best numbers of the software of all runs of one model on one
device, beside that of one run (`MODEL_ERROR`); both are `MOE_FACTOR` times as large with experts. 90 % intervals of the
mixture then hold 96, 94 and 95 % of the other runs of 12 publishers after 1, 3 and 5 of their own, 2026-11-24
(docs/dev/learning_log.md)."""

LIKENESS = 0.15
"""Standard deviation of what near configurations of one model on one device share. Either half of twelve publishers
chooses it, with the errors above, among those that still tell one model's factor from another's (log), 2026-11-24."""

ALIKE = 1e-6
"""Share of a configuration's variance that two runs at one place do not have in common, so that covariances of runs
have an inverse."""

FAR = 0.7
"""Root mean square of log(measured / projected) at which a move to one run counts half; of n runs n times it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one model on one device, by the model's shape: logs rarely print its name."""

    shape: str
    device: str
    is_moe: bool

    @property
    def spread(self) -> float:
        """Standard deviations of its runs over those of a dense model's."""
        return MOE_FACTOR if self.is_moe else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedRows:
    """Groups of runs or candidates, and their places among configurations: (rows, coordinates)."""

    groups: tuple[RunGroup, ...]
    places: Floats

    @property
    def spreads(self) -> Floats:
        """Standard deviations of every row over those of a dense model's."""
        return np.array([group.spread for group in self.groups])

    def take(self, kept: Sequence[int]) -> "PlacedRows":
        """Some of the rows."""
        return PlacedRows(groups=tuple(self.groups[i] for i in kept), places=self.places[list(kept)])

    def in_common(self, runs: "PlacedRows") -> tuple[Floats, Floats]:
        """Which group of runs every row belongs to, as ones in (rows, groups), and the covariance with every run."""
        groups = tuple(dict.fromkeys(runs.groups))
        members = np.array([[float(row == group) for group in groups] for row in self.groups])
        members = members.reshape(len(self.groups), len(groups))
        own = np.array([[float(run == group) for group in groups] for run in runs.groups]).reshape(
            len(runs.groups), len(groups)
        )
        near = likeness(self.places, runs.places) * (members @ own.T) * np.outer(self.spreads, runs.spreads)
        return members, LIKENESS**2 * near

    @property
    def process(self) -> Floats:
        """Covariance of the errors of the rows' configurations."""
        _, near = self.in_common(self)
        return np.asarray(near + np.diag(ALIKE * (LIKENESS * self.spreads) ** 2))

    @property
    def of_groups(self) -> Floats:
        """Covariance of the errors of the rows' groups."""
        return np.diag([(GROUP_ERROR * group.spread) ** 2 for group in dict.fromkeys(self.groups)])


def group_of(job: Job) -> RunGroup:
    """The group of the runs of a job."""
    return RunGroup(shape=shape_of(job.model), device=job.accelerator.name, is_moe=job.model.is_moe)


def rows_of(references: Sequence[Reference]) -> PlacedRows:
    """Groups and places of the rows of all references."""
    places = [places_of(one.job, one.table) for one in references]
    groups = tuple(group_of(one.job) for one in references for _ in range(len(one.table)))
    return PlacedRows(groups=groups, places=np.concatenate(places) if places else np.zeros((0, 1)))


def own_error(runs: Sequence[MeasuredRun]) -> Floats:
    """Variance of what each run has of its own: of its configuration alone, and noise between its iterations."""
    noise = np.nan_to_num([run.measured.noise for run in runs])
    return np.asarray(noise**2 + np.square([MODEL_ERROR * group_of(run.job).spread for run in runs]))


def heard(runs: Sequence[MeasuredRun], residuals: Floats) -> float:
    """Share of a move to the runs that counts: z / (1 + z), with z the variance that log(measured / projected) of the
    runs shows over that of runs of a cluster that is as expected, times their number; less where it is far for so few
    runs, which is of a configuration more often than of the cluster (docs/dev/learning_log.md, 2026-11-29)."""
    usual = own_error(runs) + np.square([GROUP_ERROR * group_of(run.job).spread for run in runs])
    count = max(len(runs), 1)
    shown = count * float(np.sum(residuals**2 / usual))
    far = float(np.sum(residuals**2)) / count / (FAR * count) ** 2
    return shown / (1.0 + shown) / (1.0 + far)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedErrors:
    """What runs leave of a stack: log(measured / projected) of every group, of every run's configuration, and the rest.

    own     weight of every run in the logarithm of the rate at its own place; `places`: where that is
    """

    groups: Floats
    own: Floats
    places: Floats
    left: Floats


def shared_errors(runs: Sequence[MeasuredRun], errors: Floats, unheard: Floats | float = 0.0) -> SharedErrors:
    """What groups and near configurations have in common of log(measured / projected) of the runs on a stack; unheard:
    part of the errors that teaches nothing (`heard`)."""
    rows = rows_of([reference_of(run) for run in runs])
    members, process = rows.in_common(rows)[0], rows.process
    if not runs:
        return SharedErrors(groups=errors, own=errors, places=rows.places, left=errors)
    before, slopes = block_diag(rows.of_groups, process), np.concatenate([members, np.eye(len(runs))], axis=1)
    found, _, _ = regress(before, slopes, errors - unheard, own_error(runs))
    groups, near = np.split(found, [members.shape[1]])
    own = np.linalg.solve(process, near) * (LIKENESS * rows.spreads) ** 2
    return SharedErrors(groups=groups, own=own, places=rows.places, left=errors - members @ groups - near)
