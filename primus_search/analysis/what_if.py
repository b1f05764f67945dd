"""What if the machine or the job were another: the same candidate there, and the run's best rows ranked anew."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem
from primus_search.exploration.neighbours import (
    Evaluator,
    Figures,
    RuleViolation,
    Values,
    figures_of,
    table_of,
    values_of,
)
from primus_search.exploration.result import RankingTable, is_on
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRow:
    """One row of the run under the changed inputs; ranks from 1."""

    rank: int
    was: int
    figures: Figures
    row: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer: the candidate before and after, and the best rows in their new order.

    looked_at   rows of the run's ranking that were projected again; others were not
    dropped     of these, rows that are no longer legal or no longer fit
    """

    changes: tuple[str, ...]
    before: Figures
    after: Figures | None
    broken: tuple[RuleViolation, ...]
    ranking: tuple[MovedRow, ...]
    looked_at: int
    dropped: int


def what_if(run: SavedRun, evaluator: Evaluator, base: Values, changes: Sequence[str], top: int) -> WhatIf:
    """Change keys of the space file (`hardware.nic_GBps=100`, `nodes=16`) and project again; `top` rows are listed.

    Raises `InputError` for a key that cannot be changed, and for changes to the axes: that is what why-not asks.
    """
    changed = changed_space(run, changes)
    choice = _same(changed, evaluator.choice, evaluator.space)
    there = Evaluator(changed, choice)
    broken = there.broken(base)
    after = None if broken else there.project([base])[0]
    numbers = [n for n, row in enumerate(run.ranking, start=1) if is_on(row, evaluator.choice)]
    rows = [run.ranking[n - 1] for n in numbers]
    every = [values_of(Candidates.from_words({name: row[name] for name in COLUMN_NAMES})) for row in rows]
    legal = [int(i) for i in np.flatnonzero(there.still_legal(table_of(every)))] if every else []
    ranking: list[MovedRow] = []
    if legal:
        table = table_of([every[i] for i in legal])
        projection = there.projector.project(table)
        shares = there.expected_shares(table, projection)
        anew = RankingTable(
            job=there.projector.job,
            choice=choice,
            indices=np.arange(len(legal)),
            candidates=table,
            projection=projection,
            expected_shares=shares,
        )
        order = [i for i in anew.order.tolist() if projection.fits[i]]
        ranking = [
            MovedRow(
                rank=place,
                was=numbers[legal[i]],
                figures=figures_of(projection, i, float(shares[i])),
                row=rows[legal[i]],
            )
            for place, i in enumerate(order, start=1)
        ]
    return WhatIf(
        changes=tuple(changes),
        before=evaluator.project([base])[0],
        after=after,
        broken=broken,
        ranking=tuple(ranking[:top]),
        looked_at=len(rows),
        dropped=len(rows) - len(ranking),
    )


def changed_space(run: SavedRun, changes: Sequence[str]) -> Space:
    """The run's space with keys changed as `--set` would; its axes stay."""
    space = run.loaded([f"--what-if {change}" for change in changes])
    wanted = [name.partition("=")[0].strip().removeprefix("space.") for name in changes]
    axes = [name for name in wanted if name in {axis.name for axis in space.axes}]
    if axes:
        what = "is an axis of the space; ask --why-not for another configuration"
        raise InputError([Problem(f"--what-if {name}", what) for name in axes])
    # Axes that were `auto` may have other values elsewhere; the question is about these candidates.
    return replace(space, axes=run.space.axes)


def _same(changed: Space, choice: ClusterChoice, space: Space) -> ClusterChoice:
    """The cluster of the changed space that stands for `choice`: with the same labels, or in the same place."""
    for one in changed.clusters:
        if choice.labels and one.labels == choice.labels:
            return one
    place = space.clusters.index(choice)
    return changed.clusters[place if len(changed.clusters) == len(space.clusters) else 0]
