"""What a part of the space contributed: rows worth keeping, counts per funnel stage, the nearest miss. It merges."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from primus_search.exploration.exhaustive.shortlist import Shortlist
from primus_search.values.candidates import Floats, Ints

STAGES: tuple[str, ...] = ("enumerate", "memory", "bound", "project", "pipeline", "measure")
"""Names of the funnel's stages in `run.json`, in order. A row of `pipeline` is one that candidates share, simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStage:
    """Rows that entered one stage, and processor seconds it took, summed over workers."""

    name: str
    rows: int
    seconds: float

    def plus(self, other: "FunnelStage") -> "FunnelStage":
        """The same stage of two searches."""
        return replace(self, rows=self.rows + other.rows, seconds=self.seconds + other.seconds)

    @property
    def rows_per_s(self) -> float:
        """Rows per processor second, that is per second and core; 0 when nothing ran."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The row closest to fitting: its number and the bytes it lacks; number -1 when every row fits or none was seen."""

    index: int
    missing_bytes: float

    def plus(self, other: "Miss") -> "Miss":
        known = [miss for miss in (self, other) if miss.index >= 0]
        return min(known, key=lambda miss: (miss.missing_bytes, miss.index), default=self)


NO_MISS = Miss(index=-1, missing_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Merged result of some tasks.

    legal     rows that passed every rule       feasible  of these, rows that fit in memory
    removed   rows taken out by late rules      rows, seconds  per stage name
    """

    shortlist: Shortlist
    legal: int
    feasible: int
    removed: Mapping[str, int]
    rows: Mapping[str, int]
    seconds: Mapping[str, float]
    miss: Miss = NO_MISS

    @classmethod
    def none(cls, most: int) -> "Findings":
        return cls(shortlist=Shortlist.empty(most), legal=0, feasible=0, removed={}, rows={}, seconds={})

    def plus(self, other: "Findings") -> "Findings":
        """Both together; the order of merging never changes rows or counts."""
        return Findings(
            shortlist=self.shortlist.plus(other.shortlist),
            legal=self.legal + other.legal,
            feasible=self.feasible + other.feasible,
            removed=_summed(self.removed, other.removed),
            rows=_summed(self.rows, other.rows),
            seconds=_summed(self.seconds, other.seconds),
            miss=self.miss.plus(other.miss),
        )

    def without_rows(self) -> "Findings":
        """The counts alone."""
        return replace(self, shortlist=Shortlist.empty(1))

    @property
    def stages(self) -> tuple[FunnelStage, ...]:
        """The stages that ran, in order."""
        return tuple(
            FunnelStage(name=name, rows=int(self.rows[name]), seconds=float(self.seconds.get(name, 0.0)))
            for name in STAGES
            if name in self.rows
        )


N = TypeVar("N", int, float)


def _summed(left: Mapping[str, N], right: Mapping[str, N]) -> dict[str, N]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in [*left, *(n for n in right if n not in left)]}


class Tally:
    """Processor seconds and rows per stage, rows that late rules removed, and the nearest miss, of some candidates."""

    def __init__(self, *stages: str) -> None:
        self.rows = dict.fromkeys(stages, 0)
        self.seconds = dict.fromkeys(self.rows, 0.0)
        self.removed = Counter[str]()
        self.miss = NO_MISS

    @contextmanager
    def stage(self, name: str, rows: int) -> Iterator[None]:
        """Count what a stage does, of so many rows."""
        started = time.process_time()
        yield
        self.rows[name] += rows
        self.seconds[name] += time.process_time() - started

    def note(self, missing_bytes: Floats, numbers: Callable[[Ints], Ints]) -> None:
        """Remember the row that misses by least; `numbers` gives the first number at some positions."""
        lacking = np.flatnonzero(missing_bytes > 0.0)
        if len(lacking):
            least = float(missing_bytes[lacking].min())
            nearest = numbers(lacking[missing_bytes[lacking] == least])
            self.miss = self.miss.plus(Miss(index=int(nearest.min()), missing_bytes=least))

    def findings(self, shortlist: Shortlist) -> Findings:
        """The candidates that were kept, and all of this."""
        return Findings(
            shortlist=shortlist,
            legal=self.rows["memory"],
            feasible=self.rows["bound"],
            removed=self.removed,
            rows=self.rows,
            seconds=self.seconds,
            miss=self.miss,
        )
