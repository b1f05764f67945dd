"""The frontier after re-validation: what torch found of its rows, and of the ranking's other rows it looked at.

Figures on different kinds of evidence are not compared: a step measured 10 % longer than projected says nothing about
the rows that were only projected. So a row leaves the frontier for one reason of two: a row whose time and memory stand
on the same evidence as its own beats it on both, or a device showed that it does not fit.
"""

import numpy as np

from primus_search.exploration.exhaustive.shortlist import ShortlistRows, frontier, without_noise
from primus_search.exploration.result import RankingTable
from primus_search.values.candidates import Ints


def frontier_after(before: RankingTable, ranking: RankingTable) -> RankingTable:
    """The frontier of a cluster whose ranking was re-validated, by rising memory."""
    seen = ranking.take(np.flatnonzero(ranking.is_looked_at))
    if not len(seen):
        return before
    pool = seen.plus(before.take(np.flatnonzero(~np.isin(before.indices, seen.indices))))
    pool = pool.take(np.argsort(pool.indices, kind="stable"))
    step_s, memory_bytes = without_noise(pool.projection.step.total), without_noise(pool.projection.memory.total)
    pairs = zip(pool.time_evidence, pool.memory_evidence, strict=True)
    evidence = np.array([f"{time}/{memory}" for time, memory in pairs])
    kept: list[int] = []
    for kind in dict.fromkeys(evidence.tolist()):
        mine: Ints = np.flatnonzero((evidence == kind) & ~pool.is_lost)
        kept += frontier(
            ShortlistRows(indices=mine, step_s=step_s[mine], memory_bytes=memory_bytes[mine])
        ).indices.tolist()
    rows = np.array(kept, dtype=np.int64)
    return pool.take(rows[np.lexsort((pool.indices[rows], step_s[rows], memory_bytes[rows]))])
