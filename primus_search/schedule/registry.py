"""All pipeline algorithms by name. A new one is a new file in `algorithms/` with one registered function:

    @register("gpipe", placement=Placement.LOOP, virtual_stages=(1,), summary="all forwards, then all backwards")
    def gpipe(request: Request) -> Table: ...

Being registered, it appears in `build`, in the command line and in the contract tests. Where a launcher of jobs runs an
order of its own under that name, that order is registered beside it under `launchers=("primus", ...)`: candidates are
priced with it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

import primus_search.schedule.algorithms as algorithms
from primus_search.base.errors import ScheduleError, did_you_mean
from primus_search.base.guards.files import table_beside
from primus_search.schedule.costs import Costs, Floats, StageCosts
from primus_search.schedule.simulation.timeline import peak_activations, simulate
from primus_search.schedule.table import Bools, Ints, Placement, Table, rank_of_stage
from primus_search.values.candidates import PipelineOrder

TOLERANCE = 1e-9
"""Slack when activations are compared with a limit: sums of 1/vpp are not exact in binary."""

UNIT_COSTS = Costs()
"""F = B = W = 1 and free communication: what an order is generated for when nobody gives costs."""


class Objective(StrEnum):
    """What a cost-aware algorithm makes least; the other one decides between equals.

    The span is the cost of the zero-bubble papers: what counts when the optimizer step is validated afterwards, so
    that a rank whose last pass is over can begin its next step. The makespan counts when all ranks wait for the last.
    """

    MAKESPAN = "makespan"
    SPAN = "span"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request to an algorithm; checked, with costs expanded to its own virtual stages.

    `memory_limit`: activations any rank may hold, in micro-batches through one full rank, released at W; infinite
    when not limited. `group`: micro-batches that travel through the chunks together (interleaved and gis).
    """

    name: str
    stages: int
    microbatches: int
    virtual_stages: int
    placement: Placement
    costs: StageCosts
    memory_limit: float
    group: int | None = None
    objective: Objective = Objective.MAKESPAN

    def refuse(self, reason: str) -> ScheduleError:
        """The error that says why this algorithm cannot serve this request."""
        shape = f"stages={self.stages}, microbatches={self.microbatches}, virtual_stages={self.virtual_stages}"
        return ScheduleError(f"{self.name} ({shape}): {reason}")

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Pipeline rank of every virtual stage; both copies, one after the other, when bidirectional."""
        return rank_of_stage(self.placement, self.stages, self.virtual_stages).astype(np.int64)

    @property
    def stages_of_rank(self) -> NDArray[np.int64]:
        """(ranks, stages) virtual stages of each rank, in the order a micro-batch meets them."""
        return np.argsort(self.ranks, kind="stable").reshape(self.stages, -1)

    @property
    def grain(self) -> float:
        """Times that differ by less are equal: float noise of an order's sums."""
        return 1e-11 * self.microbatches * float(self.costs.duration[:3].sum()) or 1.0

    def own_limit(self, units: float) -> float:
        """The memory a schedule defines for itself, or the caller's limit if that is tighter."""
        return min(self.memory_limit, units + TOLERANCE)

    def table(self, kind: NDArray[Any], stage: NDArray[Any], micro_batch: NDArray[Any]) -> Table:
        """A table of columns laid out rank after rank, every rank with as many passes, none of them overlapped."""
        return Table(
            name=self.name,
            stages=self.stages,
            microbatches=self.microbatches,
            virtual_stages=self.virtual_stages,
            placement=self.placement,
            offsets=np.arange(self.stages + 1, dtype=np.int64) * (len(kind) // self.stages),
            kind=kind,
            stage=stage,
            micro_batch=micro_batch,
            overlaps_next=np.zeros(len(kind), dtype=np.bool_),
        )


Serves = Callable[[Ints, Ints], Bools]
"""Whether there is an order for (stages, microbatches), element by element."""


def _any_shape(stages: Ints, microbatches: Ints) -> Bools:
    shape = np.broadcast_shapes(np.shape(stages), np.shape(microbatches))
    return np.ones(shape, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One registered algorithm.

    `launchers`: frameworks that run this very order under the name; empty: ours, the best order found.
    `virtual_stages`: the values it accepts, None for any. `splits_weight`: runs W apart from B. `cost_aware`: the
    order depends on the costs. `objective`: what it makes least unless told otherwise. `serves`: for which numbers of
    stages and micro-batches it has an order, element by element; `needs` says so in words. What it does not serve,
    legality drops.
    """

    name: str
    summary: str
    placement: Placement
    launchers: tuple[str, ...] = ()
    virtual_stages: tuple[int, ...] | None = (1,)
    splits_weight: bool = False
    cost_aware: bool = False
    objective: Objective = Objective.MAKESPAN
    serves: Serves = _any_shape
    needs: str = ""
    generate: Callable[[Request], Table]

    @property
    def family(self) -> str:
        """What engineers call its kind: zero bubble (W apart from B), interleaved (several chunks a rank), or 1F1B."""
        if self.splits_weight:
            return "zero bubble"
        return "1F1B" if self.virtual_stages == (1,) else "interleaved"


BEST = "best"
"""Not an algorithm: whichever of them is fastest within the memory limit."""

OURS = ""
"""The launcher of our own orders, which no framework builds by itself."""

_ALGORITHMS: dict[tuple[str, str], Algorithm] = {}
"""By launcher and name."""

ALIASES: dict[str, str] = table_beside(__file__)["aliases"]
"""Names of AMD Primus and what they mean here; see docs/schedules.md."""


Generate = Callable[[Request], Table]


def register(name: str, **traits: Any) -> Callable[[Generate], Generate]:
    """Make a generator known under a name, for all or for some launchers; `traits`: other fields of `Algorithm`."""

    def add(generate: Generate) -> Generate:
        added = Algorithm(name=name, generate=generate, **traits)
        for launcher in added.launchers or (OURS,):
            if (launcher, name) in _ALGORITHMS:
                raise ValueError(f"two algorithms are called {name!r}")
            _ALGORITHMS[launcher, name] = added
        return generate

    return add


@lru_cache(maxsize=1)
def _load() -> None:
    for module in pkgutil.iter_modules(algorithms.__path__):
        importlib.import_module(f"{algorithms.__name__}.{module.name}")


def names() -> tuple[str, ...]:
    """Every registered algorithm."""
    _load()
    return tuple(sorted(name for launcher, name in _ALGORITHMS if launcher == OURS))


def launchers() -> tuple[str, ...]:
    """Every launcher that runs orders of its own."""
    _load()
    return tuple(sorted({launcher for launcher, _ in _ALGORITHMS} - {OURS}))


def registered() -> Iterator[Algorithm]:
    """Every registered algorithm of ours, by name."""
    return (_ALGORITHMS[OURS, name] for name in names())


def algorithm(name: str, launcher: str = OURS) -> Algorithm:
    """The algorithm of a name or of an alias: the launcher's own where it has one, else ours."""
    _load()
    named = ALIASES.get(name, name)
    found = _ALGORITHMS.get((launcher, named)) or _ALGORITHMS.get((OURS, named))
    if found is None and ALIASES.get(name, name) == BEST:
        raise ScheduleError(f"{name!r} is a choice among schedules, not one of them; build() makes it")
    if found is None:
        near = did_you_mean(name, [*names(), *ALIASES])
        raise ScheduleError(f"no schedule is called {name!r}{near} - known: {', '.join(names())}")
    return found


class Asked(TypedDict):
    """A pipeline to build an order for.

    `virtual_stages=1` means "what the schedule is defined for", so V schedules need not be told their 2.
    `memory_limit` is in micro-batches through one full rank stage, activations released at W. `objective`: what the
    order makes least, where the algorithm has a choice; the makespan, for ZB-1p and ZB-2p the span as in their paper.
    `launcher`: the framework whose own order is wanted; ours where it has none of that name.
    """

    stages: int
    microbatches: int
    virtual_stages: NotRequired[int]
    costs: NotRequired[Costs]
    memory_limit: NotRequired[float | None]
    group: NotRequired[int | None]
    objective: NotRequired[Objective | None]
    launcher: NotRequired[str]


def make_request(name: str, **pipeline: Unpack[Asked]) -> tuple[Algorithm, Request]:
    """Check a request and expand it. Raises `ScheduleError` with the reason."""
    launcher = pipeline.get("launcher", OURS)
    if launcher not in (OURS, *launchers()):
        raise ScheduleError(
            f"{name}: launcher={launcher!r}; launchers with orders of their own: {', '.join(launchers())}"
        )
    chosen, memory_limit, objective = algorithm(name, launcher), pipeline.get("memory_limit"), pipeline.get("objective")
    counts = (pipeline["stages"], pipeline["microbatches"], pipeline.get("virtual_stages", 1))
    for label, value in zip(("stages", "microbatches", "virtual_stages"), counts, strict=True):
        if value != int(value) or value < 1:
            raise ScheduleError(f"{name}: {label}={value}; a count is a whole number of at least 1")
    stages, microbatches, virtual_stages = map(int, counts)
    if chosen.virtual_stages is not None and virtual_stages not in chosen.virtual_stages:
        if virtual_stages != 1:
            allowed = " or ".join(str(v) for v in chosen.virtual_stages)
            raise ScheduleError(f"{name}: virtual_stages={virtual_stages}; this schedule is defined for {allowed}")
        virtual_stages = chosen.virtual_stages[0]
    if memory_limit is not None and not memory_limit > 0:
        raise ScheduleError(f"{name}: memory_limit={memory_limit}; no pass can start without activations")
    request = Request(
        name=chosen.name,
        stages=stages,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        placement=chosen.placement,
        costs=pipeline.get("costs", UNIT_COSTS).per_stage(chosen.placement, stages, virtual_stages),
        memory_limit=np.inf if memory_limit is None else float(memory_limit),
        group=pipeline.get("group"),
        objective=chosen.objective if objective is None else Objective(objective),
    )
    return chosen, request


def build(name: str, **pipeline: Unpack[Asked]) -> Table:
    """The order of one algorithm. Raises `ScheduleError` with the reason when there is none."""
    if ALIASES.get(name, name) == BEST:
        return _best(pipeline)
    chosen, request = make_request(name, **pipeline)
    memory_limit = request.memory_limit
    if not chosen.serves(np.array(request.stages), np.array(request.microbatches)).all():
        raise request.refuse(chosen.needs)
    table = chosen.generate(request)
    if np.isfinite(memory_limit):
        peak = peak_activations(table, request.costs.activation)
        worst = int(peak.argmax())
        if peak[worst] > memory_limit + TOLERANCE:
            raise request.refuse(
                f"rank {worst} holds {peak[worst]:g} micro-batches of activations, the memory limit is {memory_limit:g}"
            )
    return table


def _best(pipeline: Asked) -> Table:
    """The fastest order of any algorithm that fits the memory limit."""
    best: tuple[float, Table] | None = None
    reasons = []
    single: Asked = {**pipeline, "virtual_stages": 1}
    for each in registered():
        try:
            table = build(each.name, **(pipeline if each.virtual_stages is None else single))
        except ScheduleError as error:
            reasons.append(str(error))
            continue
        makespan = simulate(table, pipeline.get("costs", UNIT_COSTS)).makespan
        if best is None or makespan < best[0] * (1.0 - TOLERANCE):
            best = (makespan, table)
    if best is None:
        raise ScheduleError("no schedule fits: " + "; ".join(reasons))
    return best[1]


@lru_cache(maxsize=512)
def order_for(order: PipelineOrder, microbatches: int) -> Table:
    """The order at unit costs, kept: a search calls for the same one again and again."""
    chosen = algorithm(order.schedule, order.launcher)
    if order.launcher and not chosen.launchers:
        return order_for(order._replace(launcher=OURS), microbatches)
    return build(
        order.schedule, stages=order.pp, microbatches=microbatches, virtual_stages=order.vpp,
        group=order.group or None, launcher=order.launcher,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def peak_activations_for(order: PipelineOrder, microbatches: int) -> Floats:
    """Highest activations per rank of the order at unit costs, released at W (read-only), kept."""
    peak = peak_activations(order_for(order, microbatches))
    peak.setflags(write=False)
    return peak


def ranks_of(order: PipelineOrder) -> NDArray[np.int64]:
    """Pipeline rank of every virtual stage, of both copies where the schedule holds the model twice."""
    if order.pp == 1:
        return np.zeros(order.vpp, dtype=np.int64)
    return rank_of_stage(algorithm(order.schedule, order.launcher).placement, order.pp, order.vpp).astype(np.int64)


def warm_up() -> None:
    """Compile every kernel, or load it from disk, so that the first question of a user is not the slow one."""
    for each in registered():
        for costs in (UNIT_COSTS, Costs(forward=1.0, backward=1.4, weight=0.6, comm=0.1)):
            stages = 2
            build(each.name, stages=stages, microbatches=4 * stages, costs=costs,
                  virtual_stages=2 if each.virtual_stages is None else 1)  # fmt: skip
