"""Tables of measured calls: a CSV beside a hardware file, which its `tables:` key names.

The columns are those of every measurement CSV (kind, dtype, op, m, n, k, seq, head_dim, heads, batch, message_bytes,
num_gpus, value, unit, source ...; others are ignored). Kernels are given in TFLOP/s of the FLOPs their shape needs,
collectives in us. Every row needs a source, as every number of a hardware file does.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.values.machine.accelerator import GROUPED, KernelTable, Tables

TERA, MICRO = 1e12, 1e-6
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
# dtype of the CSV -> recipe of the cost model.
_RECIPES = {"bf16": "bf16", "fp32": "bf16", "fp8_tensorwise": "hybrid", "fp8_blockwise": "blockwise", "mxfp8": "mxfp8"}
_BACKWARD_FACTOR = {"gemm": 2.0, GROUPED: 2.0, "attention": 2.5}  # FLOPs of both gradients over forward's

Row = Mapping[str, str]


def read_tables(path: Path) -> tuple[Tables, Tables, tuple[str, ...]]:
    """Tables of kernels, tables of collectives, and the sources they are from. InputError lists every bad row."""
    if not path.is_file():
        raise InputError([Problem(str(path), "no such file of measured calls; the hardware file's `tables:` names it")])
    rows = list(csv.DictReader(io.StringIO(read_text(path, most=MAX_TABLE_BYTES), newline="")))
    kernels, links = tables_of(rows, str(path))
    return kernels, links, tuple(dict.fromkeys(row["source"] for row in rows))


def tables_of(rows: Iterable[Row], where: str) -> tuple[Tables, Tables]:
    """Tables of kernels and of collectives from rows of such a file; `where` it is, for messages."""
    found: dict[str, tuple[list[tuple[float, ...]], list[float]]] = {}
    problems = []
    for number, row in enumerate(rows, start=2):
        try:
            # Values of another head dimension than keys: the law's own factor says what that costs.
            if row["kind"] == "attention" and "/" in row["head_dim"]:
                continue
            kind, shape, seconds = _call(row)
        except (KeyError, ValueError) as error:
            problems.append(Problem(f"{where}:{number}", f"is not a measured call: {error}"))
            continue
        shapes, durations = found.setdefault(kind, ([], []))
        shapes.append(shape)
        durations.append(seconds)
    if problems:
        raise InputError(problems)
    tables = [KernelTable(kind=kind, shapes=tuple(shapes), seconds=tuple(s)) for kind, (shapes, s) in found.items()]
    links = Tables(tables=tuple(table for table in tables if table.kind in COLLECTIVES))
    kernels = Tables(tables=tuple(table for table in tables if table.kind not in COLLECTIVES))
    return kernels, links


def _call(row: Row) -> tuple[str, tuple[float, ...], float]:
    """Kind, shape and seconds of one row."""
    if not row["source"].strip():
        raise ValueError("it has no source")
    value = float(row["value"])
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"its value is {row['value']}, not a positive number")
    if row["kind"] == "collective":
        if row["op"] not in COLLECTIVES:
            raise ValueError(f"collective {row['op']!r} is not one of {', '.join(COLLECTIVES)}")
        if row["unit"] != "us":
            raise ValueError(f"a collective is given in us, not {row['unit']!r}")
        return row["op"], (float(row["num_gpus"]), float(row["message_bytes"])), value * MICRO
    if row["kind"] not in _SHAPES:
        raise ValueError(f"kind {row['kind']!r} is not one of collective, {', '.join(_SHAPES)}")
    if row["unit"] != "TFLOP/s":
        raise ValueError(f"a kernel is given in TFLOP/s, not {row['unit']!r}")
    shape, flops = _SHAPES[row["kind"]](row)
    direction = row["op"].partition("_")[0]
    if direction not in ("fwd", "bwd"):
        raise ValueError(f"op {row['op']!r} is neither fwd nor bwd")
    flops *= 1.0 if direction == "fwd" else _BACKWARD_FACTOR[row["kind"]]
    if row["kind"] == "attention":
        family = row["op"].removeprefix(f"{direction}_").removeprefix("torch_")
        return f"attention/{family}/{direction}", shape, flops / (value * TERA)
    return f"{row['kind']}/{_RECIPES[row['dtype']]}/{direction}", shape, flops / (value * TERA)


def _gemm(row: Row) -> tuple[tuple[float, ...], float]:
    m, n, k = (float(row[name]) for name in ("m", "n", "k"))
    return (m, n, k), 2.0 * m * n * k


def _grouped(row: Row) -> tuple[tuple[float, ...], float]:
    groups, m, n, k = (float(row[name]) for name in ("batch", "m", "n", "k"))
    return (groups, m, n, k), 2.0 * groups * m * n * k


def _attention(row: Row) -> tuple[tuple[float, ...], float]:
    if row["causal"] != "true":
        raise ValueError("only causal attention stands in a table")
    query_heads = float(row["heads"].partition("/")[0])
    heads, seq, dim = float(row["batch"]) * query_heads, float(row["seq"]), float(row["head_dim"])
    return (heads, seq, dim), 4.0 * heads * dim * seq * seq / 2.0


_SHAPES: dict[str, Callable[[Row], tuple[tuple[float, ...], float]]] = {
    "gemm": _gemm,
    GROUPED: _grouped,
    "attention": _attention,
}
