"""Re-validate the best candidates with torch, then rank them by tokens/s again.

trace     every top candidate's layers run on the meta device at true size: activation bytes from torch;
          where a device's allocator was asked as well, what it held beyond them (`memory`)
measured  on a device of the target's architecture its layers are timed, and the same cost model projects again with
          the measured times; everything that shares the layer shapes of a measured candidate is measured with it
A device of another architecture never moves a ranking: its time stays projected, and the result says so.

Which candidates are measured: at once the distinct layer shapes of the first top_k rows and of those within a tenth of
the best projected time; then one by one, until the next could not win even if it did a tenth better against its
projection than the luckiest so far; at most top_k shapes, and only while seconds last.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from primus_search.base.guards.files import cache_folder
from primus_search.cost.confidence.fit import FITS, fit_probability, fit_verdict
from primus_search.cost.project import Projector
from primus_search.cost.projection import Memory, Projection, Step
from primus_search.cost.stage import Key, keys_of
from primus_search.measure import memory_residual as residuals
from primus_search.measure.device.device_info import (
    CPU,
    CUDA,
    best_kind,
    describe,
    has_gpu,
    is_architecture_of,
    is_named_like,
)
from primus_search.measure.modules.supported_models import without_module
from primus_search.values.candidates import Bools, Candidates, Ints
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster

if TYPE_CHECKING:
    from primus_search.measure.candidate_bench import Bencher, Failure
    from primus_search.measure.device.timing import PieceMeasurement

PROJECTED, TRACED, MEASURED = "projected", "traced", "measured"
MODES = ("auto", "off", "trace", CPU, CUDA)
LAW_SPREAD = 0.10  # how much better a layer shape may do than the luckiest measured one, against its projection
MOST_FURTHER = 32  # rows traced beyond the first top_k while none of those traced fits
PATIENCE = 2.0  # starts of processes are not counted; past so many times the seconds no further shape is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How to re-validate: device mode, candidates, seconds, where measurements are kept, a benchmark file to load."""

    mode: str = "auto"
    top_k: int = 4
    seconds: float = 60.0
    memory_margin: float = 0.0
    folder: Path | None = None
    load: Path | None = None
    worker: str = ""
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revalidation:
    """What re-validation says of a ranked table. `order` lists the old rows in their new order; columns are in it.

    failures   candidates whose benchmark failed, with verdict and cause; they stay projected
    measured_fits   probability of fitting of new rows whose memory a device was asked about
    notes      what a reader must know: why time stayed projected, a busy machine, a shape without kernel
    remarks    on single new rows: the memory that a device was asked about, or why a row could not be traced
    """

    order: Ints
    projection: Projection
    time_evidence: tuple[str, ...]
    memory_evidence: tuple[str, ...]
    failures: "tuple[Failure, ...]" = ()
    notes: tuple[str, ...] = ()
    remarks: dict[int, str] = field(default_factory=dict)
    measurements: "tuple[PieceMeasurement, ...]" = ()
    num_new: int = 0
    seconds: float = 0.0
    traced: dict[int, float] = field(default_factory=dict)
    measured_fits: dict[int, float] = field(default_factory=dict)


def revalidate(job: Job, c: Candidates, projection: Projection, how: Benchmark) -> Revalidation:
    """Trace and, where the device allows, measure the best of a table ranked by projected time."""
    started = time.perf_counter()
    unchanged = Revalidation(
        order=np.arange(len(c)),
        projection=projection,
        time_evidence=(PROJECTED,) * len(c),
        memory_evidence=(PROJECTED,) * len(c),
    )
    if how.mode == "off" or not len(c):
        return unchanged
    absent = without_module(job.model)
    if absent:
        return replace(unchanged, notes=(f"no torch module of {', '.join(absent)}: time and memory stay projected",))
    kind, note = target_device(job.cluster, how.mode)
    measured = replace(unchanged, notes=(note,)) if kind is None else _measure(unchanged, job, c, how, kind)
    traced = _trace_top(measured, job, c.take(measured.order), how.top_k, how.memory_margin)
    return replace(traced, seconds=time.perf_counter() - started)


def target_device(cluster: Cluster, mode: str) -> tuple[str | None, str]:
    """The device to time on, or None and the reason why time stays projected."""
    target = cluster.accelerator
    if mode == "trace":
        return None, "time is projected, memory is traced (as asked)"
    own = CPU if target.name == "host" else best_kind()
    kind = own if mode == "auto" else mode
    if kind == CUDA and not has_gpu():
        return None, "this machine has no CUDA or ROCm device: time is projected, memory is traced"
    info = describe(kind)
    if is_architecture_of(info, target.arch, target.name):
        return kind, ""
    return None, f"{info.name} is not a {target.name} ({target.arch}): time is projected, memory is traced"


# --- trace --------------------------------------------------------------------------------------------------------


def _trace_top(before: Revalidation, job: Job, c: Candidates, top_k: int, memory_margin: float) -> Revalidation:
    """Activation memory of rows from torch instead of from the formulas, in their present order.

    Those of the first rows; where none of them FITS, of those behind that are projected to fit, until one does.
    """
    found, is_projected_sure = before, _sure(job, c, before.projection, {})
    num_traced = 0
    for row in range(len(c)):
        if row >= top_k:
            traced = np.array([one != PROJECTED for one in found.memory_evidence])
            is_decided = bool((traced & _sure(job, c, found.projection, found.measured_fits)).any())
            if num_traced >= top_k + MOST_FURTHER or is_decided:
                break
            if not is_projected_sure[row]:
                continue
        found = _traced(found, job, c, row, memory_margin)
        num_traced += 1
    return found


def _sure(job: Job, c: Candidates, projection: Projection, measured_fits: Mapping[int, float]) -> Bools:
    """Rows that FIT."""
    fits = fit_probability(job, c, projection.memory)
    fits[list(measured_fits)] = list(measured_fits.values())
    return np.asarray(fit_verdict(job, fits, projection.headroom_bytes) == FITS)


def _traced(before: Revalidation, job: Job, c: Candidates, row: int, memory_margin: float) -> Revalidation:
    """One row traced and, where a device measured its layers, with what the device held."""
    memory, remarks = before.projection.memory, dict(before.remarks)
    try:
        ratio = residuals.activation_ratio(job, c, row)
    except RuntimeError as error:
        return replace(before, remarks=remarks | {row: f"could not be traced: {error}"})
    activations = memory.activations.copy()
    activations[row] *= ratio
    memory, evidence, measured_fits = replace(memory, activations=activations), TRACED, dict(before.measured_fits)
    found = residuals.residual(job, c, row, before.measurements)
    if found is not None:
        cluster, room, evidence = job.cluster, job.room_bytes(memory_margin), MEASURED
        memory = residuals.with_residual(memory, row, found, cluster, room)
        point = float(memory.allocated[row] + memory.context[row])
        bound = residuals.upper_bytes(memory, row, found, cluster)
        measured_fits[row] = fits = residuals.fit_probability_of(point, bound, room)
        (verdict,) = fit_verdict(job, np.array([fits]), np.array([room - point]))
        remarks[row] = residuals.account(verdict, point, bound, room, found)
    old = before.memory_evidence
    return replace(
        before,
        projection=_with_memory(before.projection, memory),
        memory_evidence=(*old[:row], evidence, *old[row + 1 :]),
        remarks=remarks,
        traced=before.traced | {row: ratio},
        measured_fits=measured_fits,
    )


def _with_memory(projection: Projection, memory: Memory) -> Projection:
    """The projection with other memory; what was free of the device's memory shrinks or grows alike."""
    headroom = projection.headroom_bytes + projection.memory.total - memory.total
    return replace(projection, memory=memory, headroom_bytes=headroom, verdict=np.where(headroom >= 0, 0, 1))


# --- measure ------------------------------------------------------------------------------------------------------


def make_bencher(job: Job, how: Benchmark, kind: str) -> "Bencher":
    """The bencher for a target, its cache opened and the loaded artifact added."""
    from primus_search.measure.candidate_bench import Bencher, MeasurementCache, read  # loads torch

    cache = MeasurementCache((how.folder or cache_folder()) / "measurements.jsonl")
    if how.load is not None:
        cache.add(read(how.load))
    bencher = Bencher(
        model=job.model, workload=job.workload, device=describe(kind), dtype=residuals.dtype_of(job.cluster),
        cache=cache, limit_s=how.limit_s,
    )  # fmt: skip
    bencher.worker = how.worker or bencher.worker
    return bencher


def _measure(before: Revalidation, job: Job, c: Candidates, how: Benchmark, kind: str) -> Revalidation:
    cluster = job.cluster
    bencher = make_bencher(job, how, kind)
    if kind == CUDA and not is_named_like(bencher.device, cluster.accelerator.name):
        note = f"measured on {bencher.device.name}: the architecture of {cluster.accelerator.name}, another product"
        before = replace(before, notes=(*before.notes, note))
    # A cold cache means real measuring: look at the node first. Ranks of a CPU host are checked by their own notes.
    if kind == CUDA and not len(bencher.cache):
        from primus_search.measure.device.preflight import preflight

        before = replace(before, notes=(*before.notes, *preflight(cluster, kind)))
    chooser = Chooser(c, before.projection.step.total, how.top_k)
    deadline = time.perf_counter() + PATIENCE * how.seconds
    budget_s = how.seconds / max(how.top_k, 1)
    measured_rows: list[int] = []
    while rows := chooser.next():
        if measured_rows and time.perf_counter() > deadline:
            break
        good = bencher.measure(c, rows, budget_s)
        chooser.failed(set(rows) - set(good))
        if good:
            measured_rows += good
            chooser.measured(good, _reproject(job, c, bencher, measured_rows, how).step.total)
    if not measured_rows:
        why = "no candidate could be measured: time stays projected"
        return replace(before, failures=tuple(bencher.failures), notes=(*before.notes, why))
    again = _reproject(job, c, bencher, measured_rows, how)
    return _ranked(before, again, chooser.covered(), bencher)


def _reproject(job: Job, c: Candidates, bencher: "Bencher", rows: Sequence[int], how: Benchmark) -> Projection:
    measured = bencher.layers(c, rows)
    return Projector(job, memory_margin=how.memory_margin, measured=measured).project(c)


def _ranked(before: Revalidation, again: Projection, covered: Ints, bencher: "Bencher") -> Revalidation:
    """Measured rows first, by measured step time; the others after them in their projected order."""
    is_measured = np.isin(np.arange(len(before.order)), covered)
    steps = again.step, before.projection.step
    mixed = {n: np.where(is_measured, *(s.__getattribute__(n) for s in steps)) for n in Step.__dataclass_fields__}
    projection = replace(before.projection, step=Step(**mixed))
    # Rows that were not measured keep their projected order: measured and projected times do not compare.
    fastest = covered[np.argsort(projection.step.total[covered], kind="stable")]
    order = np.concatenate([fastest, np.flatnonzero(~is_measured)])
    notes = dict.fromkeys(note for m in bencher.used.values() for note in m.notes)
    return replace(
        before,
        order=order,
        projection=projection.take(order),
        time_evidence=tuple(MEASURED if is_measured[i] else PROJECTED for i in order),
        memory_evidence=tuple(before.memory_evidence[i] for i in order),
        failures=tuple(bencher.failures),
        notes=(*before.notes, *notes),
        measurements=tuple(bencher.used.values()),
        num_new=bencher.num_new,
    )


class Chooser:
    """Which candidate to measure next: the fastest projected one of unknown layer shapes, while it may still win."""

    def __init__(self, c: Candidates, projected_s: np.ndarray, top_k: int) -> None:
        self._projected_s = projected_s
        self._keys = keys_of(c)
        self._done: set[Key] = set()
        self._failed: set[Key] = set()
        self._best_s, self._luckiest, self._most = np.inf, 1.0, top_k
        # The rows the user will look at first have to be known, whatever else is decided.
        self._wanted = set(self._keys[:top_k])

    def next(self) -> list[int]:
        """Rows to measure together: at first those of the first rows' shapes and those that may win by projection, as
        one start of processes serves them all; then one that may win by what was measured; none when it is decided."""
        if not self._known:
            limit_s = self._projected_s.min() / (1.0 - LAW_SPREAD)
            first: dict[Key, int] = {}
            for candidate, key in enumerate(self._keys):
                if len(first) < self._most and (key in self._wanted or self._projected_s[candidate] < limit_s):
                    first.setdefault(key, candidate)
            return list(first.values())
        if len(self._known) >= self._most:
            return []
        row = next((row for row, key in enumerate(self._keys) if key not in self._known), None)
        if row is None or self._projected_s[row] * self._luckiest * (1.0 - LAW_SPREAD) >= self._best_s:
            return []
        return [row]

    def measured(self, rows: Iterable[int], step_s: np.ndarray) -> None:
        """Step seconds of all rows after these rows' layers became known."""
        self._done |= {self._keys[row] for row in rows}
        known = self.covered()
        self._best_s = float(step_s[known].min())
        self._luckiest = float((step_s[known] / self._projected_s[known]).min())

    def failed(self, rows: Iterable[int]) -> None:
        self._failed |= {self._keys[row] for row in rows}

    @property
    def _known(self) -> set[Key]:
        return self._done | self._failed

    def covered(self) -> Ints:
        """Rows whose layer shapes have been measured."""
        return np.flatnonzero([key in self._done for key in self._keys])
