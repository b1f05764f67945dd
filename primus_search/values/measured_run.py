"""A measured training run: a candidate with a measurement.

`validate` scores such records, the laboratory fits numbers to them, and learning takes them as observations. They come
from published tables (`evidence/published` converts those), from tables of records (`declare/record_table.py`), or from
logs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from primus_search.base.field_paths import differences, located, with_value
from primus_search.values.candidates import Candidates, Fp8
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack, number_of
from primus_search.values.model import Model
from primus_search.values.workload import Workload

PeakKind = Literal["allocated", "reserved", "driver"]
"""Which memory a peak counts: tensors of the allocator, what the allocator holds, or all that the driver shows."""

Ending = Literal["", "ran", "out_of_memory"]
"""How a run ended, where its record says so; a run with a rate or a peak ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverride:
    """One number or switch in which a run's machine or software differs from the files that its record names.

    key     part and field path in base units: `stack.memory.loss_chunks`, `network.nic_bytes_per_s`
    value   what the run has in place of the file's value
    reason  why, with the source; for the reader of a record
    """

    key: str
    value: Any
    reason: str = ""


MEASURED = ("tokens_per_s_per_gpu", "step_s", "peak_bytes", "noise")
"""Figures of a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured; NaN where a figure is not known.

    tokens_per_s_per_gpu  mean rate over the steps counted
    step_s                seconds per optimizer step; with the rate it may be left out, for one gives the other
    peak_bytes            largest memory of any device, counted as `peak_kind` says
    noise                 relative standard deviation of the rate from run to run
    """

    tokens_per_s_per_gpu: float = math.nan
    step_s: float = math.nan
    peak_bytes: float = math.nan
    peak_kind: PeakKind = "driver"
    ending: Ending = ""
    noise: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a record is from.

    id                the run's own name; unique in its table
    source            publication, repository or log
    publisher         who published it; runs of one publisher are left out of a fit together
    table, line       file and line that it was read from
    unread            words of a table's flags that nothing reads
    gpu, precision    device and precision as the source prints them: labels of groups in reports
    """

    id: str
    source: str = ""
    publisher: str = ""
    notes: str = ""
    date: str = ""
    table: str = ""
    line: int = 0
    gpu: str = ""
    precision: str = ""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured run, complete: what `Projector` needs to project it, and what was measured.

    candidates  a table of one row
    hardware    name of the hardware file; `cluster` is built from it, the stack file `cluster.stack.name`, the GPUs
                used per node, and `overrides`, which are already applied
    framework   name of the launcher; None: not known
    assumed     what had to be assumed, one sentence each
    """

    model: Model
    cluster: Cluster
    workload: Workload
    candidates: Candidates
    measured: Measurement
    provenance: Provenance
    hardware: str = ""
    framework: str | None = None
    overrides: tuple[RunOverride, ...] = ()
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.candidates) != 1:
            raise ValueError(f"a measured run has one candidate, not {len(self.candidates)}")

    @property
    def job(self) -> Job:
        """What a `Projector` projects candidates of."""
        return Job(self.model, self.cluster, self.workload, self.framework or "")

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """The measured rate, from the time of a step where no rate is given; NaN where neither is."""
        if not math.isnan(self.measured.tokens_per_s_per_gpu):
            return self.measured.tokens_per_s_per_gpu
        return self.workload.tokens_per_step / self.measured.step_s / self.cluster.world

    @property
    def has_rate(self) -> bool:
        """Whether a rate or the time of a step was measured."""
        return not math.isnan(self.tokens_per_s_per_gpu)

    @property
    def ran_out(self) -> bool:
        """Whether the run ran out of memory."""
        return self.measured.ending == "out_of_memory"

    @property
    def id(self) -> str:
        return self.provenance.id

    @property
    def place(self) -> tuple[str, int]:
        """Table and line, which no two records share."""
        return self.provenance.table, self.provenance.line

    @property
    def gpu(self) -> str:
        """The device as the source prints it, else its name."""
        return self.provenance.gpu or self.cluster.accelerator.name

    @property
    def precision(self) -> str:
        """The precision as the source prints it, else the recipe's name."""
        code = int(self.candidates.fp8[0])
        return self.provenance.precision or ("bf16" if code == Fp8.NONE else Fp8(code).name.lower())

    @property
    def machine_key(self) -> tuple[object, ...]:
        """Equal for runs on equal clusters."""
        hardware = tuple((o.key, o.value) for o in self.overrides if o.key.startswith("hardware."))
        c = self.cluster
        return (c.accelerator.name, hardware, c.network, c.stack, c.num_nodes)

    @property
    def candidate_key(self) -> tuple[object, ...]:
        """Equal for equal candidates."""
        return tuple(self.candidates.row(0).values())

    @property
    def family(self) -> str:
        """Dense or MoE."""
        return self.model.family

    @property
    def group(self) -> tuple[str, str]:
        """Source and model: what is left out of a fit together."""
        return self.provenance.source, self.model.name

    @property
    def duplicate_key(self) -> tuple[object, ...]:
        """Records with the same key are near-duplicates (releases, weak-scaling ladders) and count once together."""
        c = self.candidates
        shape = tuple(int(column[0]) for column in (c.tp, c.pp, c.cp, c.ep, c.micro_batch_size))
        return (self.model.name, self.gpu, *shape, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRun:
    """A row that gives no record, or one that cannot be projected, with the reason."""

    id: str
    place: tuple[str, int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The records of a table, and the rows that gave none."""

    runs: tuple[MeasuredRun, ...]
    skipped: tuple[SkippedRun, ...] = ()


# --- overrides -------------------------------------------------------------------------------------------------------


def overridden(cluster: Cluster, values: Mapping[str, Any]) -> Cluster:
    """The cluster with numbers and switches replaced: `stack.FIELD`, `hardware.FIELD` (accelerator or network).

    A field is named by its dotted path or its last word. Raises ValueError for a key that names none.
    """
    for key, value in values.items():
        prefix, _, name = key.partition(".")
        for part in _PARTS.get(prefix, ()):
            record = cluster.__getattribute__(part)
            path = located(record, name)
            if path is not None:
                value = tuple(value) if isinstance(value, list) else value
                cluster = with_value(cluster, (part, *path), value)
                break
        else:
            raise ValueError(f"{key} names no number of a stack (stack.X) or of accelerator and network (hardware.X)")
    return cluster


def on_stack(run: MeasuredRun, stack: Stack) -> MeasuredRun:
    """The run as another software might have made it, its own settings on top: all that the other one was learned
    with, where the run's software is known."""
    own = run.cluster.stack
    own_fields = (
        {} if own.is_assumed or run.framework else {f"stack.{name}": number_of(own, name) for name in stack.varied}
    )
    return replace(run, cluster=overridden(replace(run.cluster, stack=stack), own_fields | own_settings(run)))


def own_settings(run: MeasuredRun) -> dict[str, Any]:
    """What a run's variant has otherwise than its stack's file, and what its record overrides in a stack: it holds for
    any stack."""
    varied = {f"stack.{name}": value for name, value in run.cluster.stack.varied.items()}
    return varied | {one.key: one.value for one in run.overrides if one.key.startswith("stack.")}


def overrides_of(usual: Cluster, cluster: Cluster) -> tuple[RunOverride, ...]:
    """Numbers and switches in which a cluster differs from the usual one of its files."""
    return tuple(
        RunOverride(key=f"{prefix}.{name}", value=value)
        for prefix, parts in _PARTS.items()
        for part in parts
        for name, value in differences(usual.__getattribute__(part), cluster.__getattribute__(part))
    )


_PARTS: Mapping[str, tuple[str, ...]] = {"stack": ("stack",), "hardware": ("accelerator", "network")}
"""Parts of a cluster that a key's first word stands for."""
