"""The rows a run kept (`candidates.parquet`): the best of the whole search, fastest first, every figure and part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.exploration.expected import RATE
from primus_search.exploration.result import FIGURES, RUN
from primus_search.exploration.run_folder.candidates_file import numbers_of, of_cluster, read_kept
from primus_search.values.candidates import COLUMN_NAMES, Bools
from primus_search.values.knobs import WORDED


@dataclass(frozen=True)
class Kept:
    """The kept rows of one cluster of a run. `is_exact`: they are the true best of the space, none was missed."""

    table: Any
    is_exact: bool

    @classmethod
    def open(cls, folder: Path, cluster: int, *, is_exact: bool) -> "Kept":
        """Read a run's rows. Raises `InputError` for a missing or damaged file."""
        return cls(table=of_cluster(read_kept(folder), cluster), is_exact=is_exact)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[Any]:
        """A column; words as an array of objects."""
        column = self.table[name]
        if name in WORDED:
            codes, words = self.codes(name)
            return np.array(words, dtype=object)[codes]
        return numbers_of(column.chunks)

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[Any]]:
        """A column as positions in the sorted list of its distinct values, and that list."""
        column = self.table[name].combine_chunks()
        if name in WORDED or name.endswith("_evidence"):
            encoded = column.chunk(0) if hasattr(column, "chunk") else column
            return numbers_of([encoded.indices]).astype(np.int64), encoded.dictionary.to_pylist()
        values, codes = np.unique(self.column(name), return_inverse=True)
        return codes.astype(np.int64), [value.item() for value in values]

    @cached_property
    def speed(self) -> NDArray[np.float64]:
        """Expected tokens/s/GPU of every row."""
        return np.asarray(self.column(RATE), dtype=np.float64)

    @property
    def slowest(self) -> float:
        """Projected tokens/s/GPU of the slowest row kept, more than any row that was not kept expects; 0 without rows.

        Rows are cut by their projection and then by their expected rate, which is never above it.
        """
        return float(np.asarray(self.column("tokens_per_s_per_gpu")).min()) if len(self) else 0.0

    @cached_property
    def may_run(self) -> Bools:
        """Rows that fit, or that were run; the others were shown not to fit by re-validation."""
        codes, words = self.codes("time_evidence")
        was_run = np.array([word == RUN for word in words], dtype=np.bool_)[codes]
        return np.asarray(self.column("headroom_bytes") >= 0.0, dtype=np.bool_) | was_run

    def best(self, mask: Callable[["Kept"], Bools]) -> Mapping[str, Any] | None:
        """The fastest row that fits of those that `mask` selects, None where there is none."""
        rows = np.flatnonzero(mask(self) & self.may_run) if len(self) else np.zeros(0, dtype=np.int64)
        return None if not len(rows) else self.row(int(rows[self.speed[rows].argmax()]))

    def row(self, index: int) -> dict[str, Any]:
        """One row: axes as words, then figures."""
        one = self.table.slice(index, 1).to_pylist()[0]
        return {name: one[name] for name in (*COLUMN_NAMES, *FIGURES)}

    def parts(self, prefix: str, suffix: str) -> dict[str, NDArray[np.float64]]:
        """The columns of a break-down by part name: `parts("step_", "_s")`."""
        figures = set(FIGURES)
        return {
            name.removeprefix(prefix).removesuffix(suffix): np.asarray(self.column(name), dtype=np.float64)
            for name in self.table.column_names
            if name.startswith(prefix) and name.endswith(suffix) and name not in figures
        }
