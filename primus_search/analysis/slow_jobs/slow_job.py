"""Why a job is slow: its log beside the projection of the very row, and the causes that could explain it.

    odds of a cause = prior * exp(patterns for and against + marks) * exp(-z^2 / 2) / spread
    z               = ln(1 + missing_s / parts_s) / spread        missing_s: measured less expected step

`parts_s` of a cause are the parts of the projected step that it makes longer; where the log prints timers of them, what
those measure takes the place of the projection, and the missing time that they do not show speaks against the cause.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from primus_search.analysis.slow_jobs.step_patterns import Pattern, PatternKind, patterns
from primus_search.base.errors import InputError, Problem
from primus_search.exploration.neighbours import figures_of
from primus_search.exploration.ranking_table import RankingTable
from primus_search.files.source import read
from primus_search.learning.readers import lines, read_log

FAR, NEAR = 2.5, 0.0
"""ln(odds) of a word of the log that names a cause, and of none."""
NO_PART_S = 1e-3
"""Seconds that stand for the parts of a cause that the projection has none of."""
TOLERANCE = 0.04
"""Share of the step by which a job is slower than expected before anything has to explain it: two runs of one job."""
TIMER_SPREAD = 0.15
"""Share of a timer by which the slowest rank exceeds the fastest before one rank is slow."""
_TIMER = re.compile(r"^\s*([a-z][\w-]+)\s\.+:\s\((\d+(?:\.\d+)?), (\d+(?:\.\d+)?)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCause:
    """One cause: what it is, its probability among the causes, what speaks for and against it, what would tell."""

    name: str
    what: str
    probability: float
    speaks_for: tuple[str, ...]
    speaks_against: tuple[str, ...]
    measure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowJob:
    """A log beside its projection.

    step_s, noise       median of its steady steps and their spread; steps of them
    expected_s, low_s, high_s   step of that row as expected, and its 90 % interval
    patterns            of its step times             causes   likeliest first; () where it is healthy
    """

    source: str
    step_s: float
    noise: float
    steps: int
    expected_s: float
    low_s: float
    high_s: float
    patterns: tuple[Pattern, ...]
    causes: tuple[SlowCause, ...]

    @property
    def is_slow(self) -> bool:
        """Whether its step lies above the band of the row."""
        return self.step_s > self.high_s

    @property
    def is_healthy(self) -> bool:
        """Whether it keeps its band and its step times show no pattern."""
        return not self.patterns and not self.is_slow


@lru_cache(maxsize=1)
def cause_table() -> Mapping[str, Mapping[str, Any]]:
    """`slow_causes.yaml`."""
    table: Mapping[str, Mapping[str, Any]] = read(Path(__file__).with_name("slow_causes.yaml")).data
    return table


def slow_job(path: Path, row: RankingTable) -> SlowJob:
    """A log beside the one row of a table that it is a run of. Raises InputError where it has no steady step."""
    sure, expected_s = row.confidence, float(row.expected_step_s[0])
    low_s, high_s = (float(expected_s * sure.expected[0] / rate[0]) for rate in (sure.high, sure.low))
    return beside(path, figures_of(row.projection, 0).step, expected_s, low_s, high_s)


def beside(path: Path, parts_s: Mapping[str, float], expected_s: float, low_s: float, high_s: float) -> SlowJob:
    """A log beside a projection: seconds of its step by part, the step as expected and its 90 % interval.

    Raises InputError where the log has no steady step.
    """
    reading = read_log(path)
    if reading.step_s is None:
        raise InputError([Problem(str(path), "the log has no steady step time yet")])
    found = patterns(reading.lines)
    timers, words = _signals(path)
    missing_s = max(reading.step_s - expected_s, 0.0)
    job = SlowJob(
        source=str(path),
        step_s=reading.step_s,
        noise=reading.noise or 0.0,
        steps=reading.steps,
        expected_s=expected_s,
        low_s=low_s,
        high_s=high_s,
        patterns=found,
        causes=(),
    )
    if not found and missing_s <= TOLERANCE * expected_s:
        return job
    kinds = {one.kind for one in found}
    unexplained_s = (
        0.0
        if kinds & {PatternKind.PERIODIC, PatternKind.STALLS, PatternKind.DRIFT, PatternKind.SHIFT} and not job.is_slow
        else missing_s
    )
    return SlowJob(**{**_fields(job), "causes": _ranked(found, timers, words, parts_s, unexplained_s)})


def _fields(job: SlowJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in SlowJob.__dataclass_fields__}


def _signals(path: Path) -> tuple[dict[str, tuple[float, float]], frozenset[str]]:
    """Timers of a log (fastest and slowest rank, seconds, medians over the log), and the marks of causes in it."""
    marks = {mark for row in cause_table().values() for mark in row["marks"]}
    timers, words = dict[str, list[tuple[float, float]]](), set[str]()
    for line in lines(path):
        if found := _TIMER.match(line):
            timers.setdefault(found[1], []).append((float(found[2]) / 1e3, float(found[3]) / 1e3))
        words |= {mark for mark in marks if mark in line}
    middles = {name: (median(low for low, _ in of), median(high for _, high in of)) for name, of in timers.items()}
    return middles, frozenset(words)


def _ranked(
    found: Sequence[Pattern],
    timers: Mapping[str, tuple[float, float]],
    words: frozenset[str],
    parts_s: Mapping[str, float],
    missing_s: float,
) -> tuple[SlowCause, ...]:
    scored = [_scored(name, row, found, timers, words, parts_s, missing_s) for name, row in cause_table().items()]
    most = max(odds for odds, *_ in scored)
    weights = [math.exp(odds - most) for odds, *_ in scored]
    causes = [
        SlowCause(
            name=name,
            what=row["what"],
            probability=weight / sum(weights),
            speaks_for=tuple(good),
            speaks_against=tuple(bad),
            measure=row["measure"],
        )
        for (name, row), weight, (_, good, bad) in zip(cause_table().items(), weights, scored, strict=True)
    ]
    return tuple(sorted(causes, key=lambda one: -one.probability))


def _scored(
    name: str,
    row: Mapping[str, Any],
    found: Sequence[Pattern],
    timers: Mapping[str, tuple[float, float]],
    words: frozenset[str],
    parts_s: Mapping[str, float],
    missing_s: float,
) -> tuple[float, list[str], list[str]]:
    """ln(odds) of a cause, what speaks for it, what against."""
    odds, good, bad = math.log(row["prior"]), list[str](), list[str]()
    for one in found:
        weight = row["speak"].get(str(one.kind), NEAR)
        odds += weight
        (good if weight > 0.0 else bad if weight < 0.0 else []).append(one.text)
    named = sorted(mark for mark in row["marks"] if mark in words)
    odds += FAR * bool(named)
    good += [f"the log says {', '.join(map(repr, named))}"] if named else []
    held_s = sum(parts_s.get(part, 0.0) for part in row["parts"])
    own = [timers[timer] for timer in row.get("timers", ()) if timer in timers]
    if own and name == "slow_rank":
        share = max(high / low - 1.0 for low, high in own if low)
        odds += FAR if share > TIMER_SPREAD else -FAR
        (good if share > TIMER_SPREAD else bad).append(
            f"timers: the slowest rank takes {share:.0%} more than the fastest"
        )
    elif own:
        measured_s = sum(high for _, high in own)
        more_s = measured_s - held_s
        is_seen = missing_s > 0.0 and more_s > 0.5 * missing_s
        odds += FAR if is_seen else -FAR
        (good if is_seen else bad).append(f"timers: {measured_s:.3g} s a step, {held_s:.3g} projected")
    elif missing_s > 0.0:
        stretch = 1.0 + missing_s / max(held_s, NO_PART_S)
        deviations = math.log(stretch) / row["spread"]
        odds += -0.5 * min(deviations, 4.0) ** 2 - math.log(row["spread"])
        if row["parts"]:
            text = f"{held_s:.3g} s of the step would have to take {stretch:,.3g} times as long"
            (good if deviations < 1.5 else bad).append(text)
    return odds, good, bad
