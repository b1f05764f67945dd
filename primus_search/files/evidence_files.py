"""Reads what measurements cover: `hardware/ranges/*.yaml` and `hardware/switches/*.yaml` (written by
`python -m tools.fit ranges`), and `hardware/sites/first_contact.yaml`, errors of a cluster that no fit has seen.

    shares:
      moe: {value: 0.78, pairs: 25, source: "..."}
    devices:
      B200:
        48 layers of 2048, 128 experts: [{runs: 5, fp8: mxfp8, deepep: true, cuda_graph: partial}]

Tables of measured calls: a CSV beside a hardware file, which its `tables:` key names.

The columns are those of every measurement CSV (kind, dtype, op, m, n, k, seq, head_dim, heads, batch, message_bytes,
num_gpus, value, unit, source ...; others are ignored). Kernels are given in TFLOP/s of the FLOPs their shape needs,
collectives in us. Every row needs a source, as every number of a hardware file does.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.cost.confidence.switch_evidence import SWITCHES, SwitchEvidence
from primus_search.files.plain_forms import from_plain
from primus_search.files.records import Reading, build
from primus_search.files.search_path import roots_of_today
from primus_search.files.source import Document, read
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from primus_search.values.machine.kernel_tables import GROUPED, KernelTable, Tables
from primus_search.values.machine.ranges import Range, Ranges
from primus_search.values.machine.stack import SiteErrors

MISSING = "is missing from the installation"
RANGES = "hardware/ranges"


def _files_below(folder: str) -> list[Path]:
    """YAML files of a folder in every root, in order of precedence. Raises InputError where there is none at all."""
    found = [path for root in roots_of_today() for path in sorted((root / folder).glob("*.yaml"))]
    if not found:
        raise InputError([Problem(folder, MISSING)])
    return found


@lru_cache(maxsize=1)
def load_ranges() -> Ranges:
    """Every range in reach; an owner in an earlier root hides the same owner in a later one.

    Raises InputError for a file that holds something else, or where there is none.
    """
    found: dict[str, dict[str, Range]] = {}
    for _, files in groupby(_files_below(RANGES), lambda path: path.parent):
        mine: dict[str, dict[str, Range]] = {}
        for path in files:
            document = read(path)
            try:
                owners = from_plain(dict[str, dict[str, Range]], document.data or {})
            except ValueError as error:
                raise InputError([document.problem((), str(error))]) from None
            for owner, kinds in owners.items():
                mine.setdefault(owner, {}).update(kinds)
        found = mine | found
    return found


SWITCH_FOLDER = "hardware/switches"
RUNS, FORMAT = "runs", "fp8"
COLUMNS = (FORMAT, *SWITCHES)
"""What an entry may say beside how many runs: the number format of products, and switches."""
_USUAL = {name: KNOB[name].word(KNOB[name].column_default) for name in COLUMNS}


@lru_cache(maxsize=1)
def load_switches() -> SwitchEvidence:
    """What every file in reach says; a device in an earlier root hides the same device in a later one.

    Raises InputError for a file that holds something else, or where there is none.
    """
    sets: dict[str, dict[str, Candidates]] = {}
    shares: dict[str, float] = {}
    for path in _files_below(SWITCH_FOLDER):
        document = read(path)
        data = document.data if isinstance(document.data, dict) else {}
        sets = {device: _sets(document, device, raw) for device, raw in (data.get("devices") or {}).items()} | sets
        shares = {name: float(raw["value"]) for name, raw in (data.get("shares") or {}).items()} | shares
    return SwitchEvidence(sets=sets, shares=shares)


def _sets(document: Document, device: str, raw: Any) -> dict[str, Candidates]:
    """The combinations of a device, by shape of the model."""
    found = {}
    for shape, entries in (raw if isinstance(raw, dict) else {}).items():
        try:
            rows = [{key: value for key, value in entry.items() if key != RUNS} for entry in entries]
            strange = sorted({key for row in rows for key in row} - set(COLUMNS))
            if strange or not rows:
                raise ValueError(f"expected {RUNS}, {FORMAT} and switches, found {', '.join(strange) or 'nothing'}")
            found[shape] = Candidates.from_rows([_USUAL | row for row in rows])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError([document.problem(("devices", device, shape), str(error))]) from error
    return found


FILE = "hardware/sites/first_contact.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Errors at first contact, the publishers whose own clusters have none beside those of their software, and families
    of models that no run identified the rate of a device for."""

    errors: SiteErrors
    publishers: frozenset[str]
    unmeasured: Mapping[str, tuple[str, ...]]

    def of(self, publisher: str, fabric: str) -> SiteErrors | None:
        """What a fabric has on the cluster of a publisher; None where runs of theirs are in the fits."""
        return None if publisher in self.publishers else self.on(fabric)

    def on(self, fabric: str, errors: SiteErrors | None = None) -> SiteErrors:
        """What a device with its transport (`Cluster.fabric`) has on a cluster that no fit has seen; errors: of any."""
        found, (device, _, transport) = errors or self.errors, fabric.partition("@")
        exchange = math.hypot(found.exchange, found.transport) if transport else found.exchange
        return replace(found, new_families=self.unmeasured.get(device, ()), exchange=exchange)


@lru_cache(maxsize=1)
def load_sites() -> Sites:
    """The first file in reach. Raises InputError for one that holds something else, or where there is none."""
    path = next((root / FILE for root in roots_of_today() if (root / FILE).is_file()), None)
    if path is None:
        raise InputError([Problem(FILE, MISSING)])
    document = read(path)
    data = document.data if isinstance(document.data, dict) else {}
    reading = Reading(document)
    errors = build(SiteErrors, data.get("errors"), ("errors",), reading)
    if errors is None or reading.problems:
        raise InputError(reading.problems)
    return Sites(
        errors=errors,
        publishers=frozenset(map(str, data.get("publishers") or ())),
        unmeasured={device: tuple(families) for device, families in (data.get("unmeasured") or {}).items()},
    )


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
    if row["kind"] not in _SIZES:
        raise ValueError(f"kind {row['kind']!r} is not one of collective, {', '.join(_SIZES)}")
    if row["unit"] != "TFLOP/s":
        raise ValueError(f"a kernel is given in TFLOP/s, not {row['unit']!r}")
    shape, flops = _shape(row)
    direction = row["op"].partition("_")[0]
    if direction not in ("fwd", "bwd"):
        raise ValueError(f"op {row['op']!r} is neither fwd nor bwd")
    flops *= 1.0 if direction == "fwd" else _BACKWARD_FACTOR[row["kind"]]
    if row["kind"] == "attention":
        family = row["op"].removeprefix(f"{direction}_").removeprefix("torch_")
        return f"attention/{family}/{direction}", shape, flops / (value * TERA)
    return f"{row['kind']}/{_RECIPES[row['dtype']]}/{direction}", shape, flops / (value * TERA)


def _shape(row: Row) -> tuple[tuple[float, ...], float]:
    """Sizes of a call and the FLOPs of its forward."""
    if row["kind"] != "attention":
        sizes = tuple(float(row[name]) for name in _SIZES[row["kind"]])
        return sizes, 2.0 * math.prod(sizes)
    if row["causal"] != "true":
        raise ValueError("only causal attention stands in a table")
    query_heads = float(row["heads"].partition("/")[0])
    heads, seq, dim = float(row["batch"]) * query_heads, float(row["seq"]), float(row["head_dim"])
    return (heads, seq, dim), 4.0 * heads * dim * seq * seq / 2.0


_SIZES = {"gemm": ("m", "n", "k"), GROUPED: ("batch", "m", "n", "k"), "attention": ("batch", "seq", "head_dim")}
"""Columns of a call's sizes, by its kind."""
