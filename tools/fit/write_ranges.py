"""The ranges that measurements cover, per device and per stack: what `explain` and `project` hold a candidate against.

Kernel points and collectives come from a measurement CSV, peaks and runs from a CSV of training runs. Only points that
the fits use count (`points`, `collectives`), so a range says where a law was compared with something.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from primus_search.base.units import GB
from primus_search.declare.hardware_files import load_hardware
from primus_search.declare.search_path import FileKind as Place
from primus_search.declare.search_path import names
from primus_search.runs.calibrate.points import KernelKind, Point, read_points
from primus_search.runs.published import validated
from primus_search.values.candidates import Fp8
from primus_search.values.machine.cluster import GROUPED, Range, Ranges
from tools.fit import network_points
from tools.fit.training_parameters import is_informative

MOST_SOURCES = 2
FEWEST = 1.0
Sized = tuple[tuple[float, ...], str]
"""Sizes of one measured point, and where it is from."""


def device_ranges(measurements: Path, training: Path) -> Ranges:
    """Ranges of every device that has a hardware file, by the device's name."""
    points = read_points(measurements)
    peaks = _peaks(training)
    found: dict[str, dict[str, Range]] = {}
    for file in names(Place.HARDWARE):
        name = load_hardware(file).name
        known = {point.gpu for point in points}
        gpu = name if name in known else name.partition("-")[0]
        sized = _kernels([point for point in points if point.gpu == gpu])
        _add_links(sized, measurements, gpu)
        for kind, sizes in peaks.get(name, {}).items():
            sized[kind] += sizes
        if sized:
            found[name] = _boxes(sized)
    return found


def stack_ranges(training: Path) -> Ranges:
    """Ranges of every stack: the training runs its numbers were fitted to."""
    sized: dict[str, dict[str, list[Sized]]] = defaultdict(lambda: defaultdict(list))
    for case in (row.run for row in validated(training).rows if is_informative(row.run)):
        key = run_kind(case.cluster.accelerator.name, case.model.is_moe, int(case.candidates.fp8[0]))
        sizes = (float(case.cluster.world), float(case.workload.seq_length))
        sized[case.cluster.stack.name][key].append((sizes, case.provenance.source))
    return {name: _boxes(kinds) for name, kinds in sorted(sized.items())}


def run_kind(device: str, is_moe: bool, fp8: int) -> str:
    """The kind of a training run of a stack."""
    return f"{device}/{'moe' if is_moe else 'dense'}/{'bf16' if fp8 == Fp8.NONE else 'low'}"


def write_ranges(ranges: Ranges, path: Path, head: str) -> None:
    """One YAML file, one line per range."""
    lines = [f"# {head} Written by `python -m tools.fit ranges`; docs/cost/uncertainty.md says how they are used."]
    for owner, kinds in ranges.items():
        lines.append(f"{owner}:")
        for kind, box in kinds.items():
            low, high = (", ".join(_written(size) for size in sizes) for sizes in (box.low, box.high))
            lines.append(f'  {kind}: {{points: {box.points}, low: [{low}], high: [{high}], source: "{box.source}"}}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _kernels(points: Iterable[Point]) -> dict[str, list[Sized]]:
    sized: dict[str, list[Sized]] = defaultdict(list)
    for p in points:
        recipe = "bf16" if p.code == Fp8.NONE else p.code.name.lower()
        if p.kind is KernelKind.GEMM:
            sized[f"gemm/{recipe}"].append(((p.m, p.n, p.k), p.source))
        elif p.kind is KernelKind.GROUPED_GEMM:
            sized[f"{GROUPED}/{recipe}"].append(((p.m, p.n, p.k), p.source))
        elif p.kind is KernelKind.MOE_LAYER:
            rows = p.m * p.top_k / p.groups
            sized[f"{GROUPED}/{recipe}"].append(((rows, p.n, p.k), p.source))
        else:
            sized[f"attention/{p.family}"].append(((p.seq, p.qk_dim), p.source))
    return sized


def _add_links(sized: dict[str, list[Sized]], measurements: Path, gpu: str) -> None:
    points = network_points.read_points(measurements, gpu)
    for i, op in enumerate(points.op):
        kind = "dispatch" if op in ("dispatch", "combine") else "collectives"
        nodes, members = int(points.nodes[i]), int(points.members[i])
        where, size = ("across", float(nodes)) if nodes > 1 else ("inside", float(members))
        sized[f"{kind}/{where}"].append(((size,), points.source[i]))


def _peaks(training: Path) -> dict[str, dict[str, list[Sized]]]:
    sized: dict[str, dict[str, list[Sized]]] = defaultdict(lambda: defaultdict(list))
    outcome = validated(training)
    for row in (*outcome.rows, *outcome.memory_only):
        if row.memory is not None:
            kind = f"memory/{row.run.family}"
            sized[row.run.cluster.accelerator.name][kind].append(((row.memory[1] / GB,), row.run.provenance.source))
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
        low=tuple(min(column) for column in columns) if not is_count else (FEWEST, *map(min, columns[1:])),
        high=tuple(max(column) for column in columns),
        source=named,
    )


def _written(size: float) -> str:
    return f"{size:.0f}" if size == int(size) else f"{size:.4g}"


def _publication(source: str) -> str:
    """The publication of a source, without page, table or file."""
    return (
        re.split(
            r" (?:docs?|scripts|benchmarks|examples|README|PR|branch|commits?|refs|Table|\()|[/ ]systems/|,", source
        )[0]
        .replace('"', "")
        .strip()
    )
