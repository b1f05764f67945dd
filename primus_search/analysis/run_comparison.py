"""Two runs side by side: which inputs differ, what the winner and the frontier did, and which input moved the number.

The attribution starts at A's winner under A's inputs and puts in B's inputs one group after the other (model, workload,
accelerator, network, stack, nodes); each step is a projection, so the steps add up to the whole difference. What is
left between A's winner and B's winner, both under B's inputs, is the choice of another configuration.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from primus_search.base.errors import InputError
from primus_search.base.units import GB
from primus_search.exploration.exhaustive.shortlist import dominated_area
from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator, Figures, Values, values_of, word
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.plain_forms import differences, to_plain
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.machine.cluster import Cluster

Row = Mapping[str, Any]

HIDDEN = frozenset({"source", "name"})  # fields whose change changes no figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One input that differs: where, and both values."""

    what: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFigure:
    """What one group of inputs did to A's winner: expected tokens/s/GPU before and after; None: not legal then.

    parts: what every part of the step became longer, as shares of the step before
    """

    group: str
    before: float
    after: float | None
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def change(self) -> float | None:
        """Relative change of tokens/s/GPU; None where one side is not legal."""
        return self.after / self.before - 1.0 if self.after and self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed and why.

    figures       name -> (A, B) of the winners, and of the frontiers
    winner        axes in which the winners differ: name -> (A, B)
    moved         the attribution, in order; empty with `unexplained` where a run's inputs are gone
    recorded      A's winner as A recorded it, and as it is projected today; differs when code or data changed since
    """

    a: str
    b: str
    inputs: tuple[Difference, ...]
    figures: Mapping[str, tuple[float, float]]
    winner: Mapping[str, tuple[Any, Any]]
    moved: tuple[MovedFigure, ...]
    recorded: tuple[float, float] | None
    unexplained: str


def compare(a: SavedRun, b: SavedRun, rank_a: int = 1, rank_b: int = 1) -> Comparison:
    """Compare a row of each of two finished runs. Raises `InputError` where one of them cannot be read at all."""
    inputs = list(_facts(a, b))
    moved: list[MovedFigure] = []
    recorded, unexplained = None, ""
    try:
        inputs += _spaces(a.space, a.cluster(rank_a), b.space, b.cluster(rank_b))
        moved, today = _attribution(a, rank_a, b, rank_b)
        recorded = (float(a.row(rank_a)[RATE]), today)
    except InputError as error:
        unexplained = f"cannot attribute the difference: {error}"
    best_a, best_b = a.row(rank_a), b.row(rank_b)
    return Comparison(
        a=str(a.path),
        b=str(b.path),
        inputs=tuple(inputs),
        figures=_figures(a, best_a, b, best_b),
        winner={n: (best_a[n], best_b[n]) for n in COLUMN_NAMES if best_a[n] != best_b[n]},
        moved=tuple(moved),
        recorded=recorded,
        unexplained=unexplained,
    )


SHOWN = (
    RATE,
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "step_s",
    "memory_bytes",
    "headroom_bytes",
    "bubble_ratio",
    "mfu",
)


def _figures(a: SavedRun, best_a: Row, b: SavedRun, best_b: Row) -> dict[str, tuple[float, float]]:
    found = {name: (float(best_a[name]), float(best_b[name])) for name in SHOWN}
    most_memory = max((row["memory_bytes"] for row in (*a.frontier, *b.frontier)), default=0.0)
    volumes = [hypervolume(run.frontier, most_memory) for run in (a, b)]
    counts = {name: (float(a.facts[name]), float(b.facts[name])) for name in ("raw", "legal", "feasible")}
    return found | {"frontier_hypervolume": (volumes[0], volumes[1])} | counts


def hypervolume(rows: Sequence[Row], most_memory: float) -> float:
    """Area that a frontier dominates, in (expected tokens/s/GPU) x GB, up to the most memory of either."""
    memory, rate = (np.array([row[name] for row in rows]) for name in ("memory_bytes", RATE))
    return dominated_area(memory, rate, most_memory) / GB


# --- inputs ----------------------------------------------------------------------------------------------------------


def _facts(a: SavedRun, b: SavedRun) -> Iterator[Difference]:
    """What the run files say of themselves: versions, method, hashes."""
    for name in ("space", "source", "space_sha256", "method", "exact", "seed", "engine"):
        if a.facts.get(name) != b.facts.get(name):
            yield Difference(what=name, a=a.facts.get(name), b=b.facts.get(name))
    both = {**a.facts["versions"], **b.facts["versions"]}
    for package in both:
        left, right = a.facts["versions"].get(package), b.facts["versions"].get(package)
        if left != right:
            yield Difference(what=f"version of {package}", a=left, b=right)


def _spaces(a: Space, on_a: ClusterChoice, b: Space, on_b: ClusterChoice) -> Iterator[Difference]:
    """Every input that a figure depends on, leaf by leaf."""
    one_of_each = (
        ("model", a.model, b.model),
        ("workload", a.workload, b.workload),
        ("cluster", on_a.cluster, on_b.cluster),
        ("search", a.search, b.search),
    )
    for name, one, other in one_of_each:
        for leaf in differences(to_plain(one), to_plain(other), (name,)):
            if leaf.path[-1] not in HIDDEN:
                yield Difference(what=leaf.name, a=_plain(leaf.before), b=_plain(leaf.after))
    for left, right in zip(on_a.axes, on_b.axes, strict=True):
        if left.values != right.values:
            words = [[word(left.name, value) for value in axis.values] for axis in (left, right)]
            yield Difference(what=f"axis {left.name}", a=words[0], b=words[1])
    rules = [[constraint.text for constraint in space.constraints] for space in (a, b)]
    if rules[0] != rules[1]:
        yield Difference(what="constraints", a=rules[0], b=rules[1])


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# --- attribution -----------------------------------------------------------------------------------------------------


def _attribution(a: SavedRun, rank_a: int, b: SavedRun, rank_b: int) -> tuple[list[MovedFigure], float]:
    """Steps from A's winner under A's inputs to B's winner under B's; and A's winner as it is projected today."""
    space, cluster = a.space, a.cluster(rank_a).cluster
    other, machine = b.space, b.cluster(rank_b).cluster
    winner, best = values_of(a.candidate(rank_a)), values_of(b.candidate(rank_b))
    first = here = _projected(space, cluster, winner)
    moved: list[MovedFigure] = []
    for name in ("model", "workload", "accelerator", "network", "stack", "num_nodes"):
        ours, theirs = (space, other) if name in ("model", "workload") else (cluster, machine)
        put_in = {name: theirs.__getattribute__(name)}
        if ours.__getattribute__(name) == put_in[name]:
            continue
        if ours is space:
            space = replace(space, **put_in)
        else:
            cluster = replace(cluster, **put_in)
        after = _projected(space, cluster, winner)
        moved.append(_moved(name.removeprefix("num_"), here, after))
        here = after or here
    if cluster != machine:
        after = _projected(space, machine, winner)
        moved.append(_moved("site", here, after))
        here = after or here
    if winner != best:
        moved.append(_moved("another configuration wins", here, _projected(other, machine, best)))
    return moved, first.expected_tokens_per_s_per_gpu if first else 0.0


def _moved(group: str, before: Figures | None, after: Figures | None) -> MovedFigure:
    """The change from one projection to another."""
    parts = {}
    if before is not None and after is not None:
        parts = {name: (after.step[name] - s) / before.step_s for name, s in before.step.items()}
    rates = [None if one is None else one.expected_tokens_per_s_per_gpu for one in (before, after)]
    return MovedFigure(group=group, before=rates[0] or 0.0, after=rates[1], parts=parts)


def _projected(space: Space, cluster: Cluster, values: Values) -> Figures | None:
    """Figures of one configuration; None where the rules forbid it there."""
    # Constraints and memory margins say what may be chosen, not how fast it is.
    evaluator = Evaluator(replace(space, constraints=()), ClusterChoice(cluster=cluster))
    return None if evaluator.broken(values) else evaluator.project([values])[0]
