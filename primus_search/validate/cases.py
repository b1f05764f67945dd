"""One measured run as something to project: model, cluster with its stack, workload and a table of one candidate.

    transformer   the model, from sizes and family       machine   accelerator, network, stack with its switches
    knobs         the candidate                          words     the vocabulary of published tables

Nothing is looked up by model name except what no column says (MLA sizes, sliding windows, MTP, biases): those follow
from the family, and a family nobody knows is treated as the plain case. A run that lacks a needed value is skipped
with the reason, never guessed; what had to be assumed (a stack for a source nobody knows) is said.
"""

import math
from dataclasses import dataclass

from primus_search.candidates import Candidates, degrees
from primus_search.cluster import Cluster
from primus_search.layout import stage_layers
from primus_search.model import Model
from primus_search.validate import words
from primus_search.validate.knobs import build_candidates
from primus_search.validate.machine import build_cluster, build_hardware, build_stack, imbalance
from primus_search.validate.rows import Run, Skipped
from primus_search.validate.transformer import build_model
from primus_search.workload import Workload

MOST_PASSES = 4_000_000
"""Passes of a pipeline (stages times micro-batches) beyond which a row is a slip of the pen: the largest published
runs have 10^5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that can be projected, the keys it is scored under, and what had to be assumed about it.

    measured: tokens/s/GPU; NaN where a run publishes its memory alone, or only whether it fitted.
    """

    run: Run
    model: Model
    cluster: Cluster
    workload: Workload
    candidates: Candidates
    measured: float
    assumed: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[str, str]:
        """What is left out together: source and model."""
        return self.run.word("source"), self.run.word("model")

    @property
    def duplicate_key(self) -> tuple[object, ...]:
        """Runs with the same key are near-duplicates (releases, weak-scaling ladders) and count once."""
        r = self.run
        shape = tuple(r.number(name) for name in ("tp", "pp", "cp", "ep", "mbs"))
        return (r.word("model"), r.word("gpu"), *shape, r.word("precision"))

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """As measured."""
        return self.measured


def build_case(run: Run, *, may_lack_rate: bool = False, supposed: str = "") -> Case:
    """The case of a run. Raises `Skipped` with the reason.

    may_lack_rate: a measured memory is enough, or the word that it ran or ran out of memory.
    supposed: the stack to project it with, whatever the run says.
    """
    if not run.is_complete:
        raise Skipped("marked incomplete")
    if words.trains_adapters(f"{run.word('model')} {run.word('flags')}".lower()):
        raise Skipped("only adapters are trained, which is not modelled")
    model = build_model(run)
    hardware = build_hardware(run)
    stack, assumed = build_stack(run, hardware, supposed)
    cluster = build_cluster(run, hardware, stack)
    seq, batch = run.count("seq_len"), run.count("gbs")
    candidates = build_candidates(run, model, stack)
    if words.setting(run.word("flags"), "pp_layout") == words.OF_RECIPE and candidates.pp[0] > 1:
        assumed = (*assumed, f"pp_layout=recipe read as {candidates.layouts[0]}")
    workload = Workload(
        seq_length=seq,
        global_batch_size=batch,
        routing_imbalance=imbalance(run, stack),
        document_length=words.document_length(f"{run.word('flags')} {run.word('notes')} {run.word('source')}".lower()),
        experts_in_turn=words.deals_experts_in_turn(f"{run.word('flags')} {run.word('notes')}".lower()),
    )
    _must_divide(model, cluster, candidates, batch)
    return Case(
        run=run,
        model=model,
        cluster=cluster,
        workload=workload,
        candidates=candidates,
        measured=_measured(run, workload, cluster, may_lack_rate=may_lack_rate),
        assumed=assumed,
    )


def _measured(run: Run, workload: Workload, cluster: Cluster, *, may_lack_rate: bool) -> float:
    """Tokens/s/GPU as published, or from the time of a step; NaN for a run that only says whether it fitted."""
    if run.ran_out:
        if may_lack_rate:
            return math.nan
        raise Skipped("ran out of memory")
    rate, step_s = run.number("tokens_per_s_per_gpu") or 0.0, run.number("step_time_s") or 0.0
    if rate > 0.0:
        return rate
    if step_s > 0.0:
        return workload.tokens_per_step / step_s / cluster.world
    if may_lack_rate and (run.ran or (run.number("peak_mem_gb") or 0.0) > 0.0):
        return math.nan
    raise Skipped("no measured tokens/s/GPU, nor the time of a step")


def _must_divide(model: Model, cluster: Cluster, candidates: Candidates, batch: int) -> None:
    d = degrees(candidates, world=cluster.world, global_batch_size=batch)
    if not d.is_whole[0]:
        raise Skipped(f"{cluster.world} GPUs and global batch {batch} do not divide by the degrees given")
    stages = int(candidates.pp[0] * candidates.vpp[0])
    if stages * int(d.microbatches[0]) > MOST_PASSES:
        raise Skipped(f"{d.microbatches[0]} micro-batches through {stages} stages are beyond any training run")
    if stage_layers(model, stages, candidates.layouts[0]) is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")


__all__ = ["Case", "Skipped", "build_case"]
