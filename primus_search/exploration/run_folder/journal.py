"""Tasks done, on disk: a run that was killed continues where it stopped, with the same answer.

One file of records. A record is a fixed head (magic, lengths, checksum), a line of JSON with counts, and the kept rows
as raw numbers. The first record says which search this is and how long its tasks are; a journal of another search is
refused, for it may hold hours of work. A record that is cut short or damaged ends the journal: it and what follows are
done again, so damage costs time and never the answer.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.exploration.exhaustive.shortlist import Shortlist, ShortlistRows
from primus_search.exploration.findings import Findings, Miss

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
            changed = (n if n == SEARCHED else f"{n} {there.get(n)}, now {here.get(n)}" for n in names)
            what = f"its journal belongs to another search ({'; '.join(changed)} changed)"
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
