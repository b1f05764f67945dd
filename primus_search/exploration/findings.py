"""What a part of the space contributed: rows worth keeping, counts per funnel stage, the nearest miss. It merges.

Tasks done, on disk: a run that was killed continues where it stopped, with the same answer.

One file of records. A record is a fixed head (magic, lengths, checksum), a line of JSON with counts, and the kept rows
as raw numbers. The first record says which search this is and how long its tasks are; a journal of another search is
refused, for it may hold hours of work. A record that is cut short or damaged ends the journal: it and what follows are
done again, so damage costs time and never the answer.
"""

import json
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.exploration.exhaustive.shortlist import Shortlist, ShortlistRows
from primus_search.values.candidates import Floats, Ints

STAGES: tuple[str, ...] = ("enumerate", "memory", "bound", "project", "pipeline", "measure")
"""Names of the funnel's stages in `run.json`, in order. A row of `pipeline` is one that candidates share, simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStage:
    """Rows that entered one stage, and processor seconds it took, summed over workers."""

    name: str
    rows: int
    seconds: float

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


MAGIC = b"PSJ3"
_HEAD = struct.Struct("<4sIII")  # magic, bytes of JSON, bytes of rows, checksum of both
ROW_BYTES = 40
"""Of a kept row: its number, its group, step seconds, memory bytes, expected step seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """One finished task: its number and what it found."""

    task: int
    findings: Findings


SEARCHED = "space, model, hardware or settings"
"""The part of a journal's identity that is a hash; the others are named with both values where they differ."""


class Journal:
    """Append-only list of finished tasks of one search.

    task_rows  rows of a task of this search; a run that continues cuts the space the same way, whatever its workers
    done       tasks that were finished before this process began
    """

    def __init__(self, file: BinaryIO, task_rows: int, done: Sequence[Done] = ()) -> None:
        self._file, self.task_rows, self.done = file, task_rows, tuple(done)

    @classmethod
    def start(cls, path: Path, identity: Mapping[str, Any], task_rows: int) -> Self:
        """A new journal; whatever was at `path` is replaced."""
        journal = cls(path.open("wb", buffering=0), task_rows)
        journal._write({"identity": dict(identity), "task_rows": task_rows}, b"")
        return journal

    @classmethod
    def resume(cls, path: Path, identity: Mapping[str, Any], keep: int) -> Self | None:
        """The journal and its finished tasks; None when there is none, or its first record is damaged.

        Raises InputError, naming the parts of `identity` that differ, when it belongs to another search.
        """
        if not path.exists():
            return None
        file = path.open("r+b", buffering=0)
        records = list(_records(file))
        if not records:
            file.close()
            return None
        first = records[0][0]
        there, here = first["identity"], json.loads(json.dumps(dict(identity)))
        if there != here:
            file.close()
            names = [name for name in here if there.get(name) != here[name]] or ["layout"]
            told = (name if name == SEARCHED else f"{name} {there.get(name)}, now {here.get(name)}" for name in names)
            what = f"its journal belongs to another search ({'; '.join(told)} changed)"
            what += "; give what that run was given, or leave out --resume to start over"
            raise InputError([Problem(f"--resume {path.parent}", what)])
        done = [_done(head, body, keep) for head, body, _ in records[1:]]
        file.truncate(records[-1][2])
        file.seek(records[-1][2])
        return cls(file, first["task_rows"], done)

    def add(self, task: int, findings: Findings) -> None:
        """Record a finished task; on return it is on disk."""
        rows, group = findings.shortlist.rows_and_groups
        head = {
            "task": task,
            "legal": findings.legal,
            "feasible": findings.feasible,
            **{name: dict(getattr(findings, name)) for name in ("removed", "rows", "seconds")},
            "miss": [findings.miss.index, findings.miss.missing_bytes],
        }
        columns = (rows.indices, group, rows.step_s, rows.memory_bytes, rows.expected_s)
        self._write(head, b"".join(column.tobytes() for column in columns))

    def close(self) -> None:
        self._file.close()

    def _write(self, head: dict[str, Any], body: bytes) -> None:
        text = json.dumps(head).encode()
        record = _HEAD.pack(MAGIC, len(text), len(body), zlib.crc32(text + body)) + text + body
        written = 0
        while written < len(record):  # an unbuffered write may be short
            written += self._file.write(record[written:])
        os.fsync(self._file.fileno())


def _records(file: BinaryIO) -> Iterator[tuple[Any, bytes, int]]:
    """Every whole record: its JSON, its rows, and where it ends."""
    data, at = file.read(), 0
    while at + _HEAD.size <= len(data):
        magic, text_length, body_length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + text_length + body_length
        content = data[at + _HEAD.size : end]
        if magic != MAGIC or end > len(data) or zlib.crc32(content) != checksum:
            return
        try:
            head = json.loads(content[:text_length])
        except (ValueError, RecursionError):
            return
        yield head, content[text_length:], end
        at = end


def _done(head: dict[str, Any], body: bytes, keep: int) -> Done:
    """The finished task of a record."""
    count = len(body) // ROW_BYTES
    numbers, group = np.frombuffer(body, dtype=np.int64, count=2 * count).reshape(2, count)
    figures = np.frombuffer(body, dtype=np.float64, offset=16 * count).reshape(3, count)
    rows = ShortlistRows(indices=numbers, step_s=figures[0], memory_bytes=figures[1], expected_s=figures[2])
    miss = Miss(index=head["miss"][0], missing_bytes=head["miss"][1])
    counts = {name: head[name] for name in ("legal", "feasible", "removed", "rows", "seconds")}
    return Done(head["task"], Findings(shortlist=Shortlist.empty(keep).with_rows(rows, group), miss=miss, **counts))
