"""Candidates looked at by number, as a sampler wants them. Screening is cheap, projecting is what is counted.

Screening settles what fits in memory and gives the admissible bound on the step: a candidate that cannot enter the
best rows or the frontier, whatever its pipeline does, is never projected. It is the funnel of the exhaustive search, on
a few thousand rows at a time.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from primus_search.exploration.exhaustive.evaluate import BOUND_SLACK, Funnel
from primus_search.exploration.exhaustive.shortlist import (
    NO_ROWS,
    Shortlist,
    ShortlistRows,
    fastest,
    frontier,
    without_noise,
)
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.findings import Findings, Tally
from primus_search.values.candidates import Bools, Columns, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened(Columns):
    """Candidates by number: memory, the bytes they lack (negative: headroom), and what their step takes at least.

    `bound_s` is infinite for what does not fit.
    """

    numbers: Ints
    memory_bytes: Floats
    missing_bytes: Floats
    bound_s: Floats


@dataclass
class ScreenedCluster:
    """One cluster of a space: what was screened and projected on it so far.

    step_s     expected step seconds by number of everything projected      bound_s  its bound
    elite      the best rows and the frontier by expected step    tally    what was screened
    seen, fitting  numbers of what was screened, and of what of it fits: some is screened several times
    """

    funnel: Funnel
    cluster: int
    most: int
    step_s: dict[int, float] = field(default_factory=dict)
    bound_s: dict[int, float] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    fitting: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.elite, self._rows = Shortlist.empty(self.most), [NO_ROWS]
        self.tally = Tally("memory", "bound", "project")

    def screen(self, numbers: Ints) -> Screened:
        """Memory and bound of these candidates, less those a late rule takes out."""
        enumerator, projector = self.funnel.enumerators[self.cluster], self.funnel.projectors[self.cluster]
        lines = enumerator.lines_at(numbers)
        with self.tally.stage("memory", len(lines)):
            memory = projector.memory_bytes(enumerator.table(lines)) if len(lines) else np.zeros(0)
        missing = memory - projector.job.room_bytes(projector.memory_margin)
        bound, fits = np.full(len(lines), np.inf), missing <= 0.0
        with self.tally.stage("bound", int(np.count_nonzero(fits))):
            if fits.any():
                bound[fits] = projector.bound(enumerator.table(lines.take(fits))) * (1.0 - BOUND_SLACK)
        self.seen.update(lines.indices.tolist())
        self.fitting.update(lines.indices[fits].tolist())
        self.tally.note(missing, lambda at: lines.indices[at])
        return Screened(numbers=lines.indices, memory_bytes=without_noise(memory), missing_bytes=missing, bound_s=bound)

    def project(self, screened: Screened) -> None:
        """Project candidates that fit and were not projected before."""
        if not len(screened):
            return
        enumerator, projector = self.funnel.enumerators[self.cluster], self.funnel.projectors[self.cluster]
        with self.tally.stage("project", len(screened)):
            candidates = enumerator.rows(screened.numbers)
            step_s = without_noise(projector.step(candidates).total)
            expected_s = without_noise(step_s / expected_shares(projector, candidates, step_s))
        rows = ShortlistRows(
            indices=screened.numbers, step_s=step_s, memory_bytes=screened.memory_bytes, expected_s=expected_s
        )
        expected = replace(rows, step_s=expected_s)
        self.step_s.update(zip(screened.numbers.tolist(), expected_s.tolist(), strict=True))
        self.bound_s.update(zip(screened.numbers.tolist(), screened.bound_s.tolist(), strict=True))
        self.elite = replace(
            self.elite,
            top=fastest(self.elite.top.joined(expected), self.most),
            frontier=frontier(self.elite.frontier.joined(rows)),
        )
        self._rows.append(rows)

    def may_matter(self, screened: Screened) -> Bools:
        """Which candidates fit and may still enter the best rows or the frontier."""
        return np.isfinite(screened.bound_s) & self.elite.cut.admits(screened.bound_s, screened.memory_bytes)

    def is_projected(self, numbers: Ints) -> Bools:
        """Which of these candidates were projected before."""
        return np.array([number in self.step_s for number in numbers.tolist()], dtype=np.bool_)

    def findings(self) -> Findings:
        """What a search makes of it."""
        rows = self._rows[0].joined(*self._rows[1:])
        lines = self.funnel.enumerators[self.cluster].lines_at(rows.indices)
        group = self.funnel.grid_costs[self.cluster].groups.of(lines.cells, lines.inner)
        found = self.tally.findings(Shortlist.empty(self.funnel.keep).with_rows(rows, group))
        return replace(found, legal=len(self.seen), feasible=len(self.fitting))
