"""Published tables of training runs as typed rows. Odd or missing values become None; the converter decides on them.

Runs come from a CSV, or from every CSV that a list names: a `.txt` file with one path per line, relative to itself. A
vendor after a path means the runs of that vendor's devices alone.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import finite_number
from primus_search.files import word_rules
from primus_search.files.word_rules import NO_FACTS, Facts, first, vocabulary


def unread(flags: str) -> tuple[str, ...]:
    """Parts of a row's flags in which no rule looks for anything."""
    parts = (part.strip() for part in re.split(r"[;|]|, ", flags))
    return tuple(part for part in dict.fromkeys(parts) if part and not _is_read(part))


@lru_cache(maxsize=4096)
def _is_read(part: str) -> bool:
    return any(one.search(part) for one in word_rules.looked_for())


_ARGUMENT = re.compile(r"--([A-Za-z][\w-]{0,80})(?:[= ](\S{1,200}))?$|([A-Za-z]\w{0,80})=(\S{1,200})$")
_PLAIN = {"true": True, "false": False, "none": None, "": True}


def arguments(parts: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Launch arguments among parts of flags: their key, the part and the value."""
    found = {}
    for part in parts:
        if match := _ARGUMENT.match(part):
            text = match[2] or match[4] or ""
            value = _PLAIN[text.lower()] if text.lower() in _PLAIN else word_rules.typed(text)
            found[(match[1] or match[3]).replace("-", "_")] = (part, value)
    return found


# --- rows ------------------------------------------------------------------------------------------------------------

_COLUMNS = vocabulary("columns")
NUMBERS = tuple(" ".join(_COLUMNS["numbers"]).split())
WORDS = tuple(" ".join(_COLUMNS["words"]).split())
OUTCOMES = tuple(_COLUMNS["outcomes"])
"""Columns that may say how a run ended: `oom`, `out of memory`, `ran`; a column `oom` may say yes."""
REQUIRED = (("gpu",), ("gpus",), ("tokens_per_s_per_gpu", "step_time_s", *OUTCOMES))
"""Columns without which no row can be scored, one of each group; whatever else is missing is missing in each row."""
MOST, MOST_OF = 10**9, _COLUMNS["most"]
"""Upper limit of any count, and of some; larger values are rejected as typos."""

LIST = ".txt"
"""Ending of a list of tables."""

VENDORS = ("amd", "nvidia")
"""Words that may stand after a table in a list."""

_DATED = re.compile(r"(?<!\d)(20[12]\d)-[01]\d(?!\d)")
_ARXIV = re.compile(r"arxiv:(\d\d)[01]\d\.\d{4,5}", re.IGNORECASE)
_MLPERF = re.compile(r"mlperf|training_results_v", re.IGNORECASE)


class Skipped(Exception):
    """Why a run cannot be projected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One measured run: words lower-cased only where compared, numbers as floats or None.

    table, line: where it is written
    ran_out, ran: the table says that it ran out of memory, or that it ran; a run with a rate needs no such word.
    """

    line: int
    words: dict[str, str]
    numbers: dict[str, float | None]
    ran_out: bool = False
    ran: bool = False
    table: str = ""

    @property
    def id(self) -> str:
        return self.words["id"] or f"line {self.line}"

    @property
    def place(self) -> tuple[str, int]:
        """Where it is written, which no two runs share."""
        return self.table, self.line

    @property
    def publisher(self) -> str:
        """Who published it: a repository, or what a source is called before its date, version or page."""
        source = self.word("source")
        if _MLPERF.search(source):
            return "MLPerf"
        repository = re.match(r"\A[\w.-]++/[\w.-]+", source)
        return repository.group() if repository else re.split(r"[(,:]| v?\d", source)[0].strip()

    @property
    def facts(self) -> dict[str, str]:
        """The words, and the year that the source's date or an arXiv number says; empty where none is written."""
        source, notes = self.word("source"), self.word("notes")
        dated, preprint = _DATED.search(f"{self.words.get('date', '')} {source}"), _ARXIV.search(f"{source} {notes}")
        return self.words | {"year": dated[1] if dated else f"20{preprint[1]}" if preprint else ""}

    def told(self, rules: str, default: Any = None, *, file: str = "words", facts: Facts = NO_FACTS) -> Any:
        """The value of the first rule of a vocabulary file's list that holds for the words and some more facts."""
        return first(vocabulary(file)[rules], {**self.words, **facts}, default)

    def word(self, name: str) -> str:
        """A word, empty when the cell is."""
        return self.words[name]

    def without(self, *names: str) -> "PublishedRun":
        """The run as if the cells of these words were empty."""
        return replace(self, words=self.words | dict.fromkeys(names, ""))

    def number(self, name: str) -> float | None:
        """A number, None when the cell is empty or no number."""
        return self.numbers[name]

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A count: a number that is whole and at least 0; `default` when the cell is empty, None when it is neither."""
        value = self.numbers[name]
        if value is None:
            return default
        return int(value) if 0 <= value <= MOST_OF.get(name, MOST) and value == int(value) else None

    def count(self, name: str, default: int | None = None) -> int:
        """A count of at least 1 that the run must have. Raises `Skipped` where it has none."""
        value = self.whole(name, default)
        if value is None or value < 1:
            raise Skipped(f"{name} is missing or not a whole number of at least 1")
        return value

    def parts(self, name: str) -> int:
        """A count that is 0 where the cell is empty. Raises `Skipped` where it is no count."""
        value = self.whole(name, 0)
        if value is None:
            raise Skipped(f"{name} is not a whole number")
        return value

    @property
    def is_complete(self) -> bool:
        """Whether every field needed to project the run is published; a table without the column claims it."""
        return self.words["complete"].lower() in ("yes", "y", "1", "1.0", "true", "")


def read_rows(path: Path) -> list[PublishedRun]:
    """Rows of a CSV with (at least) the columns a projection needs, or of every CSV that a list names.

    Raises InputError when one is no such table.
    """
    return [run for table in tables(path) for run in _read(table)]


def tables(path: Path) -> dict[Path, str]:
    """The CSV files that a path means, each with the vendor whose runs alone are meant, or an empty word.

    They are the path itself, or what a list names, where # begins a remark.
    """
    if path.suffix != LIST:
        return {path: ""}
    lines = [line.partition("#")[0].strip() for line in read_text(path, most=MAX_TABLE_BYTES).splitlines()]
    found = {}
    for line in filter(None, lines):
        name, _, vendor = line.rpartition(" ")
        is_part = vendor in VENDORS and bool(name)
        found[path.parent / (name.strip() if is_part else line)] = vendor if is_part else ""
    if not found:
        raise InputError([Problem(str(path), "names no table")])
    return found


def is_published(path: Path) -> bool:
    """Whether a file is a published table, not one of records, which have a column `hardware`."""
    if path.suffix == ".parquet":
        return False
    try:
        names = {name.strip().lower() for name in next(csv.reader(_lines(path)), [])}
    except (InputError, csv.Error):
        return True
    return "hardware" not in names


def _read(path: Path) -> list[PublishedRun]:
    try:
        reader = csv.DictReader(_lines(path))
        names = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
        missing = [group for group in REQUIRED if not any(name in names for name in group)]
        if missing:
            raise InputError([Problem(str(path), f"no column {' or '.join(group)}") for group in missing])
        return [_run(str(path), line, row, names) for line, row in enumerate(reader, start=2)]
    except csv.Error as error:
        raise InputError([Problem(str(path), f"not a CSV file: {error}")]) from None


def _lines(path: Path) -> io.StringIO:
    return io.StringIO(read_text(path, most=MAX_TABLE_BYTES, encoding="utf-8-sig"), newline="")


def _run(table: str, line: int, row: dict[str, str | None], names: dict[str, str]) -> PublishedRun:
    cells = {name: row.get(written) or "" for name, written in names.items()}
    ran_out, ran = _ending(cells)
    return PublishedRun(
        table=table,
        line=line,
        words={name: cells.get(name, "").strip() for name in WORDS},
        numbers={name: _number(cells.get(name, "")) for name in NUMBERS},
        ran_out=ran_out,
        ran=ran and not ran_out,
    )


_OUT_OF_MEMORY = re.compile(r"\boom\b|out[- _]?of[- _]?memory", re.IGNORECASE)
_RAN = re.compile(r"^(ran|runs|ok|success\w*|fits?|pass\w*|completed?|no[- _]?oom)\b", re.IGNORECASE)
_MEASURED = ("tokens_per_s_per_gpu", "step_time_s", "peak_mem_gb")


def _ending(cells: dict[str, str]) -> tuple[bool, bool]:
    """Whether the cells say that a run ran out of memory, and whether they say that it ran.

    Tables write OOM into the column of the outcome, in place of the rate or the peak, or into the notes of a row that
    has neither.
    """
    measured = [cells.get(name, "").strip() for name in _MEASURED]
    outcomes = [cells.get(name, "").strip() for name in OUTCOMES] + measured
    if not any(measured):
        outcomes.append(cells.get("notes", "").strip())
    flag = cells.get("oom", "").strip().lower()
    ran = any(_RAN.search(word) for word in outcomes[: len(OUTCOMES)])
    ran_out = any(_OUT_OF_MEMORY.search(word) and not _RAN.search(word) for word in outcomes)
    return ran_out or flag in ("yes", "y", "true", "1", "1.0"), ran or flag in ("no", "n", "false", "0", "0.0")


_YES_NO = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _number(text: str) -> float | None:
    """A number as tables write them: `8192`, `8192.0`, `1,024`, `12 %`; yes and no are 1 and 0."""
    word = text.strip().lower().removesuffix("%").replace(",", "").replace("_", "")
    if word in _YES_NO:
        return _YES_NO[word]
    return finite_number(word)
