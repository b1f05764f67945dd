"""Projections of the choices of a run on other machines and workloads, one change each, for the page's sliders.

The same projection as `explain --what-if`: the cluster or the workload of the job is changed, rows stay as they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from primus_search.base.units import GB
from primus_search.exploration import neighbours
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import Candidates

FACTORS = {
    "nic": (0.25, 0.5, 1.0, 2.0),
    "batch": (0.5, 1.0, 2.0),
    "nodes": (0.5, 1.0, 2.0, 4.0),
    "documents": (0.125, 0.5, 1.0),
}  # of the run's own value
TITLES = {"nic": "GB/s per NIC", "batch": "Global batch", "nodes": "Nodes", "documents": "Mean document, tokens"}


Known = Callable[[ClusterChoice], neighbours.Evaluator | None]


def sliders(
    evaluator: neighbours.Evaluator, rows: Sequence[neighbours.Values], known: Known = lambda _: None
) -> list[dict[str, Any]]:
    """Of each input its values, the place of the run's own, and expected tokens/s/GPU of every row at each value, None
    where the row is not legal or does not fit there. known: what evaluates on a cluster that the run had, too."""
    table, found = neighbours.table_of(rows), []
    own = _rates(evaluator, table)
    for key, factors in FACTORS.items():
        base = _base(key, evaluator)
        kept = [factor for factor in factors if _is_whole(key, base * factor)]
        if len(kept) < 2:
            continue
        there = (_changed(key, base * factor, evaluator, known) for factor in kept)
        rates = [own if factor == 1.0 else _rates(one, table) for factor, one in zip(kept, there, strict=True)]
        at = kept.index(1.0)
        values = [float(f"{base * factor:.6g}") for factor in kept]
        found.append({"key": key, "title": TITLES[key], "values": values, "at": at, "rates": rates})
    return found


def _base(key: str, evaluator: neighbours.Evaluator) -> float:
    """The run's own value; 0 where it cannot be changed alone."""
    cluster, workload = evaluator.choice.cluster, evaluator.space.workload
    if key == "nic":
        return cluster.network.nic_bytes_per_s / GB if cluster.num_nodes > 1 else 0.0
    if key == "documents":
        return 0.0 if workload.lengths else float(workload.document_length or workload.seq_length)
    return float(workload.global_batch_size if key == "batch" else cluster.num_nodes)


def _is_whole(key: str, value: float) -> bool:
    return value > 0.0 if key == "nic" else value >= 1.0 and value.is_integer()


def _changed(key: str, value: float, evaluator: neighbours.Evaluator, known: Known) -> neighbours.Evaluator:
    space, choice = evaluator.space, evaluator.choice
    cluster, workload = choice.cluster, space.workload
    if key == "nic":
        cluster = replace(cluster, network=replace(cluster.network, nic_bytes_per_s=value * GB))
    elif key == "nodes":
        cluster = replace(cluster, num_nodes=int(value))
    elif key == "batch":
        workload = replace(workload, global_batch_size=int(value))
    else:
        workload = replace(workload, document_length=0.0 if value == workload.seq_length else value)
    moved: ClusterChoice = replace(choice, cluster=cluster)
    there: Space = replace(space, workload=workload, clusters=(moved,))
    return (known(moved) if key == "nodes" else None) or neighbours.Evaluator(there, moved)


def _rates(evaluator: neighbours.Evaluator, table: Candidates) -> list[float | None]:
    found: list[float | None] = [None] * len(table)
    for row, figures in _figures(evaluator, table):
        found[row] = float(f"{figures.expected_tokens_per_s_per_gpu:.6g}") if figures.fits else None
    return found


def _figures(evaluator: neighbours.Evaluator, table: Candidates) -> Iterator[tuple[int, neighbours.Figures]]:
    legal = np.flatnonzero(evaluator.still_legal(table))
    if len(legal):
        yield from zip(legal.tolist(), evaluator.figures(table.take(legal)), strict=True)
