"""What each knob of a candidate gives, and how sharp the optimum is.

Ablation: a knob switched off alone, and with everything else tuned again. Sensitivity: one step to each side on every
axis of the space, everything else as it is.

Two figures per knob. `alone`: the candidate with that knob off (and what the rules make follow), projected again.
`tuned`: the best candidate of the whole search that does without the knob, from the rows the run kept; it answers
"what would I lose if the cluster could not do this", and equals a search run without the knob.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, word
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.schedule import algorithm
from primus_search.space import AXES, AxisValue, ClusterChoice
from primus_search.values.knobs import KNOB, KNOBS, WORDED
from primus_search.values.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One knob of the candidate.

    used, off       its value, and the value that stands for not using it
    alone           the candidate without it, what had to follow included; None where nothing near is legal
    gain            tokens/s with the knob over without it, less 1; None where nothing near is legal
    tuned_gain      likewise against the best kept row without the knob; None where the run kept none
    least_tuned     with no such row though the space offers some: at least this, as the slowest kept row says
    """

    knob: str
    used: Any
    off: Any
    alone: Trial
    gain: float | None
    tuned_gain: float | None
    tuned: Mapping[str, Any] | None
    least_tuned: float | None


def ablations(evaluator: Evaluator, base: Values, figures: Figures, kept: Kept) -> list[Ablation]:
    """Every knob the candidate uses, what it gives first."""
    used = [k.name for k in KNOBS if not k.detail_of and base[k.name] != k.off]
    trials = evaluator.try_out(base, [{knob: KNOB[knob].off} for knob in used])
    found = [
        _ablation(evaluator, base, figures, kept, knob, alone)
        for knob, alone in zip(used, trials, strict=True)
        if alone.changes  # a knob that is idle where it stands changes nothing
    ]
    return sorted(found, key=lambda one: -(one.gain if one.gain is not None else float("-inf")))


def _ablation(evaluator: Evaluator, base: Values, figures: Figures, kept: Kept, knob: str, alone: Trial) -> Ablation:
    off, rate = KNOB[knob].off, figures.expected_tokens_per_s_per_gpu
    gain = rate / alone.figures.expected_tokens_per_s_per_gpu - 1.0 if alone.figures else None
    row = kept.best(knob, word(knob, off))
    tuned = rate / row[RATE] - 1.0 if row else None
    # No row that was not kept expects more than the slowest projection of those that were.
    is_beyond = row is None and kept.is_exact and off in evaluator.choice.axis(knob).values
    least = rate / kept.slowest - 1.0 if is_beyond else None
    return Ablation(
        knob=knob,
        used=word(knob, base[knob]),
        off=word(knob, off),
        alone=alone,
        gain=gain,
        tuned_gain=tuned,
        tuned=row,
        least_tuned=least,
    )


# Numbers that are doubled and halved where the space has no neighbour to offer.
DOUBLED = frozenset(knob.name for knob in KNOBS if knob.is_doubled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One step away on one axis. `behind`: share of expected tokens/s lost (negative: faster); None: not legal."""

    axis: str
    trial: Trial
    is_in_space: bool
    behind: float | None


def steps(evaluator: Evaluator, base: Values, figures: Figures) -> list[Neighbour]:
    """Every step, axis by axis."""
    idle = ("schedule", "vpp", "pipeline_layout") if base["pp"] == 1 else ()
    every = [
        (axis, value, is_in_space)
        for axis in AXES
        if axis not in idle
        for value, is_in_space in _neighbours(axis, evaluator.choice, base[axis])
    ]
    trials = evaluator.try_out(base, [{axis: value} for axis, value, _ in every])
    found = []
    for (axis, _, is_in_space), trial in zip(every, trials, strict=True):
        gain = trial.gain(figures)
        behind = None if gain is None else -gain
        if trial.changes:  # else the axis does not matter here
            found.append(Neighbour(axis=axis, trial=trial, is_in_space=is_in_space, behind=behind))
    return found


def _neighbours(axis: str, choice: ClusterChoice, value: AxisValue) -> Iterator[tuple[AxisValue, bool]]:
    values = list(choice.axis(axis).values)
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
