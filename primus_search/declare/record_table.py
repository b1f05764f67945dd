"""Tables of measured runs as people keep them: one row per run, CSV or parquet, in the words of a space file.

Needed are model, hardware, nodes (or gpus), seq_length, global_batch_size and one measured figure. `model` is a preset,
a file, or a model's fields as JSON. Columns of the candidate have the names of the axes, and their defaults where they
are left out; `overrides` is a JSON mapping of numbers that differ in that run (`{"stack.memory.loss_chunks": 8}`).
"""

import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from primus_search.base.errors import UNREADABLE, InputError, Problem, did_you_mean
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_bytes
from primus_search.base.guards.values import finite_number, guarded, unguarded
from primus_search.base.units import GB, to_base, yaml_keys
from primus_search.files.evidence_files import load_switches
from primus_search.files.hardware_files import load_cluster, load_hardware, site_of
from primus_search.files.plain_forms import from_plain, to_plain
from primus_search.files.search_path import FileKind, names
from primus_search.models.model_files import load_model
from primus_search.space import Space
from primus_search.values.candidates import DEFAULTS, Candidates, joined
from primus_search.values.knobs import WORDED
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import MeasuredSwitches, Stack
from primus_search.values.measured_run import (
    MEASURED,
    MeasuredRun,
    Measurement,
    Provenance,
    RunTable,
    overridden,
    overrides_of,
)
from primus_search.values.model import Model
from primus_search.values.workload import Workload

Made = TypeVar("Made")

_PROVENANCE = ("id", "source", "publisher", "notes", "date", "gpu", "precision")
_MACHINE = (
    "hardware", "nodes", "gpus", "gpus_per_node", "nics_per_node", "nic_GBps", "stack", "stack_is_assumed",
    "stack_has_words", "framework", "overrides", "assumed",
)  # fmt: skip
_WORKLOAD: dict[str, type] = {
    "seq_length": int, "global_batch_size": int, "routing_imbalance": float, "routing_spread": float,
    "document_length": float, "experts_in_turn": bool, "pads_to_capacity": bool,
}  # fmt: skip
_NEEDED = ("seq_length", "global_batch_size")
_FIGURES = (
    "tokens_per_s_per_gpu", *yaml_keys("step_s"), "peak_bytes", *yaml_keys("peak_bytes"), "peak_kind", "ending",
    "noise",
)  # fmt: skip
_KINDS = {
    name: str if name in WORDED else bool if isinstance(default, bool) else int for name, default in DEFAULTS.items()
}
_EMPTY = ["", "nan", "NaN", "NA", "N/A", "n/a", "null", "None"]
_NO_VALUE = dict.fromkeys((*_MACHINE, *_WORKLOAD, *DEFAULTS, *_FIGURES), _EMPTY)
"""Words for an empty cell; in the columns of provenance these are text."""
COLUMNS = (*_PROVENANCE, "model", *_MACHINE, *_WORKLOAD, *DEFAULTS, *_FIGURES)
"""Every column a table of records may have."""


def read_records(path: Path) -> RunTable:
    """The runs of a table of records. Raises InputError with every cell that cannot be read."""
    file = io.BytesIO(read_bytes(path, most=MAX_TABLE_BYTES))
    try:
        columns, rows = _parquet(file) if path.suffix == ".parquet" else _csv(file)
    except (OSError, ValueError) as error:
        raise InputError([Problem(str(path), f"not a table of measured runs: {error}")]) from None
    return _records(columns, rows, str(path))


def own_runs_of(stack: Stack) -> tuple[MeasuredRun, ...]:
    """The runs that a learned stack rests on; none of another stack. Raises InputError as `read_records`."""
    file = Path(stack.runs_file)
    if not stack.runs_file:
        return ()
    return _read_once(file, file.stat().st_mtime_ns) if file.is_file() else read_records(file).runs


def measured_switches_of(stack: Stack) -> MeasuredSwitches:
    """The evidence in reach: what a site ran with a learned stack counts in full there.

    Raises InputError where the shipped evidence is missing.
    """
    own: dict[str, dict[str, list[Candidates]]] = {}
    for run in own_runs_of(stack):
        if run.has_rate and not run.ran_out:
            for device in {run.cluster.accelerator.name, run.cluster.fabric}:
                own.setdefault(device, {}).setdefault(run.model.family, []).append(run.candidates)
    sets = {device: {name: joined(rows) for name, rows in found.items()} for device, found in own.items()}
    return load_switches().beside(sets) if sets else load_switches()


def with_measured_switches(space: Space) -> Space:
    """The space whose stacks carry what expected rates rest on: wherever it is sent, no file is opened to price it."""
    return space.with_stacks(_with_its_switches)


def _with_its_switches(stack: Stack) -> Stack:
    if stack.measured_switches is not None:
        return stack
    return replace(stack, measured_switches=measured_switches_of(stack))


@lru_cache(maxsize=4)
def _read_once(file: Path, _changed_ns: int) -> tuple[MeasuredRun, ...]:
    return read_records(file).runs


def _parquet(file: io.BytesIO) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows, without pandas: a search with a learned stack reads its runs."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    return table.column_names, table.to_pylist()


def _csv(file: io.BytesIO) -> tuple[list[str], list[dict[str, Any]]]:
    import pandas as pd

    frame = pd.read_csv(file, dtype=str, encoding="utf-8-sig", keep_default_na=False, na_values=_NO_VALUE)
    frame = frame.map(lambda cell: unguarded(cell) if isinstance(cell, str) else cell)
    return list(frame.columns), frame.to_dict("records")


def _records(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], name: str) -> RunTable:
    unknown = [column for column in columns if column not in COLUMNS]
    problems = [Problem(name, f"unknown column '{column}'{did_you_mean(column, COLUMNS)}") for column in unknown]
    needed = ("model", "hardware", *_NEEDED)
    problems += [Problem(name, f"no column {column}") for column in needed if column not in columns]
    if not {"nodes", "gpus"} & set(columns):
        problems.append(Problem(name, "no column nodes or gpus"))
    if problems:
        raise InputError(problems)
    runs = []
    for line, cells in enumerate(rows, start=2):
        row = _Row(name, line, {key: value for key, value in cells.items() if not _is_empty(value)})
        run = row.record()
        problems += row.problems
        if run is not None:
            runs.append(run)
    if problems:
        raise InputError(problems)
    return RunTable(runs=tuple(runs))


def write_records(runs: Iterable[MeasuredRun], path: Path) -> None:
    """Write a table of records that `read_records` reads back as they were; CSV, or parquet by its ending."""
    frame = frame_of(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        guard = {name: frame[name].map(guarded, na_action="ignore") for name in _PROVENANCE if name in frame}
        frame.assign(**guard).to_csv(path, index=False, lineterminator="\n")


def frame_of(runs: Iterable[MeasuredRun]) -> Any:
    """The records as a DataFrame: one row per run, columns that no run fills left out."""
    import pandas as pd

    frame = pd.DataFrame([_cells(run) for run in runs], columns=list(COLUMNS))
    return frame.dropna(axis="columns", how="all")


# --- writing --------------------------------------------------------------------------------------------------------


def _cells(run: MeasuredRun) -> dict[str, Any]:
    """One row; None where there is nothing to write."""
    cluster = run.cluster
    figures = {name: run.measured.__getattribute__(name) for name in MEASURED}
    return {
        **{name: _encodable(run.provenance.__getattribute__(name)) or None for name in _PROVENANCE},
        "model": _model_word(run.model),
        "hardware": run.hardware,
        "nodes": cluster.num_nodes,
        "gpus_per_node": cluster.network.gpus_per_node,
        "nics_per_node": cluster.network.nics_per_node,
        "nic_GBps": cluster.network.nic_bytes_per_s / GB,
        "stack": cluster.stack.reference,
        "stack_is_assumed": cluster.stack.is_assumed,
        "stack_has_words": cluster.stack.has_words,
        "framework": run.framework,
        "overrides": json.dumps({one.key: one.value for one in run.overrides}) if run.overrides else None,
        "assumed": json.dumps(run.assumed) if run.assumed else None,
        **{name: run.workload.__getattribute__(name) for name in _WORKLOAD},
        **run.candidates.row(0),
        **{name: None if math.isnan(value) else value for name, value in figures.items()},
        "peak_kind": run.measured.peak_kind,
        "ending": run.measured.ending or None,
    }


def _encodable(text: str) -> str:
    """Text that UTF-8 has: file names may hold other bytes."""
    return text.encode(errors="replace").decode()


def _model_word(model: Model) -> str:
    """A preset's name where the model is that preset, else its fields."""
    is_preset = model.name in names(FileKind.MODEL) and load_model(model.name) == model
    return model.name if is_preset else json.dumps(to_plain(model))


# --- reading --------------------------------------------------------------------------------------------------------


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


@dataclass(slots=True)
class _Row:
    """One row being read, collecting what is wrong on the way."""

    table: str
    line: int
    cells: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def record(self) -> MeasuredRun | None:
        """The record, or None after noting problems."""
        return self._tried("row", self._record)

    def _record(self) -> MeasuredRun | None:
        model = self._tried("model", self._model)
        workload = self._tried("seq_length", lambda: Workload(**self._values(_WORKLOAD, needed=_NEEDED)))
        usual = self._tried("hardware", self._cluster)
        cluster = None if usual is None else self._tried("overrides", lambda: overridden(usual, self._overrides()))
        candidates = self._tried("tp", lambda: Candidates.from_words(self._values(_KINDS)))
        measured = self._measured()
        if self.problems or not (model and workload and usual and cluster and candidates):
            return None
        words: dict[str, Any] = {"id": f"line {self.line}"} | self._values(dict.fromkeys(_PROVENANCE, str))
        return MeasuredRun(
            model=model,
            cluster=cluster,
            workload=workload,
            candidates=candidates,
            measured=measured,
            provenance=Provenance(**words, table=self.table, line=self.line),
            hardware=str(self.cells["hardware"]),
            framework=self.cells.get("framework"),
            overrides=overrides_of(usual, cluster),
            assumed=tuple(self._json("assumed") or ()),
        )

    def problem(self, column: str, what: str) -> None:
        self.problems.append(Problem(f"{self.table}:{self.line} @ {column}", what))

    def _tried(self, column: str, make: Callable[[], Made]) -> Made | None:
        """What `make` returns, or None after noting why it cannot."""
        try:
            return make()
        except InputError as error:
            for one in error.problems:
                self.problem(column, one.what)
        except UNREADABLE as error:
            self.problem(column, f"{error.args[0]!r} is not a value" if isinstance(error, KeyError) else str(error))
        return None

    def _model(self) -> Model:
        text = str(self.cells.get("model", ""))
        if text.startswith("{"):
            return from_plain(Model, json.loads(text))
        return load_model(text, beside=Path(self.table).parent)

    def _cluster(self) -> Cluster:
        """The machine of the row, with the NICs that it names."""
        hardware = load_hardware(str(self.cells.get("hardware", "")))
        per_node, gpus = int(self._number("gpus_per_node", 0)) or None, int(self._number("gpus", 0))
        each = per_node or hardware.network.gpus_per_node
        if gpus and gpus < each and "nodes" not in self.cells:
            per_node = each = gpus
        if gpus % each:
            raise ValueError(f"{gpus} GPUs are no whole number of nodes of {each}")
        nodes = int(self._number("nodes", gpus // each))
        cluster = load_cluster(hardware, nodes, self.cells.get("stack"), gpus_per_node=per_node)
        nics = int(self._number("nics_per_node", cluster.network.nics_per_node))
        rate = self._number("nic_GBps", cluster.network.nic_bytes_per_s / GB) * GB
        network = replace(cluster.network, nics_per_node=nics, nic_bytes_per_s=rate)
        given = self._values({"stack_is_assumed": bool, "stack_has_words": bool})
        known = {name.removeprefix("stack_"): value for name, value in given.items()}
        site = site_of(hardware, str(self.cells.get("publisher", "")))
        return replace(cluster, network=network, stack=replace(cluster.stack, **known), site=site)

    def _measured(self) -> Measurement:
        kind, ending = str(self.cells.get("peak_kind", "driver")), str(self.cells.get("ending", ""))
        if kind not in ("allocated", "reserved", "driver"):
            self.problem("peak_kind", f"'{kind}'; one of allocated, reserved, driver")
        if ending not in ("", "ran", "out_of_memory"):
            self.problem("ending", f"'{ending}'; ran, out_of_memory or empty")
        found = dict.fromkeys(MEASURED, math.nan)
        for column in _FIGURES:
            if column in self.cells and column not in ("peak_kind", "ending"):
                name, factor = to_base(column, 1.0) if column not in found else (column, 1.0)
                found[name] = self._number(column) * factor
        if all(math.isnan(value) for name, value in found.items() if name != "noise") and not ending:
            self.problem("tokens_per_s_per_gpu", "no measured figure: a rate, the time of a step, a peak or an ending")
        return Measurement(peak_kind=kind, ending=ending, **found)  # type: ignore[arg-type]

    def _values(self, kinds: Mapping[str, type], needed: Collection[str] = ()) -> dict[str, Any]:
        """Cells by their kind, of those that are filled or needed. Raises ValueError for the first that is none."""
        there = {name: kind for name, kind in kinds.items() if name in self.cells or name in needed}
        return {
            name: str(self.cells[name]) if kind is str
            else self._switch(name) if kind is bool
            else kind(self._number(name))
            for name, kind in there.items()
        }  # fmt: skip

    def _number(self, column: str, default: float = math.nan) -> float:
        """A number of at least 0, or the default. Raises ValueError where there is neither."""
        if column not in self.cells:
            if math.isnan(default):
                raise ValueError(f"{column} is missing")
            return default
        value = finite_number(self.cells[column])
        if value is None or value < 0.0:
            raise ValueError(f"{column} {self.cells[column]!r} is not a number of at least 0")
        return value

    def _switch(self, column: str) -> bool:
        word = str(self.cells[column]).lower()
        if word not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(f"{column} {word!r} is not true or false")
        return word in ("true", "yes", "1")

    def _overrides(self) -> dict[str, Any]:
        found = self._json("overrides") or {}
        if not isinstance(found, dict):
            raise ValueError("overrides are a JSON mapping of keys and values")
        return found

    def _json(self, column: str) -> Any:
        """What the JSON in a cell says; None where the cell is empty."""
        return json.loads(str(self.cells[column])) if column in self.cells else None
