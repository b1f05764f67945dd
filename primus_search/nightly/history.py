"""The history of a sweep: one row per figure and night, appended to a Parquet file."""

import io
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import write_whole
from primus_search.base.units import GB
from primus_search.nightly.night_run import Night

COLUMNS = ("started", "commit", "where", "figure", "value", "passed")


def rows_of(night: Night) -> list[dict[str, Any]]:
    """Every figure of a night worth a trend."""
    found: list[tuple[str, str, float, bool]] = []
    for entry in night.sweep.entries:
        for number, one in enumerate(night.state.entries[entry.name]):
            where = f"{entry.name}, {one.cluster}"
            passed = all(c.passed for c in night.checks if c.entry == entry.name and c.cluster == number)
            found.append((where, "tokens/s/GPU", one.tokens_per_s_per_gpu, passed))
            found.append((where, "memory, GB", one.memory_bytes / GB, passed))
            found.append((where, "frontier, tokens/s/GPU", one.hypervolume, passed))
    accuracy = night.state.accuracy
    if accuracy:
        passed = all(c.passed for c in night.checks if c.entry == "accuracy")
        found.append(("accuracy", "median error of tokens/s, %", accuracy.median_abs_error * 100, passed))
        found.append(("accuracy", "90th percentile error of tokens/s, %", accuracy.p90_abs_error * 100, passed))
        found.append(("accuracy", "median error of memory, %", accuracy.memory_median_abs_error * 100, passed))
    if night.sweep.speed:
        passed = all(c.passed for c in night.checks if c.entry == "speed")
        found.append(("speed", "rows per pass of the NumPy reference", night.state.speed, passed))
    base = {"started": night.started, "commit": night.state.commit}
    return [base | {"where": w, "figure": f, "value": v, "passed": p} for w, f, v, p in found]


def append(path: Path, night: Night) -> list[dict[str, Any]]:
    """Add a night to the file and return every row of it. A file that is no history is refused, not replaced."""
    import pyarrow
    import pyarrow.parquet

    rows = (_read(path) if path.exists() else []) + rows_of(night)
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content, compression="zstd")
    write_whole(path, content.getvalue())
    return rows


def _read(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        what = f"is no history of a nightly sweep ({str(error).splitlines()[0]}); move it away"
        raise InputError([Problem(str(path), what)]) from error
    return rows
