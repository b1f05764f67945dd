"""Nothing fits: which candidate came closest, by how many bytes it misses, which single change would make it fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from primus_search.base.units import GB
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.findings import Miss
from primus_search.exploration.remedies import closest_change, single_changes
from primus_search.exploration.trials import Judge, values_of


def explain_miss(funnel: Funnel, cluster: int, miss: Miss) -> str:
    """The message of `NothingFits`."""
    space, choice = funnel.space, funnel.space.clusters[cluster]
    candidate = funnel.enumerators[cluster].rows(np.array([miss.index]))
    legal = sum(enumerator.size for enumerator in funnel.enumerators)
    accelerator = choice.cluster.accelerator
    needed = float(funnel.projectors[cluster].memory(candidate).total[0])
    judge, values = Judge(space, choice), values_of(candidate)
    remedies = "; ".join(single_changes(judge, values))
    if not remedies:
        closest = closest_change(judge, values)
        remedies = f"no single change was found{closest and f'; {closest}'}"
    return "\n".join(
        [
            f"none of {legal:,} legal candidates fits {accelerator.hbm_bytes / GB:.1f} GB per GPU"
            f" ({accelerator.name}, {space.search.memory_margin:.0%} kept free)",
            f"nearest miss: {_words(candidate.row(0))}",
            f"  it misses by {miss.missing_bytes / GB:.2f} GB: needs {needed / GB:.1f} GB",
            f"what would make it fit: {remedies}",
        ]
    )


def _words(row: Mapping[str, Any]) -> str:
    shown = ("tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch_size", "schedule", "fp8", "recompute", "sharding")
    return " ".join(f"{name}={row[name]}" for name in shown if row[name] != 1 or name in ("tp", "pp"))
