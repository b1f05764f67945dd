"""Why not this other configuration: what forbids it, what it misses to fit, or how far behind it is and in what.

Two answers. The candidate with just these axes changed; and the best that the space holds with these values, everything
else free: a fair chance for the idea.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.declare.axes import AXIS, Reader, Word
from primus_search.exploration import neighbours
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import OPEN
from primus_search.exploration.findings import Findings
from primus_search.exploration.ranking_table import RankingTable
from primus_search.exploration.remedies import single_changes
from primus_search.exploration.result import is_on
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.source import Document, parse
from primus_search.launch.read.megatron import canonical
from primus_search.learning.logged_job import read_job
from primus_search.space import Axis, AxisValue, ClusterChoice, Space
from primus_search.space.tokens import pairs_of
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.layout import Layout

MOST_ROWS = 2_000_000  # rows of the narrowed space that are looked through; beyond that only the first so many
MOST_LOOKED_AT = 1000  # of the fastest by projection, of which the fastest to expect is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """The best row of the space with the requested values.

    rows      legal rows with these values     is_whole  False where only the first `MOST_ROWS` were looked at
    fitting   of these, rows that fit          best      fastest that fits; else the one that misses least
    removed   rows each rule took out of the narrowed grid, most first, with its reason
    """

    rows: int
    fitting: int
    is_whole: bool
    best: neighbours.Values | None
    figures: neighbours.Figures | None
    removed: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The answer. `would_fit`: single further changes after which the plain change fits, where it does not."""

    asked: Mapping[str, AxisValue]
    alone: neighbours.Trial
    chance: Chance
    would_fit: tuple[str, ...]


def parse_request(
    text: str, base: neighbours.Values, evaluator: neighbours.Evaluator | None = None
) -> dict[str, AxisValue]:
    """`tp=4,pp=2` or `TP4 PP2 mbs2`, words as tables print them, as axes with typed values.

    `@FILE` stands for what a launch file has otherwise than `base`. Raises `InputError` with every part that cannot be
    read, and for an axis that is given several values.
    """
    if text.startswith("@"):
        differing = _of_file(Path(text.removeprefix("@")), base, evaluator)
        if not differing:
            raise InputError([Problem(f"--why-not {text}", "has the very configuration it would be compared with")])
        return differing
    where = f"--why-not {text}"
    asked: dict[str, AxisValue] = {}
    problems: list[Problem] = []
    for name, value in pairs_of(text):
        if not value and name not in AXIS:
            what = f"'{name}' is no word of the tables and no axis=value; write TP4 PP2, or tp=4,pp=2"
            problems.append(Problem(where, what))
        elif name not in AXIS:
            what = f"unknown axis '{name}'{did_you_mean(name, AXIS)}; `primus-search words` lists what is known"
            problems.append(Problem(where, what))
        else:
            raw = parse(value, where).data
            reader = Reader(Document(where, {"space": {name: raw}}))
            items = {name: reader.axis(AXIS[name], raw, ("space", name)), **reader.implied}
            problems += reader.problems
            asked |= {axis: found[0] for axis, found in items.items() if found and not isinstance(found[0], Word)}
            if not reader.problems and any(len(found) != 1 or isinstance(found[0], Word) for found in items.values()):
                problems.append(Problem(where, f"{name} needs one value, not '{value}'"))
    if problems:
        raise InputError(problems)
    return asked


def _of_file(path: Path, base: neighbours.Values, evaluator: neighbours.Evaluator | None) -> dict[str, AxisValue]:
    """What an experiment has otherwise than a candidate; layouts that deal the layers alike are one."""
    world = evaluator.choice.cluster.world if evaluator else 0
    model = evaluator.space.model if evaluator else None
    there = neighbours.values_of(read_job(path, world, model).candidate)
    layout, stages = base["pipeline_layout"], int(base["pp"]) * int(base["vpp"])  # type: ignore[arg-type]
    assert isinstance(layout, Layout)
    plain = dict(base) | {"pipeline_layout": canonical(layout, model, stages)}
    return {name: value for name, value in there.items() if value != plain[name]}


def why_not(evaluator: neighbours.Evaluator, base: neighbours.Values, asked: Mapping[str, AxisValue]) -> WhyNot:
    """The answer for a candidate and the requested axes."""
    (alone,) = evaluator.try_out(base, [asked])
    misses = alone.is_legal and not alone.fits
    would_fit = tuple(single_changes(evaluator, alone.values, keep=frozenset(asked))) if misses else ()
    narrowed = evaluator.choice.with_axes([Axis(name=name, values=(value,)) for name, value in asked.items()])
    return WhyNot(asked=asked, alone=alone, chance=_chance(evaluator, narrowed), would_fit=would_fit)


def _chance(evaluator: neighbours.Evaluator, narrowed: ClusterChoice) -> Chance:
    funnel = Funnel(evaluator.space.on(narrowed), MOST_LOOKED_AT)
    enumerator = funnel.enumerators[0]
    seen, found = min(enumerator.size, MOST_ROWS), Findings.none(MOST_LOOKED_AT)
    best, figures = None, None
    if seen:
        found = funnel.evaluate(Task(number=0, cluster=0, start=0, stop=seen), OPEN)
        numbers = found.shortlist.top.indices if found.feasible else np.array([found.miss.index])
        best, figures = evaluator.best_of(enumerator.rows(numbers))
    removed = sorted(enumerator.removed.items(), key=lambda item: -item[1])
    return Chance(
        rows=enumerator.size,
        fitting=found.feasible,
        is_whole=seen == enumerator.size,
        best=best,
        figures=figures,
        removed=tuple((name, count, enumerator.reasons[name]) for name, count in removed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRow:
    """One row of the run under the changed inputs; ranks from 1."""

    rank: int
    was: int
    figures: neighbours.Figures
    row: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer: the candidate before and after, and the best rows in their new order.

    looked_at   rows of the run's ranking that were projected again; others were not
    dropped     of these, rows that are no longer legal or no longer fit
    """

    changes: tuple[str, ...]
    before: neighbours.Figures
    after: neighbours.Figures | None
    broken: tuple[neighbours.RuleViolation, ...]
    ranking: tuple[MovedRow, ...]
    looked_at: int
    dropped: int


def what_if(
    run: SavedRun, evaluator: neighbours.Evaluator, base: neighbours.Values, changes: Sequence[str], top: int
) -> WhatIf:
    """Change keys of the space file (`hardware.nic_GBps=100`, `nodes=16`) and project again; `top` rows are listed.

    Raises `InputError` for a key that cannot be changed, and for changes to the axes: that is what why-not asks.
    """
    changed = changed_space(run, changes)
    choice = _same(changed, evaluator.choice, evaluator.space)
    there = neighbours.Evaluator(changed, choice)
    broken = there.broken(base)
    after = None if broken else there.project([base])[0]
    numbers = [n for n, row in enumerate(run.ranking, start=1) if is_on(row, evaluator.choice)]
    rows = [run.ranking[n - 1] for n in numbers]
    every = [neighbours.values_of(Candidates.from_words({name: row[name] for name in COLUMN_NAMES})) for row in rows]
    legal = [int(i) for i in np.flatnonzero(there.still_legal(neighbours.table_of(every)))] if every else []
    ranking: list[MovedRow] = []
    if legal:
        anew = RankingTable.of(there, np.arange(len(legal)), neighbours.table_of([every[i] for i in legal]))
        order = [i for i in anew.order.tolist() if anew.projection.fits[i]]
        ranking = [
            MovedRow(
                rank=place,
                was=numbers[legal[i]],
                figures=neighbours.figures_of(anew.projection, i, float(anew.expected_shares[i])),
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
    return replace(space, clusters=tuple(one.with_axes(_same(run.space, one, space).axes) for one in space.clusters))


def _same(changed: Space, choice: ClusterChoice, space: Space) -> ClusterChoice:
    """The cluster of the changed space that stands for `choice`: with the same labels, or in the same place."""
    for one in changed.clusters:
        if choice.labels and one.labels == choice.labels:
            return one
    place = space.clusters.index(choice)
    return changed.clusters[place if len(changed.clusters) == len(space.clusters) else 0]
