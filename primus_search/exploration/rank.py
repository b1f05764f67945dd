"""From findings to tables: what was found, projected once more in full, in its final order; or why there is nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, NothingFits, Problem
from primus_search.base.units import GB
from primus_search.cost.confidence.uncertainty import TIE, most_ratio
from primus_search.exploration.exhaustive.collect import Collected
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.exhaustive.shortlist import ShortlistRows, frontier, without_noise
from primus_search.exploration.findings import Findings, Miss
from primus_search.exploration.neighbours import Evaluator, closest_change, single_changes, values_of
from primus_search.exploration.ranking_table import PERCENT, RankingTable
from primus_search.exploration.result import ClusterResult
from primus_search.values.candidates import Ints

RULES_NAMED = 6
"""Rules an empty space lists; the others removed less."""


def ranked(funnel: Funnel, collected: Collected) -> tuple[ClusterResult, ...]:
    """Ranking and frontier of every cluster, projected in full.

    Raises NothingFits where no row that was kept fits as surely as the space asks.
    """
    found = tuple(_cluster_result(funnel, number, found) for number, found in enumerate(collected.findings))
    if not any(len(one.ranking) for one in found):
        least = funnel.space.search.min_fit
        raise NothingFits(
            f"none of the fastest candidates fits in device memory with a probability of {least:g} %; lower --min-fit, "
            "or raise search.memory_margin, which removes such candidates before they are ranked"
        )
    return found


def _cluster_result(funnel: Funnel, cluster: int, found: Findings) -> ClusterResult:
    enumerator, least, shortlist = funnel.enumerators[cluster], funnel.space.search.min_fit, found.shortlist
    parts = (shortlist.top, shortlist.frontier, shortlist.grouped.rows)
    every = _projected(funnel, cluster, reduce(np.union1d, (part.indices for part in parts)))
    removed = Counter(enumerator.removed)
    removed.update(found.removed)
    order, choice = list(enumerator.reasons), funnel.space.clusters[cluster]
    ranking = _ranking(every, shortlist.top.indices, least)
    return ClusterResult(
        choice=choice,
        raw=enumerator.raw_size,
        legal=found.legal,
        feasible=found.feasible,
        removed={name: removed[name] for name in sorted(removed, key=order.index)},
        ranking=ranking,
        evaluator=Evaluator(funnel.space, choice, shared=funnel.projectors[cluster]),
        is_proven=len(shortlist.top) < funnel.keep or _none_was_cut(ranking),
        frontier=_by_memory(every, shortlist.frontier.indices, least),
        leaders=_by_step(every, shortlist.grouped.rows.indices, least),
    )


def _projected(funnel: Funnel, cluster: int, numbers: Ints) -> RankingTable:
    """The rows with these numbers, in their order, with their full projection.

    Projected afresh and in the order of their numbers, so that the last digit of a figure does not depend on which
    worker saw which row beside which.
    """
    candidates = funnel.enumerators[cluster].rows(numbers)
    funnel.projectors[cluster].forget()
    evaluator = Evaluator(funnel.space, funnel.space.clusters[cluster], shared=funnel.projectors[cluster])
    return RankingTable.of(evaluator, numbers, candidates)


def _ranking(every: RankingTable, indices: Ints, least_fit: float) -> RankingTable:
    """Those of some rows that fit surely enough, the recommendation first."""
    found = _by_step(every, indices, least_fit)
    return found.take(found.order)


def _none_was_cut(ranking: RankingTable) -> bool:
    """Whether no row that might be recommended was cut: the cut is by projection, and none expects more than that."""
    sure = ranking.is_sure
    slowest = ranking.projection.tokens_per_s_per_gpu.min(initial=np.inf) * most_ratio(
        ranking.job.cluster, ranking.job.model
    )
    return bool(sure.any()) and bool(slowest <= ranking.sure_rate[sure].max() * (1.0 - TIE))


def _by_step(every: RankingTable, indices: Ints, least_fit: float) -> RankingTable:
    """Those of some rows that fit surely enough, by expected step."""
    rows = _rows_of(every, indices)
    order = np.lexsort((every.indices[rows], every.expected_step_s[rows]))
    return _surely(every.take(rows[order]), least_fit)


def _by_memory(every: RankingTable, indices: Ints, least_fit: float) -> RankingTable:
    """Those of some rows that fit surely enough, by memory."""
    found = every.take(_rows_of(every, indices))
    memory_bytes = without_noise(found.projection.memory.total)
    return _surely(found.take(np.lexsort((found.indices, found.expected_step_s, memory_bytes))), least_fit)


def _rows_of(every: RankingTable, indices: Ints) -> Ints:
    """Where the candidates with these numbers stand, in the order of their numbers."""
    return np.searchsorted(every.indices, np.sort(indices))


def _surely(found: RankingTable, least_fit: float) -> RankingTable:
    return found.take(np.flatnonzero(found.confidence.fits * PERCENT >= least_fit)) if least_fit else found


def refuse_empty(funnel: Funnel) -> None:
    """Raise InputError when no row of any cluster is legal, naming the rules that emptied the space.

    The space's own constraints come first: they are what its author can loosen.
    """
    if any(enumerator.size for enumerator in funnel.enumerators):
        return
    enumerator = funnel.enumerators[0]
    own = {constraint.text for constraint in funnel.space.constraints}
    removed = ((name, count) for name, count in enumerator.removed.items() if count)
    blamed = sorted(removed, key=lambda item: (item[0] not in own, -item[1]))[:RULES_NAMED]
    lines = [f"{name} removed {count:,}: {enumerator.reasons[name]}" for name, count in blamed]
    where = funnel.space.source or funnel.space.name
    what = f"no legal candidate among {enumerator.raw_size:,}; the rules that emptied the space:"
    raise InputError([Problem(where, "\n  ".join([what, *lines]))])


def refuse_unfit(funnel: Funnel, findings: Sequence[Findings]) -> None:
    """Raise NothingFits when no legal row fits on any cluster: the nearest miss, and what would make it fit."""
    if any(found.feasible for found in findings):
        return
    misses = [(found.miss, cluster) for cluster, found in enumerate(findings) if found.miss.index >= 0]
    if not misses:
        where = funnel.space.source or funnel.space.name
        raise InputError(
            [Problem(where, "no candidate was looked at: the budget is too small, or late rules left none")]
        )
    miss, cluster = min(misses, key=lambda pair: (pair[0].missing_bytes, pair[1]))
    raise NothingFits(explain_miss(funnel, cluster, miss))


def explain_miss(funnel: Funnel, cluster: int, miss: Miss) -> str:
    """The message of `NothingFits`."""
    space, choice = funnel.space, funnel.space.clusters[cluster]
    candidate = funnel.enumerators[cluster].rows(np.array([miss.index]))
    legal = sum(enumerator.size for enumerator in funnel.enumerators)
    accelerator = choice.cluster.accelerator
    needed = float(funnel.projectors[cluster].memory(candidate).total[0])
    evaluator, values = Evaluator(space, choice), values_of(candidate)
    remedies = "; ".join(single_changes(evaluator, values))
    if not remedies:
        closest = closest_change(evaluator, values)
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


def frontier_after(before: RankingTable, ranking: RankingTable) -> RankingTable:
    """The frontier of a cluster whose ranking was re-validated, by rising memory.

    Figures on different kinds of evidence are not compared. A row leaves the frontier where a row on the same evidence
    of time and memory beats it on both, or where a device showed that it does not fit.
    """
    seen = ranking.take(np.flatnonzero(ranking.is_looked_at))
    if not len(seen):
        return before
    pool = seen.plus(before.take(np.flatnonzero(~np.isin(before.indices, seen.indices))))
    pool = pool.take(np.argsort(pool.indices, kind="stable"))
    step_s, memory_bytes = pool.expected_step_s, without_noise(pool.projection.memory.total)
    pairs = zip(pool.time_evidence, pool.memory_evidence, strict=True)
    evidence = np.array([f"{time}/{memory}" for time, memory in pairs])
    kept: list[int] = []
    for kind in dict.fromkeys(evidence.tolist()):
        mine: Ints = np.flatnonzero((evidence == kind) & ~pool.is_lost)
        rows = ShortlistRows(
            indices=mine, step_s=step_s[mine], memory_bytes=memory_bytes[mine], expected_s=step_s[mine]
        )
        kept += frontier(rows).indices.tolist()
    every = np.array(kept, dtype=np.int64)
    return pool.take(every[np.lexsort((pool.indices[every], step_s[every], memory_bytes[every]))])
