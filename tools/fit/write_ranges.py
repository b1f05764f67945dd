"""The ranges that measurements cover, per device and per stack: what `explain` and `project` hold a candidate against.

Kernel points and collectives come from a measurement CSV, peaks and runs from a CSV of training runs. Only points that
the fits use count (`points`, `collectives`), so a range says where a law was compared with something.

The share of a family of switches is the slope through the origin of measured on projected log ratios, over pairs of
runs of one sweep (source, model, device, number of devices, workload, precision and stack) that differ in switches
alone, each projected with its source and model left out of the fit. A share above 1 is written as 1: no gain is raised.

Measured collectives and dispatches, read from tables of points.

    points = read_links(Path("measurements.csv"), gpu="H100")

Points come from a CSV with the columns kind, gpu, dtype, op, m, k, message_bytes, num_gpus, nodes, value, unit, source
and notes (one row per measurement; bus bandwidth in GB/s as nccl-tests defines it, or microseconds of a dispatch).
"""

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.units import BF16_BYTES, FP8_BYTES, GB
from primus_search.cost.confidence.regimes import regimes_of
from primus_search.cost.confidence.switch_evidence import SWITCHES, family, shape_of
from primus_search.cost.traffic.expert_parallel import distinct_destinations
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun
from primus_search.files.evidence_files import COLUMNS, RUNS
from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind as Place
from primus_search.files.search_path import names
from primus_search.measure.calibrate.points import KernelKind, Point, read_points, rows_of
from primus_search.values.candidates import Fp8
from primus_search.values.machine.kernel_tables import GROUPED
from primus_search.values.machine.ranges import Range, Ranges
from primus_search.values.measured_run import MeasuredRun
from tools.fit.training_parameters import is_informative
from tools.fit.training_run import left_out_rates

# The DeepEP and MORI benchmarks: experts and experts per token of the model they stand for (DeepSeek-V3).
BENCHMARK_EXPERTS, BENCHMARK_TOP_K = 256, 8

# One host thread launches the kernels of all its devices one after the other, and none finishes before the last has
# started: 50 us for 1 to 32 KiB over eight MI350X (sample log with -g 8 in ROCm/system-acceptance-docs@23e7312) where
# one process per device takes 13 us. Training has one process per device.
ONE_PROCESS_LAUNCH_S = 6.25e-6

RINGS = ("allreduce", "allgather", "reducescatter", "alltoall")
"""Collectives whose points count."""


Points = np.recarray[Any, Any]
POINT = np.dtype(
    [("op", object), ("members", np.int64), ("nodes", np.int64), ("message_bytes", np.float64), ("seconds", np.float64),
     ("launch_s", np.float64), ("source", object)]
)  # fmt: skip
"""A measured exchange. message_bytes: as `cost.laws.collectives` counts it; of a dispatch, tokens once. launch_s: the
least time the benchmark itself allows, however small the message."""

LINK_COLUMNS = ("kind", "gpu", "op", "m", "message_bytes", "num_gpus", "nodes", "value", "unit", "source", "notes")
"""What a CSV of measured collectives has."""


def read_links(path: Path, gpu: str) -> Points:
    """Every collective and dispatch of one accelerator that says its message, its ranks and its time."""
    rows = []
    for row in rows_of(path, LINK_COLUMNS):
        if row["gpu"] == gpu and row["num_gpus"]:
            point = _collective(row) if row["kind"] == "collective" else _dispatch(row)
            if point:
                is_one_process = "single process" in row["notes"]
                launch_s = ONE_PROCESS_LAUNCH_S * point[1] / point[2] if is_one_process else 0.0
                rows.append((*point, launch_s, row["source"]))
    return np.array(rows, dtype=POINT).view(np.recarray)


def _collective(row: dict[str, str]) -> tuple[str, int, int, float, float] | None:
    if row["op"] not in RINGS or row["unit"] != "GB/s busbw" or not row["message_bytes"] or not row["nodes"]:
        return None
    members, size, bus = int(row["num_gpus"]), float(row["message_bytes"]), float(row["value"]) * GB
    turns = (2.0 if row["op"] == "allreduce" else 1.0) * (members - 1) / members
    return row["op"], members, int(row["nodes"]), size, size * turns / bus


def _dispatch(row: dict[str, str]) -> tuple[str, int, int, float, float] | None:
    """A normal-mode dispatch (FP8 unless it says BF16) or combine (BF16), at the compute units training gives it.

    GB/s are logical: every byte a rank receives, its own node's included, per second.
    """
    op = row["op"].removesuffix("_normal")
    is_slow = "SMs" in row["notes"] and "24 SMs" not in row["notes"]
    if row["kind"] != "dispatch_combine" or op not in ("dispatch", "combine") or is_slow or not row["m"]:
        return None
    if "normalised" in row["notes"] or not row["op"].endswith("_normal"):
        return None
    members, nodes = int(row["num_gpus"]), int(row["nodes"])
    element = BF16_BYTES if op == "combine" or row["dtype"] == "bf16" else FP8_BYTES
    token_bytes = float(row["m"]) * float(row["k"]) * element
    if row["unit"] == "us":
        return op, members, nodes, token_bytes, float(row["value"]) * 1e-6
    parts = nodes if nodes > 1 else members
    logical = token_bytes * float(distinct_destinations(BENCHMARK_EXPERTS, BENCHMARK_TOP_K, np.array(parts)))
    return op, members, nodes, token_bytes, logical / (float(row["value"]) * GB)


MOST_SOURCES = 2
Sized = tuple[tuple[float, ...], str]
"""Sizes of one measured point, and where it is from."""


def device_ranges(measurements: Path, training: Path) -> Ranges:
    """Ranges of every device that has a hardware file, by the device's name."""
    points = read_points(measurements)
    trained = _peaks_and_regimes(training)
    found: dict[str, dict[str, Range]] = {}
    for file in names(Place.HARDWARE):
        name = load_hardware(file).name
        known = {point.gpu for point in points}
        gpu = name if name in known else name.partition("-")[0]
        sized = _kernels([point for point in points if point.gpu == gpu])
        _add_links(sized, measurements, gpu)
        for kind, sizes in trained.get(name, {}).items():
            sized[kind] += sizes
        if sized:
            found[name] = _boxes(sized)
    return found


def stack_ranges(training: Path) -> Ranges:
    """Ranges of every stack: the training runs its numbers were fitted to."""
    sized: dict[str, dict[str, list[Sized]]] = defaultdict(lambda: defaultdict(list))
    for case in (row.run for row in validated(training).rows if is_informative(row.run)):
        precision = "bf16" if case.candidates.fp8[0] == Fp8.NONE else "low"
        key = f"{case.cluster.accelerator.name}/{case.family}/{precision}"
        sizes = (float(case.cluster.world), float(case.workload.seq_length))
        sized[case.cluster.stack.name][key].append((sizes, case.provenance.source))
    return {name: _boxes(kinds) for name, kinds in sorted(sized.items())}


def write_ranges(ranges: Ranges, path: Path, head: str) -> None:
    """One YAML file, one line per range."""
    lines = [f"# {head} Written by `python -m tools.fit ranges`; docs/cost/uncertainty.md says how they are used."]
    for owner, kinds in ranges.items():
        lines.append(f"{owner}:")
        for kind, box in kinds.items():
            low, high = (", ".join(map(_written, sizes)) for sizes in (box.low, box.high))
            lines.append(f'  {kind}: {{points: {box.points}, low: [{low}], high: [{high}], source: "{box.source}"}}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _written(size: float) -> str:
    return f"{size:.0f}" if size == int(size) else f"{size:.4g}"


def _kernels(points: Iterable[Point]) -> dict[str, list[Sized]]:
    sized: dict[str, list[Sized]] = defaultdict(list)
    for p in points:
        recipe = "bf16" if p.code == Fp8.NONE else p.code.name.lower()
        if p.kind is KernelKind.ATTENTION:
            sized[f"attention/{p.family}"].append(((p.seq, p.qk_dim), p.source))
        else:
            rows = p.m * p.top_k / p.groups if p.kind is KernelKind.MOE_LAYER else p.m
            kind = "gemm" if p.kind is KernelKind.GEMM else GROUPED
            sized[f"{kind}/{recipe}"].append(((rows, p.n, p.k), p.source))
    return sized


def _add_links(sized: dict[str, list[Sized]], measurements: Path, gpu: str) -> None:
    for one in read_links(measurements, gpu):
        kind = "dispatch" if one.op in ("dispatch", "combine") else "collectives"
        where, size = ("across", one.nodes) if one.nodes > 1 else ("inside", one.members)
        sized[f"{kind}/{where}"].append(((float(size),), one.source))


def _peaks_and_regimes(training: Path) -> dict[str, dict[str, list[Sized]]]:
    sized: dict[str, dict[str, list[Sized]]] = defaultdict(lambda: defaultdict(list))
    outcome = validated(training)
    for row in (*outcome.rows, *outcome.memory_only):
        own, run = sized[row.run.cluster.accelerator.name], row.run
        if row.memory is not None:
            own[f"memory/{run.family}"].append(((row.memory[1] / GB,), run.provenance.source))
        own[regimes_of(run.job, run.candidates)[0]].append(((), run.provenance.source))
    return sized


def _boxes(sized: dict[str, list[Sized]]) -> dict[str, Range]:
    return {
        kind: _box(points, is_count=not kind.startswith(("gemm", GROUPED, "attention", "memory")))
        for kind, points in sorted(sized.items())
        if points
    }


def _box(points: Sequence[Sized], *, is_count: bool) -> Range:
    """`is_count`: the first size is a number of ranks, nodes or GPUs; fewer than measured lie between it and one."""
    columns = list(zip(*(sizes for sizes, _ in points), strict=True))
    sources = list(dict.fromkeys(_publication(source) for _, source in points))
    named = ", ".join(sources[:MOST_SOURCES])
    if len(sources) > MOST_SOURCES:
        named += f" and {len(sources) - MOST_SOURCES} more"
    return Range(
        points=len(points),
        low=(1.0, *map(min, columns[1:])) if columns and is_count else tuple(map(min, columns)),
        high=tuple(map(max, columns)),
        source=named,
    )


def _publication(source: str) -> str:
    """The publication of a source, without page, table or file."""
    return _PLACE.split(source)[0].replace('"', "").strip()


_PLACE = re.compile(r" (?:docs?|scripts|benchmarks|examples|README|PR|branch|commits?|refs|Table|\()|[/ ]systems/|,")
"""What begins the page, table or file in a source."""


# --- switches ----------------------------------------------------------------------------------------------------


SPLIT = "source and model"


def write_switches(training: Path, path: Path) -> None:
    """Write the file from a table of training runs, or a list of tables; raises InputError for a bad one."""
    found = validated(training)
    rows = found.with_rates(left_out_rates([row.run for row in found.rows], SPLIT)).rows
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, projected, measured in _pairs(rows):
        pairs[name].append((projected, measured))
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    lines = [
        "# Switches that measured runs had on together, and the share of projected gains of switches that measured",
        "# pairs of runs show. Written by `python -m tools.fit ranges`; docs/cost/uncertainty.md says how it is",
        "# used.",
        "shares:",
    ]
    for name, logs in sorted(pairs.items()):
        x, y = np.array(logs).T
        share = min(float((x * y).sum() / (x * x).sum()), 1.0)
        source = f"pairs of {training.name}, projected with their source and model left out, {today}"
        lines.append(f'  {name}: {{value: {share:.2f}, pairs: {len(x)}, source: "{source}"}}')
    lines.append("devices:")
    runs = [row.run for row in rows]
    names = {shape_of(run.model): run.model.name for run in runs}
    for device, by_shape in sorted(_combinations(runs).items()):
        lines.append(f"  {device}:")
        for shape, counts in sorted(by_shape.items()):
            lines.append(f"    {shape}:  # {names[shape]}")
            lines += [f"      - {_entry(values, count)}" for values, count in counts.most_common()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


Values = tuple[tuple[str, Any], ...]
"""Columns of a run that are not at their default, with their words."""


def _on(run: MeasuredRun, columns: Sequence[str] = SWITCHES) -> Values:
    defaults = type(run.candidates).table().row(0)
    row = run.candidates.row(0)
    return tuple((name, row[name]) for name in columns if row[name] != defaults[name])


def _combinations(runs: Iterable[MeasuredRun]) -> Mapping[str, Mapping[str, Counter[Values]]]:
    found: dict[str, dict[str, Counter[Values]]] = defaultdict(lambda: defaultdict(Counter))
    for run in runs:
        found[run.cluster.accelerator.name][shape_of(run.model)][_on(run, COLUMNS)] += 1
    return found


def _entry(values: Values, runs: int) -> str:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values}
    parts = [f"{RUNS}: {runs}", *(f"{name}: {word}" for name, word in words.items())]
    return f"{{{', '.join(parts)}}}"


def _pairs(rows: Sequence[ScoredRun]) -> Iterator[tuple[str, float, float]]:
    """Family, projected and measured log ratio of two runs of a sweep that differ in switches alone."""
    sweeps: dict[tuple[Any, ...], list[ScoredRun]] = defaultdict(list)
    for row in rows:
        run = row.run
        rest = tuple(value for name, value in run.candidates.row(0).items() if name not in SWITCHES)
        job = (run.group, run.gpu, run.cluster.world, run.workload, run.precision, run.cluster.stack.name)
        sweeps[job, rest].append(row)
    for sweep in sweeps.values():
        for a, b in combinations(sweep, 2):
            if _on(a.run) != _on(b.run):
                measured = a.run.tokens_per_s_per_gpu / b.run.tokens_per_s_per_gpu
                yield family(a.run.model), math.log(a.predicted / b.predicted), math.log(measured)
