"""Nothing fits: which candidate came closest, by how many bytes it misses, which single change would make it fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from primus_search.candidates import Candidates, Recompute, RecomputeMethod, Sharding, degrees
from primus_search.cluster import Cluster
from primus_search.cost.project import Projector
from primus_search.search.evaluate import Funnel
from primus_search.search.findings import Miss
from primus_search.space import Axis, Enumerator
from primus_search.space.types import ClusterChoice, Space
from primus_search.units import GB

MAX_NODES_FACTOR = 16


def explain_miss(funnel: Funnel, cluster: int, miss: Miss) -> str:
    """The message of `NothingFits`."""
    choice = funnel.space.clusters[cluster]
    candidate = funnel.enumerators[cluster].rows(np.array([miss.index]))
    legal = sum(enumerator.size for enumerator in funnel.enumerators)
    accelerator = choice.cluster.accelerator
    margin = funnel.space.search.memory_margin
    lines = [
        f"none of {legal:,} legal candidates fits {accelerator.hbm_bytes / GB:.1f} GB per GPU"
        f" ({accelerator.name}, {margin:.0%} kept free)",
        f"nearest miss: {_words(candidate)}",
        f"  it misses by {miss.missing_bytes / GB:.2f} GB: needs {_total_GB(funnel, cluster, candidate):.1f} GB",
    ]
    remedies = list(_remedies(funnel.space, choice, candidate, miss))
    lines.append("what would make it fit: " + ("; ".join(remedies) if remedies else "no single change was found"))
    return "\n".join(lines)


def _words(candidate: Candidates) -> str:
    row = candidate.row(0)
    shown = ("tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch_size", "schedule", "fp8", "recompute", "sharding")
    return " ".join(f"{name}={row[name]}" for name in shown if row[name] != 1 or name in ("tp", "pp"))


def _total_GB(funnel: Funnel, cluster: int, candidate: Candidates) -> float:  # noqa: N802 - GB is the unit
    return float(funnel.projectors[cluster].memory(candidate).total[0]) / GB


def _remedies(space: Space, choice: ClusterChoice, candidate: Candidates, miss: Miss) -> Iterator[str]:
    """Single changes after which the candidate fits, cheapest first."""
    margin, hbm = space.search.memory_margin, choice.cluster.accelerator.hbm_bytes
    spare = margin * hbm - miss.missing_bytes
    if spare >= 0:
        yield f"a memory_margin of {spare / hbm:.3f} instead of {margin}"
    for label, changed in _variants(candidate):
        if _is_legal(space, choice, changed) and _missing(space, choice.cluster, changed) <= 0:
            yield label
    for factor in (2, 4, 8, MAX_NODES_FACTOR):
        larger = _with_nodes(choice.cluster, factor)
        d = degrees(candidate, world=larger.world, global_batch_size=space.workload.global_batch_size)
        if d.is_whole[0] and _missing(space, larger, candidate) <= 0:
            yield f"{larger.num_nodes} nodes"
            return


def _variants(candidate: Candidates) -> Iterator[tuple[str, Candidates]]:
    row = {name: column[0] for name, column in candidate.columns().items()}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("micro_batch_size: 1", {"micro_batch_size": 1}),
        ("loss_fusion: true", {"loss_fusion": True}),
        ("recompute: selective", {"recompute": Recompute.CORE_ATTENTION, "recompute_num_layers": 0}),
        (
            "recompute: full",
            {"recompute": Recompute.FULL, "recompute_num_layers": 0, "recompute_method": RecomputeMethod.UNIFORM},
        ),
        ("sharding: distributed_optimizer", {"sharding": Sharding.DISTRIBUTED_OPTIMIZER}),
        ("sharding: fsdp2", {"sharding": Sharding.FSDP2}),
        *((f"{name}: {2 * int(row[name])}", {name: 2 * int(row[name])}) for name in ("tp", "pp", "ep", "cp", "etp")),
    ]
    for label, change in changes:
        if any(row[name] != value for name, value in change.items()):
            columns: dict[str, Any] = row | change
            yield label, Candidates.table(schedules=candidate.schedules, layouts=candidate.layouts, **columns)


def _is_legal(space: Space, choice: ClusterChoice, candidate: Candidates) -> bool:
    """Whether the rules, not the axes of the space, allow this one candidate."""
    columns = candidate.columns()
    words: dict[str, Any] = {"schedule": candidate.schedules, "pipeline_layout": candidate.layouts}
    axes = tuple(
        Axis(name=name, values=(words[name][int(column[0])] if name in words else column[0].item(),))
        for name, column in columns.items()
    )
    single = Space(
        name=space.name, model=space.model, workload=space.workload, clusters=(choice,), axes=axes, search=space.search
    )
    return Enumerator(single).size > 0


def _missing(space: Space, cluster: Cluster, candidate: Candidates) -> float:
    projector = Projector(space.model, cluster, space.workload, memory_margin=space.search.memory_margin)
    hbm = cluster.accelerator.hbm_bytes * (1.0 - space.search.memory_margin)
    return float(projector.memory(candidate).total[0] - hbm)


def _with_nodes(cluster: Cluster, factor: int) -> Cluster:
    return Cluster(
        accelerator=cluster.accelerator,
        network=cluster.network,
        stack=cluster.stack,
        num_nodes=cluster.num_nodes * factor,
    )
