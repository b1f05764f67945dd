"""What a search returns: ranked rows and the frontier per cluster, counts per funnel stage, and how sure it is."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from primus_search.exploration.expected import RATE
from primus_search.exploration.findings import FunnelStage
from primus_search.exploration.neighbours import Evaluator, OwnConfiguration
from primus_search.exploration.ranking_table import MEASURED, RANKED_ROWS, RankingTable, is_row_lost
from primus_search.exploration.scaling_table import Rung, ladder, reached, worth
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES

if TYPE_CHECKING:
    from primus_search.exploration.answer_values import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What was found on one cluster.

    raw        size of the grid          legal     rows that no rule removed
    looked_at  of these, rows whose memory was computed: all of them unless the search was sampled or ended early
    feasible   of these, rows that fit   removed   rows per rule, in the order rules are asked
    reasons    why each rule of the cluster's framework removes
    leaders    the best rows of each parallel layout and precision, by expected rate; those of the ranking among them
    evaluator  of further configurations on the cluster, with the projector of the search
    is_proven  no row that was not kept could have been recommended: all of them are projected slower than that
    """

    choice: ClusterChoice
    raw: int
    legal: int
    looked_at: int
    feasible: int
    removed: Mapping[str, int]
    reasons: Mapping[str, str]
    ranking: RankingTable
    frontier: RankingTable
    leaders: RankingTable
    evaluator: Evaluator = field(compare=False)
    is_proven: bool = True

    @property
    def has_fit(self) -> bool:
        """Whether a row of its ranking FITS."""
        return bool(self.ranking.is_fit.any())

    @property
    def best_tokens_per_s_per_gpu(self) -> float:
        """Expected rate of the recommendation; 0 where nothing fits."""
        return float(self.ranking.expected_rate[0]) if len(self.ranking) else 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult:
    """The answer of one search. `exact`: the ranking is the true optimum of the model over the whole space.

    method, method_reason   how candidates were chosen, and why that way
    is_complete             False after a budget ran out or an interrupt: the best so far
    interrupted_by          number of the signal that ended the search early, or 0
    answer                  what the first screen says (`analysis.answer`); None before it was decided
    baseline                what somebody runs now, beside the winner; None where nobody said
    seconds                 wall time of the search, a second one with reliefs included
    keep                    rows of each cluster's ranking that the run folder keeps; 0: all of them
    """

    space: Space
    clusters: tuple[ClusterResult, ...]
    stages: tuple[FunnelStage, ...]
    engine: str
    workers: int
    method: str
    method_reason: str
    exact: bool
    is_complete: bool
    seconds: float
    peak_rss_bytes: float
    notes: tuple[str, ...] = ()
    interrupted_by: int = 0
    baseline: OwnConfiguration | None = None
    answer: "Answer | None" = None
    keep: int = 0

    def __repr__(self) -> str:
        return f"<SearchResult {self.space.name}: {self.legal:,} legal, {self.feasible:,} fit, {self.method}>"

    def with_answer(self, answer: "Answer") -> "SearchResult":
        """This result with its answer; the tables it has made stay."""
        found = copy(self)
        object.__setattr__(found, "answer", answer)
        return found

    @property
    def raw(self) -> int:
        return sum(found.raw for found in self.clusters)

    @property
    def legal(self) -> int:
        return sum(found.legal for found in self.clusters)

    @property
    def looked_at(self) -> int:
        return sum(found.looked_at for found in self.clusters)

    @property
    def feasible(self) -> int:
        return sum(found.feasible for found in self.clusters)

    @property
    def removed(self) -> dict[str, int]:
        """Rows that each rule removed, over all clusters."""
        names = dict.fromkeys(name for found in self.clusters for name in found.removed)
        return {name: sum(found.removed.get(name, 0) for found in self.clusters) for name in names}

    @property
    def reasons(self) -> dict[str, str]:
        """Why each rule removes; several reasons where frameworks give one name to several rules."""
        found: dict[str, dict[str, None]] = {}
        for one in self.clusters:
            for name, reason in one.reasons.items():
                found.setdefault(name, {}).setdefault(reason)
        return {name: "; ".join(reasons) for name, reasons in found.items()}

    @property
    def has_fit(self) -> bool:
        """Whether a row of any cluster FITS."""
        return any(found.has_fit for found in self.clusters)

    @cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """The scaling table of its clusters."""
        return ladder(self.clusters, self.space)

    def rung_of(self, choice: ClusterChoice) -> Rung:
        """The line of one cluster, which has a ranking."""
        key = (choice.labels, choice.cluster.world)
        return next(rung for rung in self.rungs if (rung.labels, rung.world) == key)

    @property
    def best(self) -> ClusterResult:
        """The cluster of the recommendation: of each cluster's first row the best by the space's goal and objective.

        One that FITS comes before those that may run out of memory, one that meets the goal before those that do not,
        and one that was measured before those that were not: their times do not compare. The first among equals.
        """
        ranked = [found for found in self.clusters if len(found.ranking)]
        return max(ranked, key=self._standing) if len(ranked) > 1 else ranked[0]

    @property
    def ranking(self) -> RankingTable:
        """The ranking on the best cluster."""
        return self.best.ranking

    @property
    def frontier(self) -> RankingTable:
        """The frontier of memory against throughput on the best cluster."""
        return self.best.frontier

    @cached_property
    def ranked_rows(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of `ranking.csv`: the best of all clusters, then the best of each parallel layout and precision.

        A rank is the place in this list, from 1. Behind the first `RANKED_ROWS`, other rows of the space lie between
        two of the list.
        """
        head = self._merged([found.ranking for found in self.clusters], RANKED_ROWS, self._first_row)
        # The first columns tell a row from every other one: its cluster and its axes.
        named = len(COLUMN_NAMES) + (len(labels_of(self.best.choice)) if len(self.clusters) > 1 else 0)
        known = {tuple(row.values())[:named] for row in head}
        leaders = self._merged([found.leaders for found in self.clusters], None)
        return (*head, *(row for row in leaders if tuple(row.values())[:named] not in known))

    @cached_property
    def frontier_rows(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of `pareto.csv`: the frontier of each cluster, cluster by cluster."""
        return tuple(_labelled([found.frontier for found in self.clusters], None))

    @property
    def _first_row(self) -> Mapping[str, Any]:
        """The recommendation, as a ranking over several clusters lists it."""
        return labels_of(self.best.choice) | self.ranking.row(0)

    def _merged(
        self, tables: Sequence[RankingTable], most: int | None, first: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The best rows of one table per cluster, best first; `first` before all others."""
        if len(tables) == 1:
            return tables[0].rows(slice(most))
        # As within a cluster: the recommendation, then what was measured, last what was shown not to fit.
        keyed = []
        for table in (one for one in tables if len(one)):
            rung = self.rung_of(table.choice)
            per_rate, chance = worth(rung, self.space) / rung.tokens_per_s_per_gpu, reached(rung, self.space.goal)
            labels = labels_of(table.choice)
            for row in (labels | own for own in table.rows(slice(most))):
                is_measured = row["time_evidence"] == MEASURED
                keyed.append(((row != first, is_row_lost(row), -chance, not is_measured, -row[RATE] * per_rate), row))
        return [row for _, row in sorted(keyed, key=lambda pair: pair[0])][:most]

    def with_cluster(self, changed: ClusterResult) -> Self:
        """This result with one cluster's tables replaced (after re-validation)."""
        clusters = tuple(changed if found.choice is changed.choice else found for found in self.clusters)
        return replace(self, clusters=clusters)

    def _standing(self, found: ClusterResult) -> tuple[bool, bool, float, bool, float]:
        """What the first rows of two clusters are compared by: more is better."""
        first = found.ranking.take(np.zeros(1, np.int64))
        rung = self.rung_of(found.choice)
        return (
            bool(found.ranking.is_fit.any()),
            not first.is_lost[0],
            reached(rung, self.space.goal),
            first.time_evidence[0] == MEASURED,
            worth(rung, self.space),
        )


def _labelled(tables: Sequence[RankingTable], most: int | None) -> list[dict[str, Any]]:
    """The first rows of each table; of several, with what tells their clusters apart in front."""
    if len(tables) == 1:
        return tables[0].rows(slice(most))
    return [labels_of(one.choice) | row for one in tables for row in one.rows(slice(most))]


def cluster_columns(row: Mapping[str, Any]) -> list[str]:
    """What tells clusters apart: the columns before the axes."""
    return list(takewhile(lambda name: name != COLUMN_NAMES[0], row))


def is_on_cluster_of(row: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether two rows are of one cluster."""
    return all(row[name] == first[name] for name in cluster_columns(row))


def labels_of(choice: ClusterChoice) -> dict[str, int | float | str]:
    """What tells a cluster of a space from the others, as columns of a ranking over several."""
    return dict(choice.labels) | {"nodes": choice.cluster.num_nodes}


def traced_shortfall_bytes(rows: Sequence[Mapping[str, Any]], choice: ClusterChoice) -> dict[tuple[Any, ...], float]:
    """Of the rows of one cluster that re-validation showed not to fit: bytes to spare (`Evaluator`)."""
    return {
        tuple(row[name] for name in COLUMN_NAMES): row["headroom_bytes"]
        for row in rows
        if is_row_lost(row) and is_on(row, choice)
    }


def is_on(row: Mapping[str, Any], choice: ClusterChoice) -> bool:
    """Whether a row of a ranking is of that cluster."""
    return is_of(row, labels_of(choice))


def is_of(row: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether a row of a ranking is of the cluster with these labels; a file has 50.0 where a space has 50."""
    return all(row[name] == value or str(row[name]) == str(value) for name, value in labels.items() if name in row)
