"""Neighbours of a candidate: is a changed configuration legal, does it fit, what is its rate, what had to follow.

The one engine behind ablation, sensitivity, advice, remedies, why-not, what-if and baselines. A `Evaluator` evaluates
configurations on one cluster of a space with the rules and the projection of the search.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.confidence.uncertainty import most_ratio
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.exploration.expected import RATE, expected_shares
from primus_search.schedule import algorithm
from primus_search.space import AXES, Axis, AxisValue, ClusterChoice, Enumerator, Space
from primus_search.space.auto import auto_values
from primus_search.space.context import Cells, GridJob, reads
from primus_search.space.rules import Rule, cautions_of, conditionals_of, rules_of
from primus_search.values.candidates import COLUMN_NAMES, Bools, Candidates, Floats, Ints, Recompute, spoken
from primus_search.values.knobs import KNOB

if TYPE_CHECKING:
    from primus_search.exploration.own_runs import OwnRuns
    from primus_search.values.measured_run import MeasuredRun

Values = Mapping[str, AxisValue]
"""One configuration: every axis with its typed value."""

MOST_FOLLOWING = 20_000
"""Combinations of followers that are looked through; beyond that only the first axes that follow are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleViolation:
    """A rule a configuration breaks, by name, and why it exists."""

    rule: str
    reason: str
    drops_doubles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one configuration; parts in seconds and bytes.

    expected_tokens_per_s_per_gpu  what configurations are compared by; tokens_per_s_per_gpu, step_s: projected
    """

    expected_tokens_per_s_per_gpu: float
    tokens_per_s_per_gpu: float
    step_s: float
    memory_bytes: float
    headroom_bytes: float
    bubble_ratio: float
    mfu: float
    microbatches: int
    dp: int
    step: Mapping[str, float]
    memory: Mapping[str, float]

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0.0

    @property
    def needed_bytes(self) -> float:
        """What has to fit: cached blocks are given back."""
        return self.memory_bytes - self.memory["allocator_slack"]

    @property
    def expected_step_s(self) -> float:
        """Seconds of a step at the expected rate."""
        return self.step_s * self.tokens_per_s_per_gpu / self.expected_tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration that was tried.

    changes   what differs from the candidate it is compared with, as words, the axes asked for first
    followed  those of them that were not asked for and had to follow
    broken    rules against the change; empty when it is legal (`figures` is then there)
    """

    values: Values
    changes: Mapping[str, Any]
    followed: tuple[str, ...] = ()
    broken: tuple[RuleViolation, ...] = ()
    figures: Figures | None = None

    @property
    def is_legal(self) -> bool:
        return self.figures is not None

    @property
    def fits(self) -> bool:
        return self.figures is not None and self.figures.fits

    def gain(self, base: Figures) -> float | None:
        """Of its expected rate over that of `base`, less 1; None where it is not legal."""
        if self.figures is None:
            return None
        return self.figures.expected_tokens_per_s_per_gpu / base.expected_tokens_per_s_per_gpu - 1.0


def word(axis: str, value: AxisValue) -> Any:
    """A value as ranking.csv writes it."""
    return KNOB[axis].word(value)


def values_of(one: Candidates, row: int = 0) -> dict[str, AxisValue]:
    """The typed values of a row of a table."""
    found: dict[str, AxisValue] = {name: column[row].item() for name, column in one.columns().items()}
    found["schedule"] = one.schedules[int(one.schedule[row])]
    found["pipeline_layout"] = one.layouts[int(one.pipeline_layout[row])]
    return found


def table_of(rows: Sequence[Values]) -> Candidates:
    """Configurations as one table."""
    schedules = tuple(dict.fromkeys(str(row["schedule"]) for row in rows))
    layouts = tuple(dict.fromkeys(row["pipeline_layout"] for row in rows))
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in AXES}
    columns["schedule"] = [schedules.index(str(row["schedule"])) for row in rows]
    columns["pipeline_layout"] = [layouts.index(row["pipeline_layout"]) for row in rows]
    return Candidates.table(schedules=schedules, layouts=layouts, **columns)  # type: ignore[arg-type]


def figures_of(projection: Projection, row: int, expected_share: float = 1.0) -> Figures:
    """One row of a projection; expected_share: of its expected rate over the projected one."""
    return next(_each_figures(projection.take(slice(row, row + 1)), np.array([expected_share])))


def _each_figures(p: Projection, expected_shares: Floats) -> Iterator[Figures]:
    """Figures of every row of a projection."""
    columns = {
        "expected_tokens_per_s_per_gpu": p.tokens_per_s_per_gpu * expected_shares,
        "tokens_per_s_per_gpu": p.tokens_per_s_per_gpu,
        "step_s": p.step.total,
        "memory_bytes": p.memory.total,
        **{name: p.__getattribute__(name) for name in ("headroom_bytes", "bubble_ratio", "mfu", "microbatches", "dp")},
    }
    return starmap(
        lambda own, step, memory: Figures(**own, step=step, memory=memory),
        zip(_rows_of(columns), _rows_of(p.step.columns()), _rows_of(p.memory.columns()), strict=True),
    )


def _rows_of(columns: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    """The rows of some columns as plain numbers by name."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return (dict(zip(columns, row, strict=True)) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConfiguration:
    """A baseline beside the winner of a search.

    rank        its place among the rows that fit; `is_rank_exact` False: estimated from random rows; 0 where unknown
    behind      by which share of the winner's rate it is slower
    fits        probability that it runs in device memory; a winner that is surer to fit may be slower
    broken      rules of the framework and the space that it breaks; `figures` is then None where it cannot be projected
    beyond      its values, in words, of axes that the search varies without them
    left_out    constraints of the space that leave it out
    pair        the two changes towards the winner that gain most, in words, and the figures with them
    notes       what its file has otherwise than the space, and what is not modelled
    """

    path: str
    values: Mapping[str, Any]
    rank: int = 0
    of: int = 0
    is_rank_exact: bool = True
    behind: float = 0.0
    fits: float = 1.0
    broken: tuple[RuleViolation, ...] = ()
    beyond: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    figures: Figures | None = None
    pair: Mapping[str, Any] = field(default_factory=dict)
    pair_figures: Figures | None = None
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """The content of `baseline` in run.json."""
        data = asdict(self)
        for name in ("figures", "pair_figures"):
            one = data[name]
            data[name] = one and {key: one[key] for key in (RATE, "tokens_per_s_per_gpu", "step_s", "memory_bytes")}
        return data


@dataclass(frozen=True)
class Evaluator:
    """Tries configurations on one cluster of a space.

    traced_shortfall_bytes  of configurations that re-validation showed not to fit, by their words: bytes to spare,
                            negative, in place of the projection's
    shared                  projector of this cluster that is there already; None: one is made where it is needed
    """

    space: Space
    choice: ClusterChoice
    traced_shortfall_bytes: Mapping[tuple[Any, ...], float] = field(default_factory=dict)
    shared: Projector | None = field(default=None, compare=False, repr=False)

    @cached_property
    def projector(self) -> Projector:
        """The projector of the cluster, with the tables of terms it has seen."""
        if self.shared is not None:
            return self.shared
        margin = self.space.search.memory_margin
        return Projector(self.space.job_on(self.choice), memory_margin=margin)

    def project(self, rows: Sequence[Values]) -> list[Figures]:
        """Figures of legal configurations."""
        return self.figures(table_of(rows)) if rows else []

    def figures(self, c: Candidates) -> list[Figures]:
        """Figures of every row of a table, its traced memory where re-validation showed that it does not fit."""
        projection, shown = self.projector.project(c), self.shown_not_to_fit(c)
        shares = self.expected_shares(c, projection)
        return list(map(_with_headroom, _each_figures(projection, shares), shown))

    def expected_shares(self, c: Candidates, projection: Projection) -> Floats:
        """Expected over projected rate of every row: the measured rate of one that was run, of others the stack's
        expectation and what own runs that they resemble left of it."""
        shares = expected_shares(self.projector, c, projection.step.total)
        if self.own_runs is not None:
            shares = shares * self.own_runs.ratios(c, projection)
            for row, rate in self.own_rates(c, projection).items():
                shares[row] = rate / projection.tokens_per_s_per_gpu[row]
        return shares

    @property
    def most_ratio(self) -> float:
        """A bound of `expected_shares` of rows that were not run."""
        job = self.projector.job
        return most_ratio(job.cluster, job.model) * (1.0 if self.own_runs is None else self.own_runs.most_ratio)

    @cached_property
    def own_runs(self) -> "OwnRuns | None":
        """Runs of this very job that the stack's own file holds; None of a stack that was not learned."""
        if not self.projector.job.stack.runs_file:
            return None
        from primus_search.declare.record_table import own_runs_of  # imports take 1 % of a first ranking
        from primus_search.exploration.own_runs import OwnRuns

        return OwnRuns.of(self.projector, own_runs_of(self.projector.job.stack), self.configured)

    def configured(self, run: "MeasuredRun") -> Candidates:
        """The configuration of a run: what its log does not print is as assumed where the space has that, otherwise of
        the first legal row of what the space has instead; as assumed where there is none."""
        values, free = values_of(run.candidates), [text.partition(" = ")[0] for text in run.assumed]
        own = {axis.name: axis.values for axis in self.choice.axes}
        lent = {name: own[name] for name in free if name in own}
        lent = {name: offered for name, offered in lent.items() if values[name] not in offered}
        if not lent:
            return run.candidates
        if "vpp" in lent:  # chunks decide the schedule
            lent["schedule"] = own["schedule"]
        axes = tuple(Axis(name=name, values=lent.get(name, (values[name],))) for name in AXES)
        enumerator = Enumerator(replace(self.space, clusters=(replace(self.choice, axes=axes),)))
        legal = enumerator.chunk(0, enumerator.size).candidates
        return legal.take(np.arange(1)) if len(legal) else run.candidates

    def own_rates(self, c: Candidates, projection: Projection) -> Mapping[int, float]:
        """Measured tokens/s/GPU of the rows that were run."""
        return {} if self.own_runs is None else self.own_runs.rates(c, projection)

    def shown_not_to_fit(self, c: Candidates) -> list[float | None]:
        """Bytes to spare, negative, of rows that re-validation showed not to fit; None of the others."""
        if not self.traced_shortfall_bytes:
            return [None] * len(c)
        return [self.traced_shortfall_bytes.get(tuple(row[name] for name in COLUMN_NAMES)) for row in c.rows()]

    def broken(self, values: Values) -> tuple[RuleViolation, ...]:
        """Every rule and constraint this configuration breaks, whatever the axes of the space offer."""
        return self._violated(values, self._rules)

    def cautions(self, values: Values) -> tuple[RuleViolation, ...]:
        """What the framework takes of this configuration and was reported to fail."""
        return self._violated(values, cautions_of(self.choice.framework))

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        return rules_of(self.choice.framework, self.space.constraints)

    def _violated(self, values: Values, rules: Sequence[Rule]) -> tuple[RuleViolation, ...]:
        job, cells = self._alone(values)
        broken = (rule for rule in rules if not bool(rule.keeps(job, cells)[0]))
        return tuple(RuleViolation(rule=r.name, reason=r.reason, drops_doubles=r.drops_doubles) for r in broken)

    def still_legal(self, rows: Candidates) -> Bools:
        """Which rows of a finished run are legal here as well: all at once, for rules that drop doubles aside."""
        listed: dict[str, Iterable[AxisValue]] = {name: np.unique(col).tolist() for name, col in rows.columns().items()}
        listed |= {"schedule": rows.schedules, "pipeline_layout": rows.layouts}
        axes = tuple(Axis(name=name, values=tuple(values)) for name, values in listed.items())
        job = self._job(axes)
        first = np.zeros(len(rows), dtype=np.int16)
        cells = Cells(job, rows.columns(), dict.fromkeys(AXES, first), len(rows))
        legal = np.ones(len(rows), dtype=np.bool_)
        for rule in self._rules:
            if not rule.drops_doubles:
                legal &= rule.keeps(job, cells)
        return legal

    def settled(self, values: Values) -> dict[str, AxisValue]:
        """The configuration with axes that do not matter there at their neutral value."""
        settled = dict(values)
        job, cells = self._alone(settled)
        for axis, is_active in conditionals_of(self.choice.framework):
            neutral = KNOB[axis].column_default
            if settled[axis] != neutral and not bool(is_active(job, cells)[0]):
                settled[axis] = neutral
                job, cells = self._alone(settled)
        return settled

    def beyond(self, values: Values) -> list[str]:
        """Axes whose value in this configuration no row of the space has: not offered, and not the neutral one of an
        axis that does not matter there."""
        missing = [axis for axis in self.choice.axes if values[axis.name] not in axis.values]
        reached = {axis.name: self.settled({**values, axis.name: axis.values[0]})[axis.name] for axis in missing}
        return [name for name, value in reached.items() if value != values[name]]

    def try_out(self, base: Values, every: Sequence[Values], *, may_follow: bool = True) -> list[Trial]:
        """`base` with each of some changes; other axes (`Knob.followers`) follow only where the rules want it."""
        changed = [{**base, **_wanted(base, requested)} for requested in every]
        settled: list[Values] = list(map(self.settled, changed))
        broken = list(map(self.broken, settled))
        legal = iter(self.project([values for values, rules in zip(settled, broken, strict=True) if not rules]))
        found = []
        for requested, wanted, values, rules in zip(every, changed, settled, broken, strict=True):
            figures = None if rules else next(legal)
            if rules and may_follow and (near := self._with_followers(base, wanted, requested)):
                values, figures = near
            changes = _changes(base, requested, values)
            followed = tuple(name for name in changes if name not in requested)
            found.append(Trial(values=values, changes=changes, followed=followed, broken=rules, figures=figures))
        return found

    def _with_followers(self, base: Values, wanted: Values, requested: Values) -> tuple[Values, Figures] | None:
        """The nearest legal configuration: one that fits before one that does not, fewest changes, then fastest."""
        axes = self.follower_axes(base, wanted, requested)
        # Where nothing may follow, the grid is the one configuration whose broken rules are known.
        return self.nearest(axes, base, further=1) if any(len(values) > 1 for values in axes.values()) else None

    def follower_axes(self, base: Values, wanted: Values, requested: Values) -> dict[str, tuple[AxisValue, ...]]:
        """The wanted values with those that may follow the requested ones."""
        free = [axis for name in requested for axis in KNOB[name].followers if axis not in requested]
        axes: dict[str, tuple[AxisValue, ...]] = {name: (wanted[name],) for name in AXES}
        size = 1
        for axis in dict.fromkeys(free):
            values = self._choices(axis, base)
            if size * len(values) > MOST_FOLLOWING:
                break
            axes[axis], size = values, size * len(values)
        return axes

    def nearest(
        self, axes: Mapping[str, tuple[AxisValue, ...]], base: Values, *, further: int = 0
    ) -> tuple[Values, Figures] | None:
        """Of the legal rows of a grid on this cluster one that fits, then that of fewest changes, then the fastest.

        Rows with more changes than the least and `further` are not looked at.
        """
        grid = tuple(Axis(name=name, values=values) for name, values in axes.items())
        enumerator = Enumerator(self.space, replace(self.choice, axes=grid))
        candidates = enumerator.chunk(0, enumerator.size).candidates
        if not len(candidates):
            return None
        coded: Mapping[str, tuple[Any, ...]] = {"schedule": candidates.schedules, "pipeline_layout": candidates.layouts}
        own = {**base, **{name: values.index(base[name]) for name, values in coded.items() if base[name] in values}}
        distance = np.sum([column != own[name] for name, column in candidates.columns().items()], axis=0)
        near = np.flatnonzero(distance <= distance.min() + further)
        return self.best_of(candidates.take(near), distance[near])

    def best_of(self, table: Candidates, distance: Ints | int = 0) -> tuple[dict[str, AxisValue], Figures]:
        """Of legal rows one that fits, then that of the least distance, then the fastest to expect."""
        projection, shown = self.projector.project(table), self.shown_not_to_fit(table)
        misses = (projection.headroom_bytes < 0) | np.array([one is not None for one in shown])
        shares = self.expected_shares(table, projection)
        order = np.lexsort((projection.step.total / shares, np.broadcast_to(distance, len(table)), misses))
        best = int(order[0])
        figures = figures_of(projection, best, float(shares[best]))
        return values_of(table, best), _with_headroom(figures, shown[best])

    def _choices(self, axis: str, base: Values) -> tuple[AxisValue, ...]:
        """Values a follower may take: its own, those of the space, and not being used."""
        own = [base[axis], *self.choice.axis(axis).values, *([] if axis == "pp" else [KNOB[axis].off])]
        if axis == "schedule":
            own += ["interleaved"]
            return tuple(dict.fromkeys(algorithm(str(name)).name for name in own))
        return tuple(dict.fromkeys(own))

    def _alone(self, values: Values) -> tuple[GridJob, Cells]:
        """A grid of one configuration."""
        job = self._job(tuple(Axis(name=name, values=(values[name],)) for name in AXES))
        columns = {name: job.column_values(name) for name in AXES}
        return job, Cells(job, columns, {name: np.zeros(1, dtype=np.int16) for name in AXES}, 1)

    def _job(self, axes: tuple[Axis, ...]) -> GridJob:
        """The job of this cluster with some axes."""
        return GridJob.on(self.choice, self.space, axes)


def _with_headroom(figures: Figures, headroom_bytes: float | None) -> Figures:
    """Figures with other bytes to spare where they are given; their parts stay those of the projection."""
    if headroom_bytes is None:
        return figures
    more = figures.headroom_bytes - headroom_bytes
    return replace(figures, memory_bytes=figures.memory_bytes + more, headroom_bytes=headroom_bytes)


def _wanted(base: Values, requested: Values) -> dict[str, AxisValue]:
    """The requested axes with those that are part of such a change."""
    wanted = dict(requested)
    if "tp" in requested and "sequence_parallel" not in requested:
        had = bool(base["sequence_parallel"]) or base["tp"] == 1
        wanted["sequence_parallel"] = int(requested["tp"]) > 1 and had  # type: ignore[arg-type]
    if "recompute" in requested and int(requested["recompute"]) != Recompute.FULL:  # type: ignore[arg-type]
        wanted |= {"recompute_num_layers": 0, "recompute_method": 0}
    return wanted


def _changes(base: Values, requested: Iterable[str], values: Values) -> dict[str, Any]:
    """What differs from the base, as words, the requested axes first."""
    order = [*requested, *(name for name in AXES if name not in requested)]
    return {name: word(name, values[name]) for name in order if values[name] != base[name]}


def change_text(trial: Trial) -> str:
    """The changes in a few words: `pp=4 (with vpp=2)`."""
    requested = [f"{name}={spoken(value)}" for name, value in trial.changes.items() if name not in trial.followed]
    followed = [f"{name}={spoken(trial.changes[name])}" for name in trial.followed]
    return ", ".join(requested) + (f" (with {', '.join(followed)})" if followed else "")


MOST_TRIED = 200_000
"""Combinations of freed axes that are looked through; beyond that only the first axes are free."""


def nearest_legal(
    evaluator: Evaluator, values: Values, broken: Sequence[RuleViolation]
) -> tuple[Values, Figures] | None:
    """The legal configuration for the evaluator's framework with the fewest changes; None where none is near."""
    rules = {rule.name: rule for rule in rules_of(evaluator.choice.framework)}
    freed: dict[str, None] = {}
    for one in broken:
        if one.rule in rules:
            freed |= dict.fromkeys(name for name in AXES if name in reads(rules[one.rule].reads))
    for name in list(freed):
        freed |= dict.fromkeys(KNOB[name].followers)
    axes: dict[str, tuple[AxisValue, ...]] = {name: (values[name],) for name in AXES}
    size = 1
    for name in freed:
        choices = _words_near(evaluator, name, values)
        if size * len(choices) > MOST_TRIED:
            continue
        axes[name], size = choices, size * len(choices)
    return evaluator.nearest(axes, values)


def _words_near(evaluator: Evaluator, name: str, values: Values) -> tuple[AxisValue, ...]:
    """Its own value, those of the space, the plain one, and what the framework has."""
    own = auto_values(
        name, evaluator.space.model, evaluator.choice.cluster, evaluator.space.workload, evaluator.choice.framework
    )
    found = [values[name], *evaluator.choice.axis(name).values, KNOB[name].off, *own]
    if name == "schedule":
        found += list(evaluator.choice.framework.schedules)
    return tuple(dict.fromkeys(found))
