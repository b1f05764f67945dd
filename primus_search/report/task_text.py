"""The table of several tasks of one model on the same machines: what each needs at least, and how fast it is there."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from primus_search.analysis.labels import between
from primus_search.base.units import GB
from primus_search.cost.confidence.fit import FITS
from primus_search.exploration.result import ClusterResult, SearchResult

WIDTH = 80
HEAD = ("task", "machine", "least GPUs", "tok/s/GPU", "90 %", "GB", "memory")
WIDTHS = (8, 21, 10, 9, 12, 5, 8)


def task_lines(found: Mapping[str, SearchResult | None]) -> list[str]:
    """A row for each task on each machine at the fewest devices where it runs, and a sentence that compares them.

    found  the search of each task; None where it fits on no cluster
    """
    least = {task: smallest(result) for task, result in found.items()}
    lines = [_line(HEAD)]
    for task, clusters in least.items():
        lines += [_row(task, one) for one in clusters] or [_line((task, "fits on none of these", *[""] * 5))]
    return [*lines, "", *wrap(_compared(least), WIDTH)]


def smallest(result: SearchResult | None) -> list[ClusterResult]:
    """Of each machine the cluster of fewest devices on which the first row FITS, or else may fit."""
    found: dict[str, ClusterResult] = {}
    some = [one for one in (result.clusters if result else ()) if len(one.ranking)]
    for one in sorted(some, key=lambda one: (one.ranking.verdicts[0] != FITS, one.choice.cluster.world)):
        found.setdefault(one.choice.cluster.accelerator.name, one)
    return list(found.values())


def _row(task: str, one: ClusterResult) -> str:
    sure, cluster = one.ranking.confidence, one.choice.cluster
    memory = f"{float(one.ranking.projection.memory.total[0]) / GB:,.0f}"
    rate, band = f"{one.best_tokens_per_s_per_gpu:,.0f}", between(float(sure.low[0]), float(sure.high[0]))
    verdict = str(one.ranking.verdicts[0])
    return _line((task, cluster.accelerator.name, f"{cluster.world:,}", rate, band, memory, verdict))


def _line(cells: Sequence[str]) -> str:
    words = [f"{cell:<{width}}" if i in (0, 1, 6) else f"{cell:>{width}}" for i, (cell, width) in
             enumerate(zip(cells, WIDTHS, strict=True))]  # fmt: skip
    return " ".join(words).rstrip()


def _compared(least: Mapping[str, Sequence[ClusterResult]]) -> str:
    """`sft needs 16 GPUs; lora fits 2, at 1.9 times its tokens/s per GPU` on the first machine that all share."""
    first = next((task for task, clusters in least.items() if clusters), "")
    if not first:
        return "None of these tasks fits on these machines."
    base = least[first][0]
    name = base.choice.cluster.accelerator.name
    parts = [f"On {name}: {first} needs {base.choice.cluster.world:,}"]
    for task, clusters in least.items():
        own = next((one for one in clusters if one.choice.cluster.accelerator.name == name), None)
        if task != first and own is not None:
            times = own.best_tokens_per_s_per_gpu / base.best_tokens_per_s_per_gpu
            parts.append(f"{task} {own.choice.cluster.world:,}, at {times:.1f} times its tokens/s per GPU")
        elif task != first:
            parts.append(f"{task} fits on none")
    return "; ".join(parts) + "."
