"""Everything `primus-search explain` says about one candidate of a run, as data; `explain_text` prints it.

Each part is a question a person asks: what is it (configuration), where does the time go (step, traffic, bubble), where
the memory (per pipeline rank), what does each knob give (ablation), how sharp is the optimum (sensitivity), what would
make it faster (advice), why not something else, what if the machine were another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from primus_search.analysis.ablation import Ablation, Neighbour, ablations, steps
from primus_search.analysis.advice import Advice, advice
from primus_search.analysis.breakdown import Sent, Stages, busiest_rank, stages_of, timeline, traffic
from primus_search.analysis.coverage import Covered, coverage
from primus_search.analysis.kernel_evidence import kernel_evidence, sentence
from primus_search.cost.confidence.fit import fit_probability
from primus_search.cost.confidence.uncertainty import Confidence, confidence
from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.projection import Memory, Projection
from primus_search.exploration.expected import UnmeasuredGain, unmeasured_gain
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, figures_of, values_of
from primus_search.exploration.ranking_table import is_row_lost
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.evidence_files import load_ranges
from primus_search.schedule import Timeline
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.job import Job
from primus_search.values.layout import Layout


@dataclass(frozen=True)
class Explained:
    """One candidate of a run; its parts are worked out on demand."""

    run: SavedRun
    rank: int

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
        fits = fit_probability(self.job, self.one, self.projection.memory)
        return confidence(self.job, self.one, self.projection, fits)

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
    def ablations(self) -> list[Ablation]:
        kept = self.run.kept(self.space.clusters.index(self.choice))
        return ablations(self.evaluator, self.base, self.figures, kept)

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
    parts = {f"{f.name}_bytes": memory.__getattribute__(f.name) for f in fields(memory)} | {"total_bytes": memory.total}
    candidate = {name: e.row[name] for name in COLUMN_NAMES} | degrees
    return {
        "run": str(e.run.path),
        "space": e.space.name,
        "model": e.space.model.name,
        "cluster": dict(e.choice.labels) | {"nodes": e.choice.cluster.num_nodes, "gpus": e.choice.cluster.world},
        "candidate": candidate,
        "configuration": candidate,  # deprecated: its name until 0.1.0
        **{name: e.row.get(name) for name in OF_ROW},
        **{name: e.figures.__getattribute__(name) for name in OF_FIGURES},
        **{name: plain(e.__getattribute__(name)) for name in OF_CANDIDATE},
        "interval_runs": int(e.confidence.runs[0]),
        "ranked_memory_bytes": e.row["memory_bytes"],
        "ranked_headroom_bytes": e.row["headroom_bytes"],
        "step": {f"{name}_s": seconds for name, seconds in e.figures.step.items()} | {"total_s": e.figures.step_s},
        "busiest_pipeline_rank": e.busiest,
        "stages": stage_rows(e.stages),
        "memory": {f"{name}_bytes": size for name, size in e.figures.memory.items()}
        | {"total_bytes": e.figures.memory_bytes},
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
