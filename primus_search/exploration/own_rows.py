"""Runs of a site that a search did not rank become rows of its ranking, and every one of them is listed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.own_runs import OwnRuns
from primus_search.exploration.rank import frontier_after
from primus_search.exploration.ranking_table import RUN, RankingTable
from primus_search.exploration.result import SearchResult, is_on
from primus_search.values.candidates import Candidates, joined
from primus_search.values.measured_run import MeasuredRun


def with_own_runs(result: SearchResult) -> SearchResult:
    """The result with the runs that the stacks' own files hold as rows. Raises `InputError` for a bad file.

    They are among the rows of `ranking.csv`, whatever their rate, and a note says where.
    """
    for found in result.clusters:
        ranking = with_rows_that_ran(found.ranking, found.evaluator)
        ran = ranking.take(np.flatnonzero(ranking.time_evidence == RUN))
        if len(ran):
            listed = ran.plus(found.leaders.take(np.flatnonzero(~np.isin(found.leaders.indices, ran.indices))))
            frontier = frontier_after(found.frontier, ranking)
            leaders = listed.take(np.lexsort((listed.indices, listed.expected_step_s)))
            result = result.with_cluster(replace(found, ranking=ranking, frontier=frontier, leaders=leaders))
    return replace(result, notes=(*result.notes, *_notes(result)))


def with_rows_that_ran(table: RankingTable, evaluator: Evaluator) -> RankingTable:
    """A ranking with the runs of its stack's own file, in its order; rows that the search did not rank are numbered
    below its own. Raises `InputError` for a bad file."""
    runs = evaluator.own_runs
    if runs is None or not (others := runs.without_a_row(table.candidates, table.projection)):
        return table
    first = min(0, int(table.indices.min(initial=0))) - 1
    numbers = np.arange(first, first - len(others), -1, dtype=np.int64)
    whole = table.plus(RankingTable.of(evaluator, numbers, joined(others)))
    return whole.ordered()


def rates_of(evaluator: Evaluator, table: Candidates, runs: Sequence[MeasuredRun]) -> dict[int, float]:
    """Measured tokens/s/GPU of the rows of a table that some runs are of."""
    own = OwnRuns.of(evaluator.projector, runs, evaluator.configured)
    return own.rates(table, evaluator.projector.project(table))


def _notes(result: SearchResult) -> list[str]:
    """Where the runs of every cluster stand, and at what rate."""
    notes = []
    for found in result.clusters:
        ran = [
            f"rank {rank:,} at {row[RATE]:,.0f} tok/s/GPU"
            for rank, row in enumerate(result.ranked_rows, start=1)
            if row["time_evidence"] == RUN and is_on(row, found.choice)
        ]
        if ran:
            file = Path(found.choice.cluster.stack.runs_file).name
            more = f" and {len(ran) - MOST_NAMED} more" if len(ran) > MOST_NAMED else ""
            notes.append(f"run before ({file}): {'; '.join(ran[:MOST_NAMED])}{more}; the rate is that of the run")
    return notes


MOST_NAMED = 3
"""Runs that the note on a ranking names; `--all` lists the others."""
