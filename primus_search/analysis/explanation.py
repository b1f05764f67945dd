"""Everything `primus-search explain` says about one candidate of a run, as data; `explain_text` prints it.

Each part is a question a person asks: what is it (configuration), where does the time go (step, traffic, bubble), where
the memory (per pipeline rank), what does each knob give (ablation), how sharp is the optimum (sensitivity), what would
make it faster (advice), why not something else, what if the machine were another.

What each knob of a candidate gives, and how sharp the optimum is.

Ablation: a knob switched off alone, and with everything else tuned again. Sensitivity: one step to each side on every
axis of the space, everything else as it is.

Two figures per knob. `alone`: the candidate with that knob off (and what the rules make follow), projected again.
`tuned`: the best candidate of the whole search that does without the knob, from the rows the run kept; it answers
"what would I lose if the cluster could not do this", and equals a search run without the knob.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from primus_search.analysis.advice import Advice, advice
from primus_search.cost.breakdown import Sent, Stages, busiest_rank, stages_of, timeline, traffic
from primus_search.cost.confidence.coverage import Covered, coverage, kernel_evidence, sentence
from primus_search.cost.confidence.uncertainty import Confidence, confidence
from primus_search.cost.memory import memory_by_rank
from primus_search.cost.projection import Memory, Projection
from primus_search.declare.evidence_files import load_ranges
from primus_search.exploration.expected import RATE, UnmeasuredGain, unmeasured_gain
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, figures_of, values_of, word
from primus_search.exploration.result import is_row_lost
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.schedule import Timeline, algorithm
from primus_search.space import AXES, AxisValue, ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.job import Job
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
    every = [_ablation(evaluator, base, figures, kept, knob) for knob in used]
    found = [one for one in every if one.alone.changes]  # a knob that is idle where it stands changes nothing
    return sorted(found, key=lambda one: -(one.gain if one.gain is not None else float("-inf")))


def _ablation(evaluator: Evaluator, base: Values, figures: Figures, kept: Kept, knob: str) -> Ablation:
    off, rate = KNOB[knob].off, figures.expected_tokens_per_s_per_gpu
    alone = evaluator.try_out(base, {knob: off})
    gain = rate / alone.figures.expected_tokens_per_s_per_gpu - 1.0 if alone.figures else None
    row = kept.best(knob, word(knob, off))
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
    found = []
    for axis in AXES:
        if axis in ("schedule", "vpp", "pipeline_layout") and base["pp"] == 1:
            continue
        for value, is_in_space in _neighbours(axis, evaluator.space, base[axis]):
            trial = evaluator.try_out(base, {axis: value})
            if not trial.changes:
                continue  # the axis does not matter here
            gain = trial.gain(figures)
            behind = None if gain is None else -gain
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


@dataclass(frozen=True)
class Explained:
    """One candidate of a run; its parts are worked out when they are asked for.

    opened  the kept rows of its cluster, where they have been read before
    """

    run: SavedRun
    rank: int
    opened: Kept | None = None

    @cached_property
    def one(self) -> Candidates:
        return self.run.candidate(self.rank)

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The row of ranking.csv."""
        return self.run.row(self.rank)

    @cached_property
    def space(self) -> Space:
        return self.run.space

    @cached_property
    def choice(self) -> ClusterChoice:
        return self.run.cluster(self.rank)

    @cached_property
    def evaluator(self) -> Evaluator:
        return self.run.evaluator(self.choice)

    @cached_property
    def job(self) -> Job:
        return self.evaluator.projector.job

    @cached_property
    def projection(self) -> Projection:
        return self.evaluator.projector.project(self.one)

    @cached_property
    def confidence(self) -> Confidence:
        """Interval and probability of fitting of this candidate alone."""
        return confidence(self.job, self.one, self.projection)

    @cached_property
    def coverage(self) -> tuple[Covered, ...]:
        """Which parts of its projection rest on measured ranges."""
        return coverage(self.job, self.one, self.figures.memory_bytes, load_ranges())

    @cached_property
    def unmeasured_gain(self) -> UnmeasuredGain | None:
        """What rests on switches that no run of the model on this device had on together."""
        return unmeasured_gain(self.evaluator.projector, self.one)

    @cached_property
    def measured_kernels(self) -> str:
        """What share of its kernels lies in the device's measured table; empty without a table."""
        return sentence(kernel_evidence(self.job, self.one))

    @cached_property
    def base(self) -> Values:
        return values_of(self.one)

    @cached_property
    def figures(self) -> Figures:
        share = self.evaluator.expected_shares(self.one, self.projection)
        return figures_of(self.projection, 0, float(share[0]))

    @property
    def is_lost(self) -> bool:
        """Whether re-validation showed that it does not fit."""
        return is_row_lost(self.row)

    @cached_property
    def stages(self) -> Stages:
        return stages_of(self.job, self.one)

    @cached_property
    def busiest(self) -> int:
        """The pipeline rank whose compute the step's parts show."""
        return busiest_rank(self.stages, self.one)

    @cached_property
    def traffic(self) -> list[Sent]:
        return traffic(self.job, self.one, self.stages, self.projection)

    @cached_property
    def timeline(self) -> Timeline | None:
        """When every pass runs; None without a pipeline."""
        return timeline(self.job, self.stages, self.one, self.figures.microbatches)

    @cached_property
    def memory_by_rank(self) -> Memory:
        """Columns over pipeline ranks."""
        return memory_by_rank(self.job, self.one)

    @cached_property
    def kept(self) -> Kept:
        if self.opened is not None:
            return self.opened
        number = self.space.clusters.index(self.choice)
        return Kept.open(self.run.path, number, is_exact=bool(self.run.facts["exact"]))

    @cached_property
    def ablations(self) -> list[Ablation]:
        return ablations(self.evaluator, self.base, self.figures, self.kept)

    @cached_property
    def steps(self) -> list[Neighbour]:
        return steps(self.evaluator, self.base, self.figures)

    @cached_property
    def advice(self) -> list[Advice]:
        return advice(self.evaluator, self.base, self.figures)


def explain(run: SavedRun, rank: int) -> Explained:
    """The candidate of that rank, from 1. Raises `InputError` where the run or the rank cannot be used."""
    found = Explained(run, rank)
    run.cluster(rank)  # asked first: what cannot be used is said before anything is worked out
    return found


# What `--json` takes of the row of ranking.csv, of the figures projected anew, and of `Explained` itself.
OF_ROW = (
    "tokens_per_s_per_gpu_low", "tokens_per_s_per_gpu_high", "ties_with_best", "fit_probability", "memory_verdict",
    "expected_tokens_per_s_per_gpu", "time_evidence", "memory_evidence",
)  # fmt: skip
OF_FIGURES = ("tokens_per_s_per_gpu", "mfu", "bubble_ratio", "headroom_bytes")
OF_CANDIDATE = ("rank", "is_lost", "coverage", "measured_kernels", "unmeasured_gain", "traffic", "advice")


def as_data(e: Explained) -> dict[str, Any]:
    """Everything as plain data: what `--json` prints."""
    memory, degrees = e.memory_by_rank, {"dp": e.figures.dp, "microbatches": e.figures.microbatches}
    parts = {f.name: memory.__getattribute__(f.name) for f in fields(memory)} | {"total_bytes": memory.total}
    return {
        "run": str(e.run.path),
        "space": e.space.name,
        "model": e.space.model.name,
        "cluster": dict(e.choice.labels) | {"nodes": e.choice.cluster.num_nodes, "gpus": e.choice.cluster.world},
        "configuration": {name: e.row[name] for name in COLUMN_NAMES} | degrees,
        **{name: e.row.get(name) for name in OF_ROW},
        **{name: e.figures.__getattribute__(name) for name in OF_FIGURES},
        **{name: plain(e.__getattribute__(name)) for name in OF_CANDIDATE},
        "interval_runs": int(e.confidence.runs[0]),
        "ranked_memory_bytes": e.row["memory_bytes"],
        "ranked_headroom_bytes": e.row["headroom_bytes"],
        "step": {**e.figures.step, "total_s": e.figures.step_s},
        "busiest_pipeline_rank": e.busiest,
        "stages": stage_rows(e.stages),
        "memory": {**e.figures.memory, "total_bytes": e.figures.memory_bytes},
        "memory_by_rank": [{name: float(part[r]) for name, part in parts.items()} for r in range(len(memory.total))],
        "ablation": plain(e.ablations),
        "sensitivity": plain(e.steps),
    }


PASSES = ("forward_s", "recompute_s", "input_grad_s", "weight_grad_s")


def stage_rows(s: Stages) -> list[dict[str, Any]]:
    """One row per virtual stage: where it lives, what it holds, seconds of one micro-batch."""
    return [
        {
            "stage": i,
            "pipeline_rank": int(s.rank[i]),
            "layers": int(s.layers[i]),
            **{name: float(s.__getattribute__(name)[i]) for name in PASSES},
        }
        for i in range(len(s.counts))
    ]


def plain(value: Any) -> Any:
    """Dataclasses as mappings, arrays as lists, layouts as words: what JSON knows."""
    if isinstance(value, Trial):
        return {
            "changes": dict(value.changes),
            "followed": list(value.followed),
            "broken": [{"rule": one.rule, "reason": one.reason} for one in value.broken],
            "legal": value.is_legal,
            "fits": value.fits,
            "figures": plain(value.figures),
        }
    if isinstance(value, Layout):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(value.__getattribute__(f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
