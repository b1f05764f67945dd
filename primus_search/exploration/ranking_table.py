"""Ranking of one cluster: candidates with their projection, in order, and the recommendation among them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.confidence.fit import (
    DEVIATIONS_TO_END,
    FIT_THRESHOLD,
    FITS,
    OUT_OF_MEMORY,
    fit_probability,
    fit_verdict,
)
from primus_search.cost.confidence.uncertainty import (
    RUN_NOISE,
    TIE,
    Confidence,
    confidence,
    run_ratio,
    site_ratio,
    ties_with_best,
)
from primus_search.cost.projection import Projection
from primus_search.exploration.exhaustive.shortlist import without_noise
from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator
from primus_search.space import ClusterChoice
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, joined
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, Fp8, Kind
from primus_search.values.knobs.values import USUAL_SCHEDULES

PROJECTED, TRACED, MEASURED, RUN = "projected", "traced", "measured", "run"
"""What a figure stands on: formulas, torch modules without memory, the same modules on a device, or a training run."""

PERCENT = 100.0
RANKED_ROWS = 1000
"""Best rows of `ranking.csv`, before the best of each layout and precision; `candidates.parquet` holds all kept."""

_USUAL = {"time_evidence": PROJECTED, "memory_evidence": PROJECTED, "measured_fits": math.nan, "expected_shares": 1.0}
"""Columns of a ranking that need not be given, and their value in every row then."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RankingTable:
    """Candidates of one cluster with their projection, in a meaningful order, and what each figure stands on.

    expected_shares  expected over projected rate of every row (`exploration.expected`); 1 unless given
    measured_fits  probability of fitting of rows whose memory was measured, NaN of the others: there it is projected
    least_fit      probability of fitting from which a row may be recommended
    """

    job: Job
    choice: ClusterChoice
    indices: Ints
    candidates: Candidates
    projection: Projection
    time_evidence: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))
    memory_evidence: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))
    measured_fits: Floats = field(default_factory=lambda: np.zeros(0))
    expected_shares: Floats = field(default_factory=lambda: np.zeros(0))
    least_fit: float = FIT_THRESHOLD

    def __post_init__(self) -> None:
        for name, usual in _USUAL.items():
            given = self.__getattribute__(name)
            object.__setattr__(self, name, np.array(given) if len(given) else np.full(len(self.indices), usual))

    @classmethod
    def of(cls, evaluator: Evaluator, indices: Ints, candidates: Candidates) -> Self:
        """Candidates of the evaluator's cluster with these numbers, projected."""
        projection, least = evaluator.projector.project(candidates), evaluator.space.search.min_fit
        evidence = np.full(len(candidates), PROJECTED)
        evidence[list(evaluator.own_rates(candidates, projection))] = RUN
        return cls(
            job=evaluator.projector.job,
            choice=evaluator.choice,
            indices=indices,
            candidates=candidates,
            projection=projection,
            time_evidence=evidence,
            expected_shares=evaluator.expected_shares(candidates, projection),
            least_fit=min(FIT_THRESHOLD, least / PERCENT) if least else FIT_THRESHOLD,
        )

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"<RankingTable of {len(self):,} candidates on {self.choice.cluster.accelerator.name}>"

    @cached_property
    def expected_rate(self) -> Floats:
        """Expected tokens/s/GPU of every row: what a ranking is by."""
        return self.projection.tokens_per_s_per_gpu * self.expected_shares

    @cached_property
    def expected_step_s(self) -> Floats:
        """Expected seconds of a step, without the noise of sums: what tables are sorted by."""
        return without_noise(self.projection.step.total / self.expected_shares)

    @cached_property
    def fits(self) -> Floats:
        """Probability of every row that it runs in device memory, by its strongest evidence."""
        projected = fit_probability(self.job, self.candidates, self.projection.memory)
        fits = np.where(np.isnan(self.measured_fits), projected, self.measured_fits)
        fits[self._is_timed_by(RUN)] = 1.0
        return fits

    @cached_property
    def confidence(self) -> Confidence:
        """Interval, probability of fitting and ties with the recommendation of every row."""
        sure = confidence(self.job, self.candidates, self.projection, self.fits)
        rate, was_run = self.expected_rate, self._is_timed_by(RUN)
        low, high = (rate * np.exp(sign * DEVIATIONS_TO_END * RUN_NOISE) for sign in (-1.0, 1.0))
        may_run = np.ones(len(self), np.bool_) if self.is_lost.all() else ~self.is_lost
        was_timed = self._is_timed_by(MEASURED) & ~self.is_lost
        comparable = was_timed if was_timed.any() else may_run  # projected times do not compare with measured ones
        first = np.isin(np.arange(len(self)), self.order[:1])
        job = self.job  # the interval is of the site and its runs already
        switches = self.expected_shares / (site_ratio(job.cluster, job.model) * run_ratio(job, self.candidates))
        return replace(
            sure,
            expected=rate,
            low=np.where(was_run, low, sure.low * switches),
            high=np.where(was_run, high, sure.high * switches),
            ties_with_best=comparable & ties_with_best(self.expected_rate, first),
        )

    @cached_property
    def is_lost(self) -> Bools:
        """Rows whose traced or measured memory is more than there is, unless the row was run."""
        is_short: Bools = (self.projection.headroom_bytes < 0.0) & ~self._is_timed_by(RUN)
        was_checked: Bools = self.memory_evidence != PROJECTED
        return was_checked & is_short

    @cached_property
    def is_fit(self) -> Bools:
        """Rows that FIT, each by its strongest evidence: it was run, or its memory was measured, traced, projected."""
        is_it: Bools = self.verdicts == FITS
        return is_it

    @cached_property
    def verdicts(self) -> NDArray[np.str_]:
        """FITS, AT RISK or OOM of every row; one that was run FITS."""
        headroom_bytes = np.where(self._is_timed_by(RUN), 0.0, self.projection.headroom_bytes)
        return fit_verdict(self.job, self.fits, headroom_bytes)

    @cached_property
    def is_sure(self) -> Bools:
        """Rows that fit with the probability from which one may be recommended."""
        if self.least_fit == FIT_THRESHOLD:
            return self.is_fit
        mask: Bools = (self.verdicts != OUT_OF_MEMORY) & ~self.is_lost & (self.fits >= self.least_fit)
        return mask

    @cached_property
    def sure_rate(self) -> Floats:
        """Expected tokens/s/GPU of every row, times its probability of fitting where it does not surely fit.

        A start that fails trains nothing, which is the price of a row AT RISK. Of rows that FIT one start in ten at
        most fails, within minutes of a run of days: among them the rate decides.
        """
        return self.expected_rate * np.where(self.is_fit, 1.0, self.fits)

    @cached_property
    def is_looked_at(self) -> Bools:
        """Rows with a figure of torch's: traced or measured."""
        seen: Bools = (self.time_evidence != PROJECTED) | (self.memory_evidence != PROJECTED)
        return seen

    def _is_timed_by(self, evidence: str) -> Bools:
        is_it: Bools = self.time_evidence == evidence
        return is_it

    @cached_property
    def order(self) -> Ints:
        """Places of the rows as a ranking lists them: the recommendation first.

        By expected step, rows timed on a device before those that were not: their times do not compare. Of the first
        `RANKED_ROWS` those shown not to fit stand last. The recommendation goes to the front: of the rows that may be
        recommended (`is_sure`), the plainest (`_plainest`) within the noise of the one of the highest `sure_rate`; of
        rows without such a one, that of the highest `sure_rate`.
        """
        is_timed = self._is_timed_by(MEASURED)
        is_behind = ~(is_timed | self._is_timed_by(RUN)) if is_timed.any() else np.zeros(len(self), np.bool_)
        by_step: Ints = np.lexsort((self.indices, self.expected_step_s, is_behind))
        head, tail = by_step[:RANKED_ROWS], by_step[RANKED_ROWS:]
        order = np.concatenate([head[np.argsort(self.is_lost[head], kind="stable")], tail])
        if not len(order):
            return order
        may = next(mask for mask in (self.is_sure, ~self.is_lost, np.ones_like(self.is_lost)) if mask.any())[order]
        may &= is_behind[order] == is_behind[order][may][0]
        first = int(np.argmax(np.where(may, without_noise(self.sure_rate[order]), -1.0)))
        first = self._plainest(order, first) if self.is_sure[order[first]] else first
        return np.concatenate([order[[first]], np.delete(order, first)])

    def _plainest(self, order: Ints, fastest: int) -> int:
        """The place to recommend of those that one run could not tell from that of the highest `sure_rate`.

        Fewest switches off their defaults, then BF16, then fewest parallel dimensions, then the fastest. Only rows on
        the same evidence of time are compared, and with a row that torch has looked at only such. Nothing below
        what a row reached when it ran.
        """
        rate, place = self.sure_rate[order], np.arange(len(order))
        evidence = self.time_evidence[order]
        near = self.is_sure[order] & (rate >= rate[fastest] * (1.0 - TIE)) & (evidence == evidence[fastest])
        ran = (self.is_sure & self._is_timed_by(RUN))[order]
        near &= (place < max(RANKED_ROWS, fastest + 1)) & (rate >= min(rate[ran].max(initial=0.0), rate[fastest]))
        seen = self.is_looked_at[order]
        places = np.flatnonzero(near & (seen | ~seen[fastest]))
        rows = self.candidates.take(order[places])
        low_precision = (rows.fp8 != Fp8.NONE).astype(np.int64)
        return int(places[np.lexsort((places, num_dimensions(rows), low_precision, switches_of(rows)))[0]])

    def take(self, rows: Ints) -> "RankingTable":
        """These rows, in their order."""
        columns: dict[str, Any] = {name: self.__getattribute__(name)[rows] for name in ("indices", *_USUAL)}
        found = replace(self, candidates=self.candidates.take(rows), projection=self.projection.take(rows), **columns)
        found.__dict__["fits"] = self.fits[rows]  # of each row by itself: 17 ms anew for 100,000 of them
        return found

    def ordered(self) -> "RankingTable":
        """The rows as a ranking lists them."""
        found = self.take(self.order)
        found.__dict__["order"] = np.arange(len(found))
        return found

    def plus(self, other: "RankingTable") -> "RankingTable":
        """The rows of both, one after the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([self.__getattribute__(name), other.__getattribute__(name)])
            for name in ("indices", *_USUAL)
        }
        candidates = joined([self.candidates, other.candidates])
        return replace(self, candidates=candidates, projection=self.projection.joined(other.projection), **columns)

    @cached_property
    def figures(self) -> dict[str, Ints | Floats | Bools]:
        """Degrees and figures of every row, by column of `ranking.csv`."""
        return {name: figure_of(self) for name, figure_of in FIGURES.items()}

    def row(self, rank: int) -> dict[str, Any]:
        """One row as the columns of `ranking.csv`: axes by name, then degrees and figures. `rank` counts from 0."""
        return self.rows(slice(rank, rank + 1))[0]

    def rows(self, chosen: slice = slice(None)) -> list[dict[str, Any]]:
        """The rows, or some of them, in order, as `row` returns each."""
        chosen_columns = [column[chosen] for column in self.figures.values()]
        columns = [map(_shown, one.tolist()) if one.dtype.kind == "f" else one.tolist() for one in chosen_columns]
        figures = (dict(zip(self.figures, row, strict=True)) for row in zip(*columns, strict=True))
        words = (self.verdicts, self.time_evidence, self.memory_evidence)
        evidence = zip(*(column[chosen].tolist() for column in words), strict=True)
        rows = zip(self.candidates.rows(chosen), figures, evidence, strict=True)
        return [
            knobs | found | {"memory_verdict": verdict, "time_evidence": time, "memory_evidence": memory}
            for knobs, found, (verdict, time, memory) in rows
        ]


def is_row_lost(row: Mapping[str, Any]) -> bool:
    """`RankingTable.is_lost` of one row of ranking.csv."""
    was_checked = row["memory_evidence"] != PROJECTED and row["time_evidence"] != RUN
    return bool(was_checked and row["headroom_bytes"] < 0.0)


FIGURES: Mapping[str, Callable[[RankingTable], Ints | Floats | Bools]] = {
    "dp": lambda table: table.projection.dp,
    "microbatches": lambda table: table.projection.microbatches,
    "tokens_per_s": lambda table: table.projection.tokens_per_s,
    "tokens_per_s_per_gpu": lambda table: table.projection.tokens_per_s_per_gpu,
    RATE: lambda table: table.expected_rate,
    "tokens_per_s_per_gpu_low": lambda table: table.confidence.low,
    "tokens_per_s_per_gpu_high": lambda table: table.confidence.high,
    "ties_with_best": lambda table: table.confidence.ties_with_best,
    "step_s": lambda table: table.projection.step.total,
    "memory_bytes": lambda table: table.projection.memory.total,
    "headroom_bytes": lambda table: table.projection.headroom_bytes,
    "fit_probability": lambda table: table.confidence.fits,
    "bubble_ratio": lambda table: table.projection.bubble_ratio,
    "mfu": lambda table: table.projection.mfu,
}
"""Columns of figures of every table of a run, in their order."""


def _shown(figure: float) -> float:
    """A figure as files show it: 12 digits, so that rows that tie also read alike."""
    return float(f"{figure:.12g}")


_COUNTED = tuple(
    knob
    for knob in KNOBS
    if knob.kind not in (Kind.DEGREE, Kind.SCHEDULE, Kind.LAYOUT)
    and not knob.is_numeric
    and knob.detail_of not in ("recompute", "sharding")
    and knob.name not in ("micro_batch_size", "vpp", "sharding", "sequence_parallel")
)
"""Knobs that count as switches: what has to be set beside the split of the job, and can go wrong."""


def switches_of(rows: Candidates) -> Ints:
    """Switches of every row that are off their defaults; an unusual schedule and an uneven layout count as one each."""
    columns = rows.columns()
    found = np.zeros(len(rows), dtype=np.int64)
    for knob in _COUNTED:
        found += columns[knob.name] != knob.column_default
    unusual = np.array([name not in USUAL_SCHEDULES for name in rows.schedules], dtype=np.int64)
    uneven = np.array([str(layout) != "even" for layout in rows.layouts], dtype=np.int64)
    return found + unusual[rows.schedule] * (rows.pp > 1) + uneven[rows.pipeline_layout]


def switch_names(row: Mapping[str, Any]) -> list[str]:
    """What `switches_of` counts of one row of a table of words."""
    found = [knob.name for knob in _COUNTED if row[knob.name] != knob.word(knob.default)]
    is_unusual = row["pp"] > 1 and row["schedule"] not in USUAL_SCHEDULES
    return found + ["schedule"] * is_unusual + ["pipeline_layout"] * (row["pipeline_layout"] != "even")


def num_dimensions(rows: Candidates) -> Ints:
    """Parallel degrees above 1 of every row."""
    columns = rows.columns()
    found: Ints = np.sum([columns[knob.name] > 1 for knob in KNOBS if knob.kind is Kind.DEGREE], axis=0, dtype=np.int64)
    return found
