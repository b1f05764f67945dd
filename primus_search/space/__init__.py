"""The space of training configurations: axes, legality rules, user constraints, enumeration in chunks."""

from primus_search.space.auto import auto_values, word_values
from primus_search.space.constraints import ConstraintError, parse
from primus_search.space.enumerate import Enumerator
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
    "ConstraintError",
    "Enumerator",
    "Override",
    "SearchSettings",
    "Space",
    "auto_values",
    "parse",
    "word_values",
]
