"""How sharp the optimum is: one step to each side on every axis of the space, everything else as it is.

Axes whose values have an order move to the next smaller and the next larger value; axes of words (schedule, precision,
sharding, layout ...) to every other value of the space.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values
from primus_search.schedule import algorithm
from primus_search.space import AXES, AxisValue, Space
from primus_search.values.knobs import KNOBS, WORDED
from primus_search.values.layout import Layout

DOUBLED = frozenset(knob.name for knob in KNOBS if knob.is_doubled)
"""Numbers that are doubled and halved where the space has no neighbour to offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One step away on one axis. `behind`: share of expected tokens/s lost (negative: faster); None: not legal."""

    axis: str
    trial: Trial
    is_in_space: bool
    behind: float | None


def steps(evaluator: Evaluator, base: Values, figures: Figures) -> list[Neighbour]:
    """Every step, axis by axis."""
    found = []
    for axis in AXES:
        if axis in ("schedule", "vpp", "pipeline_layout") and base["pp"] == 1:
            continue
        for value, is_in_space in _neighbours(axis, evaluator.space, base[axis]):
            trial = evaluator.try_out(base, {axis: value})
            if not trial.changes:
                continue  # the axis does not matter here
            behind = None
            if trial.figures is not None:
                behind = 1.0 - trial.figures.expected_tokens_per_s_per_gpu / figures.expected_tokens_per_s_per_gpu
            found.append(Neighbour(axis=axis, trial=trial, is_in_space=is_in_space, behind=behind))
    return found


def _neighbours(axis: str, space: Space, value: AxisValue) -> Iterator[tuple[AxisValue, bool]]:
    values = list(space.axis(axis).values)
    if axis == "schedule":
        values = list(dict.fromkeys(algorithm(str(name)).name for name in values))
    if axis in WORDED:
        yield from ((other, True) for other in values if other != value)
        return
    numbers = [int(v) for v in values if not isinstance(v, Layout | str)]
    here = int(value)  # type: ignore[arg-type]
    below, above = [v for v in numbers if v < here], [v for v in numbers if v > here]
    kind = bool if isinstance(value, bool) else int
    if below:
        yield kind(max(below)), True
    elif axis in DOUBLED and here > 1 and here % 2 == 0:
        yield here // 2, False
    if above:
        yield kind(min(above)), True
    elif axis in DOUBLED:
        yield here * 2, False
