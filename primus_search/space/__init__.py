"""The space of training configurations: axes, legality rules, user constraints, enumeration in chunks."""

from primus_search.space.types import (
    AXES,
    Axis,
    AxisValue,
    BenchmarkSettings,
    ClusterChoice,
    Constraint,
    Override,
    SearchSettings,
    Space,
)

__all__ = [
    "AXES",
    "Axis",
    "AxisValue",
    "BenchmarkSettings",
    "ClusterChoice",
    "Constraint",
    "Override",
    "SearchSettings",
    "Space",
]
