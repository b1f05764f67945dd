"""From findings to tables: what was found, projected once more in full, in its final order; or why there is nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from primus_search.base.errors import BudgetEnded, InputError, NothingFits, Problem
from primus_search.base.units import GB
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.exhaustive.collect import Collected
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.exhaustive.shortlist import ShortlistRows, frontier, without_noise
from primus_search.exploration.findings import Findings, Miss
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.ranking_table import PERCENT, RankingTable
from primus_search.exploration.remedies import closest_change, single_changes
from primus_search.exploration.result import ClusterResult, labels_of
from primus_search.space import ClusterChoice
from primus_search.values.candidates import Ints

RULES_NAMED = 6
"""Rules an empty space lists; the others removed less."""


def ranked(funnel: Funnel, collected: Collected) -> tuple[ClusterResult, ...]:
    """Ranking and frontier of every cluster, projected in full; empty where no row fits as surely as it should."""
    return tuple(_cluster_result(funnel, number, found) for number, found in enumerate(collected.findings))


def _cluster_result(funnel: Funnel, cluster: int, found: Findings) -> ClusterResult:
    enumerator, least, shortlist = funnel.enumerators[cluster], funnel.space.search.min_fit, found.shortlist
    parts = (shortlist.top, shortlist.frontier, shortlist.grouped.rows)
    every = _projected(funnel, cluster, np.unique(np.concatenate([part.indices for part in parts])))
    removed = Counter(enumerator.removed)
    removed.update(found.removed)
    order, choice = list(enumerator.reasons), funnel.space.clusters[cluster]
    ranking = _ranking(every, shortlist.top.indices, least)
    evaluator = Evaluator(funnel.space, choice, shared=funnel.projectors[cluster])
    return ClusterResult(
        choice=choice,
        raw=enumerator.raw_size,
        legal=enumerator.size - sum(found.removed.values()),
        looked_at=found.legal,
        feasible=found.feasible,
        removed={name: removed[name] for name in sorted(removed, key=order.index)},
        reasons=enumerator.reasons,
        ranking=ranking,
        evaluator=evaluator,
        is_proven=len(shortlist.top) < funnel.keep or _none_was_cut(ranking, evaluator.most_ratio),
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
    return _surely(every.take(_rows_of(every, indices)), least_fit).ordered()


def _none_was_cut(ranking: RankingTable, most_ratio: float) -> bool:
    """Whether no row that might be recommended was cut: the cut is by projection; none expects more times that."""
    sure = ranking.is_sure
    slowest = ranking.projection.tokens_per_s_per_gpu.min(initial=np.inf) * most_ratio
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

    The space's own constraints come first: they are what its author can loosen. Rules that drop doubles come last: of
    rows that mean the same run they leave one.
    """
    if any(enumerator.size for enumerator in funnel.enumerators):
        return
    own = {constraint.text for constraint in funnel.space.constraints}
    removed = Counter[tuple[str, str]]()
    for enumerator in funnel.enumerators:
        removed.update({(name, enumerator.reasons[name]): count for name, count in enumerator.removed.items() if count})
    doubles = {name for enumerator in funnel.enumerators for name in enumerator.doubles}
    blamed = sorted(removed.items(), key=lambda item: (item[0][0] not in own, item[0][0] in doubles, -item[1]))
    blamed = blamed[:RULES_NAMED]
    lines = [f"{name} removed {count:,}: {reason}" for (name, reason), count in blamed]
    where, raw = funnel.space.source or funnel.space.name, sum(enumerator.raw_size for enumerator in funnel.enumerators)
    what = f"no legal candidate among {raw:,}; the rules that emptied the space:"
    raise InputError([Problem(where, "\n  ".join([what, *lines]))])


def refuse_unfit(funnel: Funnel, findings: Sequence[Findings]) -> NoReturn:
    """Say why a search ranks no row on any cluster: the nearest miss, and what would make it fit.

    Raises NothingFits where every legal row was looked at, and BudgetEnded where others may fit.
    """
    looked_at = sum(found.legal for found in findings)
    removed = sum(sum(found.removed.values()) for found in findings)
    legal = sum(enumerator.size for enumerator in funnel.enumerators) - removed
    error: type[NothingFits] = NothingFits if looked_at == legal else BudgetEnded
    counted = f"none of {legal:,} legal candidates"
    if looked_at < legal:
        counted = f"the search ended early: none of the {looked_at:,} candidates looked at, of {legal:,} legal ones,"
    if any(found.feasible for found in findings):
        least = funnel.space.search.min_fit
        which = "none of the fastest candidates" if looked_at == legal else counted
        raise error(
            f"{which} fits in device memory with a probability of {least:g} %; lower --min-fit, "
            "or raise search.memory_margin, which removes such candidates before they are ranked"
        )
    misses = [(found.miss, cluster) for cluster, found in enumerate(findings) if found.miss.index >= 0]
    if misses:
        miss, cluster = min(misses, key=lambda pair: (pair[0].missing_bytes, pair[1]))
        raise error("\n".join([*explain_miss(funnel, cluster, miss, counted), *([MORE] if looked_at < legal else [])]))
    if looked_at < legal:
        raise BudgetEnded(f"the search ended before any of {legal:,} legal candidates was looked at\n{MORE}")
    where = funnel.space.source or funnel.space.name
    raise InputError([Problem(where, "no candidate is legal: rules that are asked row by row left none")])


MORE = "others may fit: give search.budget.candidates or search.budget.seconds more, or leave them out"


def explain_miss(funnel: Funnel, cluster: int, miss: Miss, counted: str) -> list[str]:
    """The message of `NothingFits`; counted: how many candidates do not fit."""
    space, choice = funnel.space, funnel.space.clusters[cluster]
    candidate = funnel.enumerators[cluster].rows(np.array([miss.index]))
    devices = [one.cluster.accelerator for one in (choice, *space.clusters)]
    room = " or ".join(dict.fromkeys(f"{one.hbm_bytes / GB:.1f} GB per GPU ({one.name})" for one in devices))
    needed = float(funnel.projectors[cluster].memory(candidate).total[0])
    evaluator, values = Evaluator(space, choice), values_of(candidate)
    remedies = "; ".join(single_changes(evaluator, values))
    if not remedies:
        closest = closest_change(evaluator, values)
        remedies = f"no single change was found{closest and f'; {closest}'}"
    on = f" on {cluster_words(choice)}" if len(space.clusters) > 1 else ""
    return [
        f"{counted} fits {room}, {space.search.memory_margin:.0%} kept free",
        f"nearest miss{on}: {_words(candidate.row(0))}",
        f"  it misses by {miss.missing_bytes / GB:.2f} GB: needs {needed / GB:.1f} GB",
        f"what would make it fit: {remedies}",
    ]


def unfit_notes(clusters: Sequence[ClusterResult]) -> list[str]:
    """Of several clusters of which some have a ranking: what is known of the others."""
    found = list[str]()
    for one in clusters:
        if len(one.ranking):
            continue
        name = cluster_words(one.choice)
        counted = f"none of {one.legal:,} legal candidates fits on"
        if one.looked_at < one.legal:
            counted = f"none of the {one.looked_at:,} candidates looked at, of {one.legal:,} legal ones, fits on"
        found.append(f"{counted} {name}" if one.legal else f"no candidate is legal on {name}")
    return found


def cluster_words(choice: ClusterChoice) -> str:
    """What tells a cluster from the others of its space: `nodes=8, hardware=h100`."""
    return ", ".join(f"{name}={value}" for name, value in labels_of(choice).items())


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
