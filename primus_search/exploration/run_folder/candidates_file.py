"""The rows a run keeps, `candidates.parquet`: of every cluster, the best first; knobs as words, figures as floats.

Written at the end of a search, and again, in part, when its first rows are measured later.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import InputError, Problem
from primus_search.exploration.expected import RATE
from primus_search.exploration.ranking_table import FIGURES, MEASURED, PROJECTED, RUN, TRACED, RankingTable
from primus_search.exploration.run_folder.run_facts import read_facts, read_written
from primus_search.space.memo import in_codes
from primus_search.values.candidates import COLUMN_NAMES, Bools, Candidates
from primus_search.values.knobs import WORDED


def kept_bytes(tables: Sequence[RankingTable], keep: int = 0) -> bytes:
    """The file, of one table per cluster, of each the first `keep` rows; 0: all of them."""
    import pyarrow

    return _parquet_bytes(
        pyarrow.concat_tables([_arrow(_first(one, keep), number) for number, one in enumerate(tables)])
    )


def _first(table: RankingTable, keep: int) -> RankingTable:
    return table.take(np.arange(keep)) if 0 < keep < len(table) else table


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(
        table, sink, compression="zstd", use_dictionary=[*WORDED, "time_evidence", "memory_evidence"]
    )
    return sink.getvalue()


def _arrow(table: RankingTable, cluster: int) -> Any:
    import pyarrow

    p, c = table.projection, table.candidates
    columns: dict[str, Any] = {"cluster": np.full(len(table), cluster), "index": table.indices}
    for name, column in c.columns().items():
        columns[name] = _dictionary(column, name, c) if name in WORDED else column
    columns |= table.figures
    columns |= {n: _evidence(table.__getattribute__(n)) for n in ("time_evidence", "memory_evidence")}
    columns |= {f"step_{f.name}_s": p.step.__getattribute__(f.name) for f in fields(p.step)}
    columns |= {f"memory_{f.name}_bytes": p.memory.__getattribute__(f.name) for f in fields(p.memory)}
    arrays = [_array(column) if isinstance(column, np.ndarray) else column for column in columns.values()]
    return pyarrow.table(arrays, names=list(columns))


def _dictionary(column: Any, name: str, candidates: Any) -> Any:
    """A column of codes as words, one copy of each word."""
    import pyarrow

    values, codes = in_codes(column)
    words = [candidates.word(name, value) for value in values.tolist()]
    return pyarrow.DictionaryArray.from_arrays(_array(codes.astype(np.int32)), _texts(words))


def _evidence(words: NDArray[np.str_]) -> Any:
    """A column of kinds of evidence, one copy of each."""
    import pyarrow

    kinds = (PROJECTED, TRACED, MEASURED, RUN)
    codes = np.select([words == kind for kind in kinds], range(len(kinds))).astype(np.int32)
    return pyarrow.DictionaryArray.from_arrays(_array(codes), _texts(kinds))


# Arrow arrays are made of their buffers: `pyarrow.array` loads pandas where it is installed, which takes 0.4 s, and
# what `pyarrow.compute` is needed for loads that.


def _array(column: NDArray[Any]) -> Any:
    """A column of numbers or switches; switches are bits."""
    import pyarrow

    content = np.packbits(column, bitorder="little") if column.dtype == np.bool_ else np.ascontiguousarray(column)
    kind = pyarrow.from_numpy_dtype(column.dtype)
    return pyarrow.Array.from_buffers(kind, len(column), [None, pyarrow.py_buffer(content)])


def _texts(words: Sequence[str]) -> Any:
    """A column of words: where each ends, then all of them as UTF-8."""
    import pyarrow

    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(encoded), buffers)


Knobs = tuple[Any, ...]
"""The axes of a row as words and numbers, in the order of `COLUMN_NAMES`."""


def knobs_of(row: Mapping[str, Any]) -> Knobs:
    """What tells rows of one cluster apart."""
    return tuple(row[name] for name in COLUMN_NAMES)


def kept_numbers(path: Path, cluster: int, most: int) -> dict[Knobs, int]:
    """Numbers in the space of the first rows that a run kept of one of its clusters."""
    rows = of_cluster(read_kept(path), cluster).slice(0, most).select(["index", *COLUMN_NAMES]).to_pylist()
    return {knobs_of(row): row["index"] for row in rows}


def kept_again(path: Path, cluster: int, first: RankingTable) -> bytes:
    """`candidates.parquet` with the first rows of a cluster replaced."""
    import pyarrow

    old = read_kept(path)
    mine = [_arrow(first, cluster).cast(old.schema), of_cluster(old, cluster).slice(len(first))]
    others = [of_cluster(old, other) for other in old["cluster"].unique().to_pylist() if other != cluster]
    return _parquet_bytes(pyarrow.concat_tables([*mine, *others]))


def read_kept(path: Path) -> Any:
    """The rows of `candidates.parquet` in a run folder. Raises `InputError` for a missing or damaged file."""
    import pyarrow
    import pyarrow.parquet

    file = path / "candidates.parquet"
    content = read_written(file, read_facts(path)["files"])
    try:
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as opened:  # `read_table` loads pandas
            table = opened.read()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError([Problem(str(file), f"cannot be read back: {error}")]) from error
    absent = {"cluster", "index"} - set(table.column_names)
    if absent:
        raise InputError([Problem(str(file), f"has no column {', '.join(sorted(absent))}; run the search again")])
    for name in (one for one in COLUMN_NAMES if one not in table.column_names):  # knobs of later versions
        same = Candidates.from_rows([{"tp": 1}] * len(table))  # every other knob off
        column = same.columns()[name]
        table = table.append_column(name, _dictionary(column, name, same) if name in WORDED else _array(column))
    return table


def numbers_of(chunks: Sequence[Any]) -> NDArray[Any]:
    """Arrow arrays of numbers or switches as one column, from their buffers."""
    parts = []
    for chunk in chunks:
        content, begin, end = chunk.buffers()[1], chunk.offset, chunk.offset + len(chunk)
        if str(chunk.type) == "bool":
            parts.append(np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[begin:end].astype(np.bool_))
        else:
            parts.append(np.frombuffer(content, chunk.type.to_pandas_dtype())[begin:end])
    return np.concatenate(parts) if parts else np.zeros(0)


def of_cluster(table: Any, cluster: int) -> Any:
    """The rows of one cluster."""
    is_mine = numbers_of(table["cluster"].chunks) == cluster
    return table if is_mine.all() else table.take(_array(np.flatnonzero(is_mine)))


@dataclass(frozen=True)
class Kept:
    """The kept rows of one cluster of a run. `is_exact`: they are the true best of the space, none was missed."""

    table: Any
    is_exact: bool

    @classmethod
    def open(cls, folder: Path, cluster: int, *, is_exact: bool) -> "Kept":
        """Read a run's rows. Raises `InputError` for a missing or damaged file."""
        return cls(table=of_cluster(read_kept(folder), cluster), is_exact=is_exact)

    @classmethod
    def of(cls, table: RankingTable, keep: int, *, is_exact: bool) -> "Kept":
        """What `kept_bytes` writes of a cluster."""
        return cls(table=_arrow(_first(table, keep), 0), is_exact=is_exact)

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
        values, codes = in_codes(self.column(name))
        return codes, values.tolist()

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

    def best(self, knob: str, word: Any) -> Mapping[str, Any] | None:
        """The fastest row that fits of those with that word of a knob, None where there is none."""
        rows = np.flatnonzero((self.column(knob) == word) & self.may_run) if len(self) else np.zeros(0, dtype=np.int64)
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
