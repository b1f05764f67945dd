"""What each knob of a candidate gives: switched off alone, and with everything else tuned again.

Two figures per knob. `alone`: the candidate with that knob off (and what the rules make follow), projected again.
`tuned`: the best candidate of the whole search that does without the knob, from the rows the run kept; it answers
"what would I lose if the cluster could not do this", and equals a search run without the knob.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from primus_search.analysis.kept_rows import Kept
from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, word
from primus_search.values.candidates import Bools
from primus_search.values.knobs import KNOB, KNOBS


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
    every = [_ablation(evaluator, base, figures, kept, knob) for knob in used]
    found = [one for one in every if one.alone.changes]  # a knob that is idle where it stands changes nothing
    return sorted(found, key=lambda one: -(one.gain if one.gain is not None else float("-inf")))


def _ablation(evaluator: Evaluator, base: Values, figures: Figures, kept: Kept, knob: str) -> Ablation:
    off, rate = KNOB[knob].off, figures.expected_tokens_per_s_per_gpu
    alone = evaluator.try_out(base, {knob: off})
    gain = rate / alone.figures.expected_tokens_per_s_per_gpu - 1.0 if alone.figures else None
    row = kept.best(_without(knob, word(knob, off)))
    tuned = rate / row[RATE] - 1.0 if row else None
    # No row that was not kept expects more than the slowest projection of those that were.
    is_beyond = row is None and kept.is_exact and off in evaluator.space.axis(knob).values
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


def _without(knob: str, off: Any) -> Callable[[Kept], Bools]:
    return lambda kept: np.asarray(kept.column(knob) == off, dtype=np.bool_)
