"""The table of several tasks of one model on the same machines: what each needs at least, and how fast it is there."""

from collections.abc import Mapping

from primus_search.analysis.labels import between
from primus_search.base.units import GB
from primus_search.cost.confidence.fit import FITS
from primus_search.exploration.result import ClusterResult, SearchResult

HEAD = ("task", "machine", "least GPUs", "tok/s/GPU", "90 %", "GB", "memory")


def task_rows(found: Mapping[str, SearchResult | None]) -> list[tuple[str, ...]]:
    """A row under `HEAD` for each task on each machine at the fewest devices where it runs.

    found  the search of each task; None where it fits on no cluster
    """
    nothing = ("fits on none of these", "", "", "", "", "")
    return [(task, *cells) for task, one in found.items() for cells in [*map(_cells, smallest(one))] or [nothing]]


def smallest(result: SearchResult | None) -> list[ClusterResult]:
    """Of each machine the cluster of fewest devices on which the first row FITS, or else may fit."""
    found: dict[str, ClusterResult] = {}
    some = [one for one in (result.clusters if result else ()) if len(one.ranking)]
    for one in sorted(some, key=lambda one: (one.ranking.verdicts[0] != FITS, one.choice.cluster.world)):
        found.setdefault(one.choice.cluster.accelerator.name, one)
    return list(found.values())


def _cells(one: ClusterResult) -> tuple[str, ...]:
    sure, cluster = one.ranking.confidence, one.choice.cluster
    memory = f"{float(one.ranking.projection.memory.total[0]) / GB:,.0f}"
    rate, band = f"{one.best_tokens_per_s_per_gpu:,.0f}", between(float(sure.low[0]), float(sure.high[0]))
    return cluster.accelerator.name, f"{cluster.world:,}", rate, band, memory, str(one.ranking.verdicts[0])


def compared(found: Mapping[str, SearchResult | None]) -> str:
    """`sft needs 16; lora 2, at 1.9 times its tokens/s per GPU` on the machine of the first task that fits."""
    least = {task: smallest(result) for task, result in found.items()}
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
