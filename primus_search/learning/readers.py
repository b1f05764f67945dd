"""All log readers by name. A new one is a row of `logs/formats.yaml`, and a module of `logs/` for what no row can say.

It then takes part in recognition, in the command line and in the contract tests. Two passes over a file: the first
finds the marks of all formats (texts, not patterns: fast on 500 MB), the second hands every line to one.
"""

import gzip
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol, cast

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import opened
from primus_search.learning import logs
from primus_search.learning.log_table import LogTable
from primus_search.learning.reading import LogReading
from primus_search.learning.transcript import Transcript, observe_common

HEAD_BYTES = 4096


@lru_cache(maxsize=1)
def formats() -> tuple[LogTable, ...]:
    """Every format of `logs/formats.yaml`, by name."""
    every = logs.table("formats")
    return tuple(LogTable.of(name, every) for name in sorted(every))


class TextFormat(Protocol):
    """A module for what the rows of a text log's table cannot say."""

    def observe(self, seen: Transcript, line: str) -> None: ...

    def conclude_run(self, table: LogTable, seen: Transcript) -> LogReading: ...


class OtherFormat(Protocol):
    """A module for files that are no text; `owns` tells them by name and first bytes."""

    def owns(self, path: Path, head: bytes) -> bool: ...

    def read(self, path: Path) -> LogReading: ...


def _module(one: LogTable) -> Any:
    """The module of a format, a `TextFormat` where it has marks, else an `OtherFormat`; None: its rows say all."""
    return importlib.import_module(f"{logs.__name__}.{one.module}") if one.module else None


def refuse(path: Path, reason: str) -> InputError:
    """The error that says why a file is no log that can be read."""
    return InputError([Problem(str(path), reason)])


def read_log(path: Path, framework: str | None = None) -> LogReading:
    """One log as a reading. Raises `InputError` with the reason where it cannot be read.

    `framework`: the format to read it as; recognised by its marks when None.
    """
    try:
        with opened(path) as stream:
            head = stream.read(HEAD_BYTES)
        return _read(path, head, framework)
    except (OSError, EOFError) as error:
        raise refuse(path, f"cannot be read: {error}") from error


def _read(path: Path, head: bytes, framework: str | None) -> LogReading:
    if not head:
        raise refuse(path, "is empty")
    chosen = _named(path, framework) if framework else _recognised(path, head)
    if not chosen.marks:
        other: OtherFormat = _module(chosen)
        return other.read(path)
    more: TextFormat | None = _module(chosen)
    seen = Transcript(source=str(path))
    for line in lines(path):
        observe_common(seen, line)
        if more is not None:
            more.observe(seen, line)
        chosen.observe(seen, line)
    if not seen.steps and seen.died() is None:
        raise refuse(path, f"looks like a log of {chosen.name} and holds no complete iteration line")
    found = more.conclude_run(chosen, seen) if more else chosen.conclude_run(seen)
    return replace(found, contract=chosen.contract)


def _named(path: Path, framework: str) -> LogTable:
    found = next((one for one in formats() if one.name == framework), None)
    if found is None:
        known = ", ".join(one.name for one in formats())
        raise refuse(path, f"no log format is called {framework!r}; known: {known}")
    return found


def _recognised(path: Path, head: bytes) -> LogTable:
    for one in formats():
        other: OtherFormat | None = None if one.marks else _module(one)
        if other is not None and other.owns(path, head):
            return one
    texts = [one for one in formats() if one.marks]
    found = _marks_in(path, (mark for one in texts for group in one.marks for mark in group))
    fitting = [one for one in texts if all(any(mark in found for mark in group) for group in one.marks)]
    if not fitting:
        known = ", ".join(one.name for one in formats())
        raise refuse(path, f"is no training log that is known here; formats: {known}")
    return max(fitting, key=lambda one: one.rank)


def _marks_in(path: Path, marks: Iterable[str]) -> frozenset[str]:
    missing, found = set(marks), set()
    for text in chunks(path):
        new = {mark for mark in missing if mark in text}
        found |= new
        missing -= new
        if not missing:
            break
    return frozenset(found)


LONGEST_LINE = 1 << 16
"""Characters of a line that are read; the rest of a longer one (a compiler's dump) is skipped."""

CHUNK = 1 << 22

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff]"
)
"""Control characters, signs that turn the direction of text, and every white space but blank, tab and line end."""
_COMPLETE_END = ("|", "}", "%", ")")


def _opened(path: Path) -> IO[bytes]:
    file = opened(path)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def plain(text: str) -> str:
    """Text without terminal escape sequences and control characters."""
    return (
        text
        if text.isprintable()
        else _CONTROLS.sub(lambda sign: " " if sign[0].isspace() else "", _ESCAPES.sub("", text))
    )


def chunks(path: Path) -> Iterator[str]:
    """A file as plain text in pieces of some MB; each begins with the end of the one before, so no word is split."""
    overlap = b""
    with _opened(path) as stream:
        while piece := stream.read(CHUNK):
            yield plain((overlap + piece).decode("utf-8", errors="replace"))
            overlap = piece[-256:]


def lines(path: Path) -> Iterator[str]:
    """Plain lines of a file; a carriage return ends one too. An unfinished last line is dropped unless it is closed."""
    with _opened(path) as stream:
        while raw := stream.readline(LONGEST_LINE):
            whole = raw.endswith(b"\n")
            text = plain(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
            parts = text.split("\r") if "\r" in text else [text]
            if not whole and len(raw) < LONGEST_LINE and not text.rstrip().endswith(_COMPLETE_END):
                parts = parts[:-1]
            yield from parts
            if not whole and len(raw) == LONGEST_LINE:
                _skip_rest(stream)


def _skip_rest(stream: IO[bytes]) -> None:
    while (raw := stream.readline(LONGEST_LINE)) and not raw.endswith(b"\n"):
        pass
