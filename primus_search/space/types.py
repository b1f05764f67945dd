"""The question of a search: axes with their values, the clusters to choose from, constraints, settings.

Values are already typed here: counts are int, switches bool, low-precision recipes `Fp8` and so on, schedules names
and pipeline layouts `Layout`. `declare` turns a file into this; `enumerate` turns this into candidates.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.job import Job
from primus_search.values.layout import Layout
from primus_search.values.machine.cluster import UNFAILING, UNMETERED, Cluster, Power, Reliability
from primus_search.values.machine.framework import ANY_FRAMEWORK, Framework
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

AxisValue = int | bool | str | Layout
"""One choice. Enums of `candidates` (Fp8, Recompute, ...) are ints; only `schedule` holds strings."""

AXES: tuple[str, ...] = COLUMN_NAMES
"""Every axis a space has, named as the column of `Candidates` it fills."""

Method = Literal["auto", "exhaustive", "tpe", "nsga2", "nsga3", "gp", "qmc", "random"]
Objective = Literal["auto", "tokens_per_s_per_gpu", "tokens_per_s", "tokens_per_dollar", "tokens_per_joule", "days"]
"""By what several clusters are ranked; on one cluster all say the same. `auto`: see `Space.objective`."""
Numerics = Literal["safe", "usual", "any"]
"""Which changes of the mathematics a search may make: none, those of usual recipes, or every one the device has."""
Device = Literal["auto", "off", "trace", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One knob and the values to try, in the order they were given; duplicates dropped.

    Some axes only matter under another knob's value (see `space.rules.CONDITIONALS`); elsewhere their column holds the
    default.
    """

    name: str
    values: tuple[AxisValue, ...]

    def __post_init__(self) -> None:
        if self.name not in AXES:
            raise ValueError(f"no axis is called {self.name!r}; known: {', '.join(AXES)}")
        if not self.values:
            raise ValueError(f"axis {self.name} has no values")
        object.__setattr__(self, "values", tuple(dict.fromkeys(self.values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """An expression the user wrote, and where; read by `space.constraints.parse`, never by `eval`."""

    text: str
    where: str = "constraint"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How to search.

    memory_margin      share of device memory kept free, 0.08 = 8 %
    budget_candidates  legal candidates that may be looked at; `auto` samples a larger space; 0 = no limit
    budget_seconds     wall seconds allowed; 0 = no limit
    budget_evaluations projections a sampled search may make; 0 = 2,000
    top_k              rows of the ranking that are re-validated and printed
    numerics           which low-precision recipes may be among the candidates
    min_fit            percent of probability of running in device memory below which a candidate is not ranked; between
                       0 and 90 the recommendation may be AT RISK; 0: all are ranked, and it FITS
    """

    method: Method = "auto"
    objective: Objective = "auto"
    memory_margin: float = 0.08
    budget_candidates: int = 0
    budget_seconds: float = 0.0
    budget_evaluations: int = 0
    top_k: int = 8
    seed: int = 0
    numerics: Numerics = "usual"
    min_fit: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory_margin < 1.0:
            raise ValueError("memory_margin is a share of device memory: at least 0 and below 1")
        if self.top_k < 1:
            raise ValueError("top_k is at least 1")
        if min(self.budget_candidates, self.budget_seconds, self.budget_evaluations) < 0:
            raise ValueError("a budget cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """How the best candidates are re-validated with torch: on which device, how many, for how long (seconds)."""

    device: Device = "auto"
    top_k: int = 4
    seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """One cluster to plan for, what is tried there, and what distinguishes it: `(("nodes", 32),)`.

    framework               what starts the job there      is_framework_assumed  neither space nor flag named it
    price_per_gpu_hour_USD  0 when neither hardware file nor space gives a price
    power                   watts of a device, 0 where they are unknown
    reliability             failures, restarts and checkpoints of long runs
    axes                    every axis once, with the values to try on this cluster; a space needs them
    reliefs                 axes left to `auto` with all values that take less memory for more time, tried where nothing
                            FITS on this cluster; `is_relieved`: they were
    """

    cluster: Cluster
    framework: Framework = ANY_FRAMEWORK
    is_framework_assumed: bool = False
    labels: tuple[tuple[str, int | float | str], ...] = ()
    price_per_gpu_hour_USD: float = 0.0  # noqa: N815 - USD is the unit
    reliability: Reliability = UNFAILING
    power: Power = UNMETERED
    axes: tuple[Axis, ...] = ()
    reliefs: tuple[Axis, ...] = ()
    is_relieved: bool = False

    def axis(self, name: str) -> Axis:
        """The axis of that name."""
        return next(axis for axis in self.axes if axis.name == name)

    def with_axes(self, axes: Sequence[Axis]) -> Self:
        """The same with other values on the axes given."""
        given = {axis.name: axis for axis in axes}
        return replace(self, axes=tuple(given.get(axis.name, axis) for axis in self.axes))

    def relieved(self) -> Self:
        """The same with the values of `reliefs` on their axes."""
        return replace(self.with_axes(self.reliefs), reliefs=(), is_relieved=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the training is to reach; zeros leave a part out.

    tokens       to train on                       within_days, budget_USD   for all of them
    chance       percent of probability with which the date and the budget are to be met
    """

    tokens: float = 0.0
    within_days: float = 0.0
    budget_USD: float = 0.0  # noqa: N815 - USD is the unit
    chance: float = 80.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a date or a budget to meet."""
        return self.within_days > 0.0 or self.budget_USD > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value that did not come from the file: which key, what it became, and what won (flag, environment)."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space, complete and typed: at least one cluster, each with every axis once.

    name      of the space, for reports         source  path of the file it came from, "" when built in Python
    sha256    of the file's text                clusters  one per combination of `nodes` and hardware axes
    notes     what reading the inputs has to say and is no fault (keys read but not used)
    """

    name: str
    model: Model
    workload: Workload
    clusters: tuple[ClusterChoice, ...]
    constraints: tuple[Constraint, ...] = ()
    search: SearchSettings = field(default_factory=SearchSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    goal: Goal = field(default_factory=Goal)
    overrides: tuple[Override, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.clusters:
            raise ValueError("a space needs at least one cluster")
        for choice in self.clusters:
            names = [axis.name for axis in choice.axes]
            missing, doubled = [n for n in AXES if n not in names], sorted({n for n in names if names.count(n) > 1})
            if missing or doubled:
                raise ValueError(f"a cluster has each axis once; missing {missing}, given twice {doubled}")

    @property
    def objective(self) -> Objective:
        """By what its clusters are ranked.

        `auto` with a date: the cheapest that meets it, in dollars where every cluster has a price, else in GPU hours;
        with a budget alone: the earliest; with neither: the highest rate per device.
        """
        if self.search.objective != "auto":
            return self.search.objective
        if self.goal.budget_USD and not self.goal.within_days:
            return "days"
        is_priced = all(one.price_per_gpu_hour_USD for one in self.clusters)
        return "tokens_per_dollar" if self.goal.is_limited and is_priced else "tokens_per_s_per_gpu"

    @property
    def cluster(self) -> Cluster:
        """The first (usually the only) cluster."""
        return self.clusters[0].cluster

    @property
    def job(self) -> Job:
        """What is projected on the first cluster."""
        return self.job_on(self.clusters[0])

    def job_on(self, choice: ClusterChoice) -> Job:
        """What is projected on one of the clusters."""
        return Job(self.model, choice.cluster, self.workload, choice.framework.launcher)

    @property
    def framework(self) -> Framework:
        """What starts jobs on the first (usually the only) cluster."""
        return self.clusters[0].framework

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the first (usually the only) cluster."""
        return self.clusters[0].axes

    def axis(self, name: str) -> Axis:
        """The axis of that name of the first (usually the only) cluster."""
        return self.clusters[0].axis(name)

    def relieved(self, places: Collection[int]) -> Self:
        """The same with the values of `reliefs` on the clusters at these places."""
        clusters = (one.relieved() if place in places else one for place, one in enumerate(self.clusters))
        return replace(self, clusters=tuple(clusters))

    def with_stacks(self, changed: Callable[[Stack], Stack]) -> Self:
        """The same with the stack of each cluster changed."""
        clusters = ((one, one.cluster, changed(one.cluster.stack)) for one in self.clusters)
        return self.on(*(replace(one, cluster=replace(cluster, stack=stack)) for one, cluster, stack in clusters))

    def on(self, *choices: ClusterChoice) -> Self:
        """The same space on one or some of its clusters."""
        return replace(self, clusters=choices)
