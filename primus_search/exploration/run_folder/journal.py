"""Tasks done, on disk: a run that was killed continues where it stopped, with the same answer.

One file of records. A record is a fixed head (magic, lengths, checksum), a line of JSON with counts, and the kept rows
as raw numbers. The first record says which search this is and how long its tasks are; a journal of another search is
refused, for it may hold hours of work. A record that is cut short or damaged ends the journal: it and what follows are
done again, so damage costs time and never the answer.

What a journal claims, held against the search that continues it: a record that cannot be true is refused.

A record has a checksum, which says that it was written whole and not by whom. Here its task has to exist, once; its
rows have to lie in that task; its counts have to add up to the task's rows; and some of its rows are projected again.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self, TypeVar

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from primus_search.exploration.exhaustive.evaluate import Funnel, Task, TaskOrder
from primus_search.exploration.exhaustive.shortlist import Shortlist, ShortlistRows, without_noise
from primus_search.exploration.expected import expected_step_s
from primus_search.exploration.findings import Findings, Miss
from primus_search.values.candidates import Bools, Ints

MAGIC = b"PSJ3"
_HEAD = struct.Struct("<4sIII")  # magic, bytes of JSON, bytes of rows, checksum of both
ROW_BYTES = 40
"""Of a kept row: its number, its group, step seconds, memory bytes, expected step seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """One finished task: its number and what it found."""

    task: int
    findings: Findings


class OtherSearch(Exception):
    """The journal belongs to another search; `differences` names what is different: (name, there, here)."""

    def __init__(self, differences: Sequence[tuple[str, Any, Any]]) -> None:
        super().__init__(", ".join(name for name, _, _ in differences))
        self.differences = tuple(differences)


class BadRecord(Exception):
    """A record with a valid checksum that this program did not write: which one, and what is wrong with it."""


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

        Raises OtherSearch when it belongs to another search, BadRecord for a whole record of other content.
        """
        if not path.exists():
            return None
        file = path.open("r+b", buffering=0)
        records = list(_records(file))
        if not records:
            file.close()
            return None
        first = _typed(records[0][0], 0, _Search)
        there, here = first.identity, json.loads(json.dumps(dict(identity)))
        if there != here:
            file.close()
            names = [name for name in here if there.get(name) != here[name]] or ["layout"]
            raise OtherSearch([(name, there.get(name), here.get(name)) for name in names])
        done = [_done(number, head, body, keep) for number, (head, body, _) in enumerate(records[1:], start=1)]
        file.truncate(records[-1][2])
        file.seek(records[-1][2])
        return cls(file, first.task_rows, done)

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


Number = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]
Model = TypeVar("Model", bound=BaseModel)


class _Search(BaseModel):
    """The first record."""

    identity: dict[str, Any]
    task_rows: Count


class _Counts(BaseModel):
    """What a record holds beside its rows."""

    task: Count
    legal: Count
    feasible: Count
    removed: dict[str, Count]
    rows: dict[str, Count]
    seconds: dict[str, Seconds]
    miss: tuple[Number, FiniteFloat]


def _typed(head: Any, number: int, model: type[Model]) -> Model:
    """The content of a record. Raises BadRecord where a key is missing, mistyped or out of range."""
    try:
        return model.model_validate(head)
    except ValidationError as error:
        names = [str(one["loc"][0]) if one["loc"] else "it" for one in error.errors()]
        raise BadRecord(f'record {number}: "{names[0]}" is missing or mistyped') from None


def _done(number: int, head: Any, body: bytes, keep: int) -> Done:
    """The finished task of a record."""
    count = len(body) // ROW_BYTES
    if count * ROW_BYTES != len(body):
        raise BadRecord(f"record {number}: {len(body):,} bytes of rows are not a multiple of {ROW_BYTES}")
    numbers, group = np.frombuffer(body, dtype=np.int64, count=2 * count).reshape(2, count)
    figures = np.frombuffer(body, dtype=np.float64, offset=16 * count).reshape(3, count)
    if not (np.isfinite(figures[:2]).all() and (figures > 0.0).all() and len(np.unique(numbers)) == count):
        raise BadRecord(f"record {number}: its rows are not distinct candidates with positive, finite figures")
    rows = ShortlistRows(indices=numbers, step_s=figures[0], memory_bytes=figures[1], expected_s=figures[2])
    counts = dict(_typed(head, number, _Counts))
    counts["miss"] = Miss(index=counts["miss"][0], missing_bytes=counts["miss"][1])
    task = counts.pop("task")
    return Done(task, Findings(shortlist=Shortlist.empty(keep).with_rows(rows, group), **counts))


MOST_TASKS = 1_000_000
PROJECTED_ROWS = 64
"""Rows of a record that are projected again, evenly spread from its fastest to its slowest."""
TOLERANCE = 1e-9
"""Relative difference of a figure that was projected again, beside other rows."""


def refuse_other_lengths(funnel: Funnel, task_rows: int) -> None:
    """Raise BadRecord where a space cut in tasks of that many rows has none or too many."""
    total = sum(enumerator.size for enumerator in funnel.enumerators)
    if not task_rows > 0 or total > MOST_TASKS * task_rows:
        raise BadRecord(f'record 0: "task_rows" {task_rows} is no length of a task')


def refuse_untrue(funnel: Funnel, journal: Journal, tasks: Sequence[Task]) -> None:
    """Raise BadRecord for the first record that these tasks of this search cannot have given."""
    known, seen = {task.number: task for task in tasks}, set[int]()
    for number, done in enumerate(journal.done, start=1):
        what = f"record {number}: task {done.task}"
        if done.task in seen:
            raise BadRecord(f"{what} is recorded twice")
        seen.add(done.task)
        if done.task not in known:
            raise BadRecord(f"{what} is no task of this search")
        problem = _problem(funnel, done, known[done.task])
        if problem:
            raise BadRecord(f"{what} {problem}")


def _problem(funnel: Funnel, done: Done, task: Task) -> str:
    found, rows = done.findings, done.findings.shortlist.rows
    if found.legal + sum(found.removed.values()) != task.stop - task.start or found.feasible > found.legal:
        return "has counts that do not add up to its rows"
    if set(found.removed) - set(funnel.enumerators[task.cluster].reasons):
        return "names rules that this space does not have"
    if len(rows) > found.feasible or not _is_within(funnel.task_orders[task.cluster], task, rows.indices).all():
        return "keeps rows that are not its own"
    if not len(rows):
        return ""
    grouped = found.shortlist.grouped
    lines = funnel.enumerators[task.cluster].lines_at(grouped.rows.indices)
    if not np.array_equal(funnel.grid_costs[task.cluster].groups.of(lines.cells, lines.inner), grouped.group):
        return "keeps rows for a group that is not theirs"
    some = np.unique(np.linspace(0, len(rows) - 1, PROJECTED_ROWS).astype(np.int64))
    rows = rows.take(np.sort(np.argsort(rows.step_s, kind="stable")[some]))
    projector, enumerator = funnel.fresh_projector(task.cluster), funnel.enumerators[task.cluster]
    projection, expected_s = (
        projector.project(enumerator.rows(rows.indices)),
        expected_step_s(projector, enumerator, rows),
    )
    for claimed, total in (
        (rows.step_s, projection.step.total),
        (rows.memory_bytes, projection.memory.total),
        (rows.expected_s, np.where(np.isfinite(rows.expected_s), expected_s, np.inf)),
    ):
        if not np.allclose(claimed, without_noise(total), rtol=TOLERANCE, atol=0.0):
            return "keeps figures that are not those of its rows"
    return ""


def _is_within(order: TaskOrder, task: Task, numbers: Ints) -> Bools:
    """Whether candidates stand in the task's stretch of the order."""
    filled = np.flatnonzero(np.diff(order.starts))
    by_number = filled[np.argsort(order.first[filled], kind="stable")]
    at = by_number[np.searchsorted(order.first[by_number], numbers, side="right").clip(1) - 1]
    places = order.starts[at] + numbers - order.first[at]
    within: Bools = (places >= task.start) & (places < task.stop) & (places >= 0) & (places < order.starts[at + 1])
    return within
