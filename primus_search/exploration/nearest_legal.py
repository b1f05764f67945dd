"""The nearest configuration that a framework can start, for one that it cannot."""

from collections.abc import Mapping
from dataclasses import dataclass

from primus_search.exploration.trials import Broken, Figures, Judge, Values
from primus_search.space import AXES, AxisValue
from primus_search.space.auto import auto_values
from primus_search.space.context import reads
from primus_search.space.framework_rules import rules_of
from primus_search.values.knobs import KNOB

MOST_TRIED = 200_000
"""Combinations of freed axes that are looked through; beyond that only the first axes are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestLegal:
    """A legal configuration with the fewest changes; of those one that fits, then the fastest."""

    changes: Mapping[str, AxisValue]
    figures: Figures


def nearest_legal(judge: Judge, values: Values, broken: tuple[Broken, ...]) -> NearestLegal | None:
    """The nearest configuration that is legal for the judge's framework; None where none is near."""
    rules = {rule.name: rule for rule in rules_of(judge.choice.framework)}
    freed: dict[str, None] = {}
    for one in broken:
        if one.rule in rules:
            freed |= dict.fromkeys(name for name in AXES if name in reads(rules[one.rule].reads))
    for name in list(freed):
        freed |= dict.fromkeys(KNOB[name].followers)
    axes: dict[str, tuple[AxisValue, ...]] = {name: (values[name],) for name in AXES}
    size = 1
    for name in freed:
        choices = _choices(judge, name, values)
        if size * len(choices) > MOST_TRIED:
            continue
        axes[name], size = choices, size * len(choices)
    found = judge.nearest(axes, values)
    if found is None:
        return None
    changes = {name: value for name, value in found[0].items() if value != values[name]}
    return NearestLegal(changes=changes, figures=found[1])


def _choices(judge: Judge, name: str, values: Values) -> tuple[AxisValue, ...]:
    """Its own value, those of the space, the plain one, and what the framework has."""
    own = auto_values(name, judge.space.model, judge.choice.cluster, judge.space.workload, judge.choice.framework)
    found = [values[name], *judge.space.axis(name).values, KNOB[name].off, *own]
    if name == "schedule":
        found += list(judge.choice.framework.schedules)
    return tuple(dict.fromkeys(found))
