"""What would make a configuration fit: single further changes, each checked against the rules and the memory model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from primus_search.base.units import GB
from primus_search.exploration.trials import Figures, Judge, Trial, Values, said, table_of
from primus_search.space import AxisValue
from primus_search.values.knobs import KNOBS, Kind

DEGREES = tuple(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)
MORE_NODES = (2, 4, 8, 16)
"""How many times as many nodes are tried; the first that suffices is named."""


def single_changes(judge: Judge, values: Values, *, keep: frozenset[str] = frozenset()) -> Iterator[str]:
    """Changes after which it fits, cheapest in speed first: a smaller memory margin before them, more nodes behind.

    Axes in `keep` stay as they are: they are what somebody asked for.
    """
    figures = judge.project([values])[0]
    hbm, margin = judge.choice.cluster.accelerator.hbm_bytes, judge.space.search.memory_margin
    spare = margin * hbm + figures.headroom_bytes
    if spare >= 0:
        yield f"memory_margin={spare / hbm:.3f} instead of {margin}"
    fitting = [(trial, figures) for trial, figures in _tried(judge, values, keep) if figures.fits]
    fitting.sort(key=lambda pair: pair[1].expected_step_s)
    yield from dict.fromkeys(said(trial) for trial, _ in fitting)
    yield from _more_nodes(judge, values)


def closest_change(judge: Judge, values: Values) -> str:
    """Of changes none of which makes it fit, the one that saves most, and what it still misses; empty without any."""
    needed = judge.project([values])[0].headroom_bytes
    saving = [(figures.headroom_bytes, said(trial)) for trial, figures in _tried(judge, values, frozenset())]
    most, change = max(saving, default=(needed, ""))
    return f"{change} still misses {-most / GB:.2f} GB" if most > needed else ""


def cheapest_saving(judge: Judge, values: Values, least_bytes: float) -> tuple[Trial, Figures] | None:
    """The fastest legal single change that takes so many bytes less, with its figures; None where none does."""
    needed = float(judge.projector.memory_bytes(table_of([values]))[0])  # projected, as that of the changes is
    saving = [pair for pair in _tried(judge, values, frozenset()) if needed - pair[1].memory_bytes >= least_bytes]
    return min(saving, key=lambda pair: pair[1].expected_step_s, default=None)


def _tried(judge: Judge, values: Values, keep: frozenset[str]) -> list[tuple[Trial, Figures]]:
    """Legal single changes that leave the axes in `keep` alone, with what they make of it."""
    trials = [judge.try_out(values, change) for change in _changes(values) if not keep & set(change)]
    return [(t, t.figures) for t in trials if t.figures is not None and t.changes and not keep & set(t.changes)]


def _changes(values: Values) -> Iterator[Mapping[str, AxisValue]]:
    yield from ({knob.name: value} for knob in KNOBS for value in knob.relief)
    yield from ({name: 2 * int(values[name])} for name in DEGREES)  # type: ignore[arg-type]


def _more_nodes(judge: Judge, values: Values) -> Iterator[str]:
    cluster = judge.choice.cluster
    for factor in MORE_NODES:
        larger = replace(cluster, num_nodes=factor * cluster.num_nodes)
        there = Judge(judge.space, replace(judge.choice, cluster=larger))
        if not there.broken(values) and there.project([values])[0].fits:
            yield f"nodes={larger.num_nodes}"
            return
