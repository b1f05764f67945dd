"""The rows a run keeps, `candidates.parquet`: of every cluster, the best first; knobs as words, figures as floats.

Written at the end of a search, and again, in part, when its first rows are measured later.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.candidates import COLUMN_NAMES
from primus_search.errors import InputError, Problem
from primus_search.search.result import Table


def kept_bytes(tables: Sequence[Table]) -> bytes:
    """The file, of one table per cluster."""
    import pyarrow

    return _parquet_bytes(pyarrow.concat_tables([_arrow(table, number) for number, table in enumerate(tables)]))


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _arrow(table: Table, cluster: int) -> Any:
    import pyarrow

    p, c = table.projection, table.candidates
    columns: dict[str, Any] = {"cluster": np.full(len(table), cluster), "index": table.indices}
    for name, column in c.columns().items():
        columns[name] = _dictionary(column, name, c) if name in _WORDS else column
    columns |= table.figures
    columns |= {name: _words(table.__getattribute__(name)) for name in ("time_evidence", "memory_evidence")}
    columns |= {f"step_{f.name}_s": p.step.__getattribute__(f.name) for f in fields(p.step)}
    columns |= {f"memory_{f.name}_bytes": p.memory.__getattribute__(f.name) for f in fields(p.memory)}
    return pyarrow.table(columns)


_WORDS = ("schedule", "pipeline_layout", "fp8", "recompute", "recompute_method", "sharding", "grouped_gemm")


def _dictionary(column: Any, name: str, candidates: Any) -> Any:
    """A column of codes as words, one copy of each word."""
    import pyarrow

    codes, example, inverse = np.unique(column, return_index=True, return_inverse=True)
    words = [candidates.take(slice(int(at), int(at) + 1)).row(0)[name] for at in example[: len(codes)]]
    return pyarrow.DictionaryArray.from_arrays(inverse.astype(np.int32), words)


def _words(words: Sequence[str]) -> Any:
    import pyarrow

    return pyarrow.array(words).dictionary_encode()


Knobs = tuple[Any, ...]
"""The axes of a row as words and numbers, in the order of `COLUMN_NAMES`."""


def knobs_of(row: Mapping[str, Any]) -> Knobs:
    """What tells rows of one cluster apart."""
    return tuple(row[name] for name in COLUMN_NAMES)


def kept_numbers(path: Path, cluster: int, most: int) -> dict[Knobs, int]:
    """Numbers in the space of the first rows that a run kept of one of its clusters."""
    rows = _of_cluster(read_kept(path), cluster).slice(0, most).select(["index", *COLUMN_NAMES]).to_pylist()
    return {knobs_of(row): row["index"] for row in rows}


def kept_again(path: Path, cluster: int, first: Table) -> bytes:
    """`candidates.parquet` with the first rows of a cluster replaced."""
    import pyarrow

    old = read_kept(path)
    mine = [_arrow(first, cluster).cast(old.schema), _of_cluster(old, cluster).slice(len(first))]
    others = [_of_cluster(old, other) for other in old["cluster"].unique().to_pylist() if other != cluster]
    return _parquet_bytes(pyarrow.concat_tables([*mine, *others]))


def read_kept(path: Path) -> Any:
    """The rows of `candidates.parquet` in a run folder. Raises `InputError` for a missing or damaged file."""
    import pyarrow
    import pyarrow.parquet

    file = path / "candidates.parquet"
    try:
        return pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError([Problem(str(file), f"cannot be read back: {error}")]) from error


def _of_cluster(table: Any, cluster: int) -> Any:
    import pyarrow.compute

    return table.filter(pyarrow.compute.equal(table["cluster"], cluster))
