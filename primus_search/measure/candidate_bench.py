"""From candidates to measured layers: what to time, what is known already, and how a failure is kept to its row.

A candidate that needs many devices is reduced to what one node has, in the order pipeline, experts, tensor:
- pipeline: its layers are timed alone; the simulator puts the stages together again;
- experts: a rank keeps its number of experts and of rows per expert, so its work is that of the whole group;
- tensor: shards are timed at their true shapes on single devices.
Nothing is scaled, so nothing has to be restored but the collectives, which the cost model adds from the hardware file;
the benchmark itself has none, so none is counted twice.

Measurements are kept between candidates, runs and machines: one JSON object per line, keyed by kernel, shape, dtype,
device and versions. `--save-benchmark` writes the same format and `--load-benchmark` reads it.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import write_whole, writing
from primus_search.cost.stage import Key, MeasuredLayers, PieceSeconds, key_of
from primus_search.measure.device.device_info import CPU, DeviceInfo
from primus_search.measure.device.timing import PieceMeasurement, Watch
from primus_search.measure.host_calibration import devices_of_host, mean_of
from primus_search.measure.isolate import ProcessOutcome, ProcessVerdict
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.shard import DtypeName, Shard
from primus_search.measure.rank_group import RankJob, failure_of, run_jobs
from primus_search.values.candidates import Candidates
from primus_search.values.model import Model
from primus_search.values.workload import Workload

MeasurementKey = tuple[str, str, str, str, str]
_FIELDS = frozenset(PieceMeasurement.__dataclass_fields__)


def measurement_key(m: PieceMeasurement) -> MeasurementKey:
    return (m.kernel, m.shape, m.dtype, m.device, m.versions)


class MeasurementCache:
    """A file of measurements held in memory; later lines win. A missing file is an empty cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = read(path, is_own=True) if path.exists() else []
        self._found: dict[MeasurementKey, PieceMeasurement] = {measurement_key(m): m for m in found}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: MeasurementKey) -> PieceMeasurement | None:
        return self._found.get(key)

    def add(self, measurements: Iterable[PieceMeasurement]) -> None:
        """Remember and append to the file; one write per call, so that writers of several runs do not interleave."""
        new = list(measurements)
        if not new:
            return
        self._found |= {measurement_key(m): m for m in new}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(m) for m in new))

    def all(self) -> list[PieceMeasurement]:
        return [self._found[key] for key in sorted(self._found)]


def _line(m: PieceMeasurement) -> str:
    return json.dumps(asdict(m), sort_keys=True) + "\n"


def save(path: Path, measurements: Iterable[PieceMeasurement]) -> None:
    """Write an artifact, whole or not at all. Raises InputError where it cannot be written."""
    with writing(f"--save-benchmark {path}"):
        write_whole(path, "".join(_line(m) for m in measurements))


def read(path: Path, *, is_own: bool = False) -> list[PieceMeasurement]:
    """The measurements of a file. A line cut short by a kill is dropped from our own cache and an error elsewhere."""
    if not path.exists():
        raise InputError([Problem(str(path), "no such benchmark file; write one with --save-benchmark")])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error
    found, problems = [], []
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            found.append(PieceMeasurement(**{**data, "notes": tuple(data["notes"])}))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(Problem(f"{path}:{number}", f"is not a measurement ({error}); expected {sorted(_FIELDS)}"))
    if problems and not is_own:
        raise InputError(problems)
    return found


WARM = "primus_search.measure.layer_bench:warm"
START_S = 30.0  # what a fork may take before its first measurement: device context, kernels, its peers
OVERRUN = 6.0  # a benchmark that takes so many times its budget hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A candidate whose benchmark did not end well: its key, the verdict, the cause in words."""

    key: Key
    verdict: ProcessVerdict
    cause: str


@dataclass(slots=True, kw_only=True)
class Bencher:
    """Measures the pieces of candidates of one model on one device, asking the cache first.

    limit_s  hard limit of one candidate's benchmark; 0 derives it from the budget
    """

    model: Model
    workload: Workload
    device: DeviceInfo
    dtype: DtypeName
    cache: MeasurementCache
    worker: str = "primus_search.measure.layer_bench:bench_pieces"
    limit_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    used: dict[tuple[str, str], PieceMeasurement] = field(default_factory=dict)
    num_new: int = 0

    def pieces_of(self, c: Candidates, row: int) -> list[TimedPiece]:
        """Every piece of one candidate, in the order of `cost.stage.pieces`, and the optimizer."""
        shard = Shard.of(c, row, self.workload, self.dtype)
        layers = [TimedPiece(piece="layer", model=self.model, shard=shard, kind=kind) for kind in self.model.kinds]
        names = ("embedding", "head", "optimizer")
        return layers + [TimedPiece(piece=name, model=self.model, shard=shard) for name in names]

    def measure(self, c: Candidates, rows: Sequence[int], budget_s: float) -> list[int]:
        """Measure what the cache does not know of these candidates; those of which all is known afterwards.

        Each candidate is a process of its own, with `budget_s` to measure in; what an earlier one measures is not
        measured again. A candidate that went wrong is a failure noted.
        """
        good, pending = [], list(rows)
        while pending:
            jobs = self._jobs(c, pending)
            failed = set()
            for row, outcome in zip(jobs, self._run(list(jobs.values()), budget_s), strict=True):
                if outcome.verdict is ProcessVerdict.DONE:
                    self.cache.add(outcome.value)
                    self.num_new += len(outcome.value)
                else:
                    failed.add(row)
                    self.failures.append(Failure(key=key_of(c, row), verdict=outcome.verdict, cause=outcome.cause))
            good += [row for row in pending if not self._missing(c, row)]
            # What waited for a piece of a candidate that went wrong measures it itself.
            pending = [row for row in pending if row not in failed and row not in good]
            assert failed or not pending, "a worker answered for other pieces than it was asked for"
        return good

    def _missing(self, c: Candidates, row: int) -> list[TimedPiece]:
        return [piece for piece in self.pieces_of(c, row) if self._known(piece) is None]

    def _jobs(self, c: Candidates, rows: Sequence[int]) -> dict[int, list[TimedPiece]]:
        """Unknown pieces by the first row that has them."""
        jobs: dict[int, list[TimedPiece]] = {}
        seen: set[tuple[str, str]] = set()
        for row in rows:
            new = [piece for piece in self._missing(c, row) if (piece.piece, piece.shape) not in seen]
            seen |= {(piece.piece, piece.shape) for piece in new}
            if new:
                jobs[row] = new
        return jobs

    def layers(self, c: Candidates, rows: Sequence[int]) -> MeasuredLayers:
        """The measured layers of those rows, all of whose pieces the cache knows."""
        found: dict[Key, tuple[PieceSeconds | None, ...]] = {}
        optimizer_s = 0.0
        for row in rows:
            pieces = self.pieces_of(c, row)
            known = [one for piece in pieces if (one := self._known(piece)) is not None]
            if len(known) == len(pieces):
                seconds = (
                    _seconds(m, has_recompute=bool(p.shard.recompute)) for m, p in zip(known, pieces, strict=True)
                )
                *layers, _ = seconds
                found[key_of(c, row)] = tuple(layers)
                optimizer_s = known[-1].seconds["step_per_param"]
        return MeasuredLayers(pieces=found, optimizer_s_per_param=optimizer_s)

    def _known(self, piece: TimedPiece) -> PieceMeasurement | None:
        key = (piece.piece, piece.shape, piece.shard.dtype, self.device.name, self.device.versions)
        found = self.cache.get(key)
        if found is not None:
            self.used[piece.piece, piece.shape] = found
        return found

    def _run(self, jobs: list[list[TimedPiece]], budget_s: float) -> list[ProcessOutcome]:
        """Every job's measurements, each in a process of its own; on a CPU all devices of the host measure at once."""
        if not jobs:
            return []
        ranks, threads = devices_of_host() if self.device.kind == CPU else (1, 1)
        limit_s = self.limit_s or START_S + OVERRUN * budget_s
        common = {"device": self.device.kind, "budget_s": budget_s}
        payloads = [common | {"pieces": [piece.to_json() for piece in pieces]} for pieces in jobs]
        forks = [RankJob(function=self.worker, payload=payload, limit_s=limit_s) for payload in payloads]
        watch = Watch() if self.device.kind != CPU else None
        with watch or nullcontext():
            outcomes = [_joined(same) for same in run_jobs(forks, ranks=ranks, threads=threads, warm=WARM)]
        return [_with_clocks(outcome, watch) if watch else outcome for outcome in outcomes]


def _with_clocks(outcome: ProcessOutcome, watch: Watch) -> ProcessOutcome:
    """An outcome's measurements with what the device ran at meanwhile."""
    if outcome.verdict is not ProcessVerdict.DONE:
        return outcome
    value = [replace(m, clocks=watch.text, notes=(*m.notes, *watch.warnings)) for m in outcome.value]
    return replace(outcome, value=value)


def _joined(same: Sequence[ProcessOutcome]) -> ProcessOutcome:
    """What the ranks say of one job, as one."""
    failure = failure_of(same)
    if failure is not None:
        return failure
    return ProcessOutcome(verdict=ProcessVerdict.DONE, value=joined_measurements([outcome.value for outcome in same]))


def joined_measurements(by_rank: list[list[dict[str, Any]]]) -> list[PieceMeasurement]:
    """What the ranks measured of each piece (`worker.bench_pieces`), as one: mean seconds, every note once."""
    joined = []
    for same in zip(*by_rank, strict=True):
        notes = dict.fromkeys(note for one in same for note in one["notes"])
        names = ("seconds", "spreads_s", "memory_bytes", "peaks_bytes")
        numbers = {name: mean_of([one[name] for one in same]) for name in names}
        joined.append(PieceMeasurement(**(same[0] | numbers | {"notes": tuple(notes)})))
    return joined


def _seconds(measurement: PieceMeasurement, *, has_recompute: bool) -> PieceSeconds | None:
    s = measurement.seconds
    if "forward" not in s:
        return None
    passes = {name: s[name] for name in ("forward", "input_grad", "weight_grad")}
    return PieceSeconds(**passes, recompute=s.get("recompute", 0.0) if has_recompute else None)
