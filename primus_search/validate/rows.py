"""Measured training runs as typed rows. Odd or missing values become None; `cases` decides if that matters."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from primus_search.errors import InputError, Problem

NUMBERS = (
    "params_b",
    "num_layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "num_experts",
    "topk",
    "moe_ffn",
    "shared_experts",
    "first_dense_layers",
    "mla",
    "gpus",
    "gpus_per_node",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "seq_len",
    "mbs",
    "gbs",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "peak_mem_gb",
)
WORDS = (
    "id",
    "source",
    "model",
    "gpu",
    "fsdp",
    "precision",
    "recompute",
    "schedule",
    "sequence_parallel",
    "flags",
    "complete",
    "notes",
)
REQUIRED = ("source", "model", "gpu", "gpus", "tokens_per_s_per_gpu")

MOST = 10**9
"""No count of a training run is larger; what is, is a slip of the pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: words lower-cased only where compared, numbers as floats or None."""

    line: int
    words: dict[str, str]
    numbers: dict[str, float | None]

    @property
    def id(self) -> str:
        return self.words["id"] or f"line {self.line}"

    def word(self, name: str) -> str:
        """A word, empty when the cell is."""
        return self.words[name]

    def number(self, name: str) -> float | None:
        """A number, None when the cell is empty or no number."""
        return self.numbers[name]

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A count: a number that is whole and at least 0; `default` when the cell is empty, None when it is neither."""
        value = self.numbers[name]
        if value is None:
            return default
        return int(value) if 0 <= value <= MOST and value == int(value) else None

    @property
    def is_complete(self) -> bool:
        """Whether every field needed to project the run is published; a table without the column claims it."""
        return self.words["complete"].lower() in ("yes", "1", "true", "")


def read_runs(path: Path) -> list[Run]:
    """Rows of a CSV with (at least) the columns a projection needs. Raises InputError when it is no such table."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or ()
            missing = [name for name in REQUIRED if name not in header]
            if missing:
                raise InputError([Problem(str(path), f"no column {name}") for name in missing])
            return [_run(line, row) for line, row in enumerate(reader, start=2)]
    except OSError as error:
        raise InputError([Problem(str(path), error.strerror or str(error))]) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError([Problem(str(path), f"not a CSV file: {error}")]) from None


def _run(line: int, row: dict[str, str | None]) -> Run:
    return Run(
        line=line,
        words={name: (row.get(name) or "").strip() for name in WORDS},
        numbers={name: _number(row.get(name)) for name in NUMBERS},
    )


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").strip().replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
