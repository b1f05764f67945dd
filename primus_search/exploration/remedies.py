"""What would make a configuration fit: smaller margins, single changes, more nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import floor

from primus_search.base.units import GB
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, change_text, figures_of, table_of
from primus_search.space import AxisValue
from primus_search.values.knobs import KNOBS, Kind

DEGREES = tuple(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)
MORE_NODES = (2, 4, 8, 16)
"""How many times as many nodes are tried; the first that suffices is named."""


def single_changes(evaluator: Evaluator, values: Values, *, keep: frozenset[str] = frozenset()) -> Iterator[str]:
    """Changes after which it fits, cheapest in speed first: a smaller memory margin before them, more nodes behind.

    Axes in `keep` stay as they are: they are what somebody asked for.
    """
    figures = evaluator.project([values])[0]
    hbm, margin = evaluator.choice.cluster.accelerator.hbm_bytes, evaluator.space.search.memory_margin
    spare = margin * hbm + figures.headroom_bytes
    if spare >= 0:
        yield f"memory_margin={_rounded_down(spare / hbm)} instead of {margin}"
    fitting = [(trial, figures) for trial, figures in _tried(evaluator, values, keep) if figures.fits]
    fitting.sort(key=lambda pair: pair[1].expected_step_s)
    yield from dict.fromkeys(change_text(trial) for trial, _ in fitting)
    yield from _more_nodes(evaluator, values)


def _rounded_down(share: float) -> str:
    """A share of the memory with three digits, never more than it is: a margin with which a candidate still fits."""
    return f"{floor(share * 1e3) / 1e3:.3f}"


def closest_change(evaluator: Evaluator, values: Values) -> str:
    """Of changes none of which makes it fit, the one that saves most, and what it still misses; empty without any."""
    needed = evaluator.project([values])[0].headroom_bytes
    saving = [(figures.headroom_bytes, change_text(trial)) for trial, figures in _tried(evaluator, values, frozenset())]
    most, change = max(saving, default=(needed, ""))
    return f"{change} still misses {-most / GB:.2f} GB" if most > needed else ""


def cheapest_saving(evaluator: Evaluator, values: Values, least_bytes: float) -> Trial | None:
    """The fastest legal single change after which so many bytes less are needed; None where none does."""
    needed = figures_of(evaluator.projector.project(table_of([values])), 0).needed_bytes  # projected, as of the changes
    saving = [pair for pair in _tried(evaluator, values, frozenset()) if needed - pair[1].needed_bytes >= least_bytes]
    return min(saving, key=lambda pair: pair[1].expected_step_s)[0] if saving else None


def _tried(evaluator: Evaluator, values: Values, keep: frozenset[str]) -> list[tuple[Trial, Figures]]:
    """Legal single changes that leave the axes in `keep` alone, with what they make of it."""
    trials = evaluator.try_out(values, [change for change in _reliefs(values) if not keep & set(change)])
    return [(t, t.figures) for t in trials if t.figures is not None and t.changes and not keep & set(t.changes)]


def _reliefs(values: Values) -> Iterator[Mapping[str, AxisValue]]:
    yield from ({knob.name: value} for knob in KNOBS for value in knob.relief)
    yield from ({name: 2 * int(values[name])} for name in DEGREES)  # type: ignore[arg-type]


def _more_nodes(evaluator: Evaluator, values: Values) -> Iterator[str]:
    cluster = evaluator.choice.cluster
    for factor in MORE_NODES:
        larger = replace(cluster, num_nodes=factor * cluster.num_nodes)
        there = Evaluator(evaluator.space, replace(evaluator.choice, cluster=larger))
        if not there.broken(values) and there.project([values])[0].fits:
            yield f"nodes={larger.num_nodes}"
            return
