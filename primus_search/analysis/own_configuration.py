"""The configuration somebody runs now, as a row of a finished search: its rank, its distance, what makes most of it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.cost.confidence.fit import fit_probability
from primus_search.exploration.neighbours import Evaluator, Figures, OwnConfiguration, Values, table_of, values_of, word
from primus_search.exploration.result import ClusterResult, SearchResult
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.recipes import is_recipe, recipes
from primus_search.launch.refusals import refused
from primus_search.launch.world import nodes_of
from primus_search.learning.logged_job import read_job
from primus_search.space import AXES, Enumerator
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.knobs import KNOB, KNOBS, Enters, StateFormat
from primus_search.values.machine.stack import number_of
from primus_search.values.machine.state_formats import is_stacks_own
from primus_search.values.model import Model
from primus_search.values.model.shape import shape

# Axes that change together: one order of the pipeline.
PIPELINE = tuple(knob.name for knob in KNOBS if knob.enters == Enters.PIPELINE)
# Rows of the space that are projected to estimate a rank beyond the rows that were kept, in runs of so many.
SAMPLES, BLOCK = 8192, 64


def baseline_of(result: SearchResult, path: Path) -> OwnConfiguration:
    """A file's experiment in the ranking of a search's best cluster. Raises `InputError` where it cannot be read."""
    found, space = result.best, result.space
    world = found.choice.cluster.world
    trained = read_job(path, world).model
    experiment = read_job(path, world, space.model)
    evaluator = replace(found.evaluator, space=replace(space.on(found.choice), constraints=()))
    own = evaluator.settled(values_of(experiment.candidate))
    if is_stacks_own(found.choice.cluster.stack, experiment.row["state_format"]):
        own["state_format"] = StateFormat.STACK
    of_framework = evaluator.broken(own)
    broken = tuple(rule for rule in of_framework if not rule.drops_doubles)
    outcome = OwnConfiguration(
        path=str(path),
        values={name: word(name, value) for name, value in own.items()},
        of=found.feasible,
        broken=broken,
        beyond={name: word(name, own[name]) for name in evaluator.beyond(own)},
        left_out=tuple(one.reason for one in found.evaluator.broken(own) if one not in of_framework),
        notes=(*_otherwise(experiment, result, trained), *experiment.not_modelled),
    )
    if broken:
        return outcome
    figures = evaluator.project([own])[0]
    best = values_of(found.ranking.candidates, 0)
    winner, rate = evaluator.project([best])[0], figures.expected_tokens_per_s_per_gpu
    behind = 1.0 - rate / winner.expected_tokens_per_s_per_gpu
    outcome = replace(outcome, figures=figures, behind=behind, fits=_fits(evaluator, table_of([own])))
    if figures.fits:
        rank, is_exact = _rank(found, evaluator, rate)
        outcome = replace(outcome, rank=rank, is_rank_exact=is_exact)
    pair, with_pair = _best_pair(evaluator, own, best, figures)
    return replace(outcome, pair=pair, pair_figures=with_pair)


def must_be_readable(path: Path) -> None:
    """Raise `InputError` before a search where its baseline cannot be read."""
    if not path.is_file() and not is_recipe(path):
        what = f"no such file, and no recipe of Megatron-Bridge{did_you_mean(path.name, recipes())}"
        raise InputError([Problem(f"--baseline {path}", what)])
    read_job(path, 1)


def _otherwise(experiment: Experiment, result: SearchResult, trained: Model | None) -> list[str]:
    workload, model = result.space.workload, result.space.model
    pairs = (
        ("sequence", experiment.seq_length, workload.seq_length),
        ("global batch", experiment.global_batch_size, workload.global_batch_size),
    )
    notes = [f"its {name} is {own}; judged with {ours}" for name, own, ours in pairs if own not in (None, ours)]
    cluster, started = result.best.choice.cluster, experiment.world
    nodes, per_node = nodes_of(started, cluster.network.gpus_per_node) if started else (0, 0)
    if started and (nodes, per_node) != (cluster.num_nodes, cluster.network.gpus_per_node):
        notes.append(
            f"it starts {nodes} x {per_node} GPUs; judged on {cluster.num_nodes} x {cluster.network.gpus_per_node}"
        )
    stack, title = cluster.stack, experiment.framework.title
    differs = {name: value for name, value in experiment.numbers.items() if number_of(stack, name) != value}
    notes += [
        f"its settings make {name} {value}; judged with {number_of(stack, name)}" for name, value in differs.items()
    ]
    world, device = nodes * per_node or cluster.world, cluster.accelerator.capability
    problems = refused(experiment.framework.name, experiment.written, world, device)
    notes += [f"{title} does not start it: {one}" for one in problems]
    framework = result.best.choice.framework
    if not framework.is_any and framework.launcher != experiment.framework.launcher:
        notes.append(f"a job of {experiment.framework.title}; judged by the rules of {framework.title}")
    if trained is not None and shape(trained) != shape(model):
        notes.append(f"its model is {trained.name}; judged with {model.name}")
    return notes


def _expected(evaluator: Evaluator, table: Candidates) -> Floats:
    """Expected tokens/s/GPU of every row."""
    projection = evaluator.projector.project(table)
    return projection.tokens_per_s_per_gpu * evaluator.expected_shares(table, projection)


def _fits(evaluator: Evaluator, one: Candidates) -> float:
    """Probability that a configuration runs in device memory."""
    memory = evaluator.projector.project(one).memory
    return float(fit_probability(evaluator.projector.job, one, memory)[0])


def _rank(found: ClusterResult, evaluator: Evaluator, rate: float) -> tuple[int, bool]:
    """The rank of an expected rate among the rows that fit: counted where the kept rows reach it, else estimated."""
    kept = found.ranking.expected_rate
    faster = int(np.count_nonzero(kept > rate))
    if faster < len(kept) or len(kept) >= found.feasible:
        return faster + 1, True
    share = _faster_share(evaluator, rate)
    return max(round(share * found.feasible), faster) + 1, False


def _faster_share(evaluator: Evaluator, rate: float) -> float:
    """Share of the rows that fit that are faster, of random rows of the space."""
    enumerator = Enumerator(evaluator.space)
    rng = np.random.default_rng(evaluator.space.search.seed)
    starts = rng.integers(0, max(enumerator.size - BLOCK, 1), SAMPLES // BLOCK)
    faster = fitting = 0
    for start in starts.tolist():
        candidates = enumerator.chunk(start, start + BLOCK).candidates
        if len(candidates):
            fits = evaluator.projector.project(candidates).headroom_bytes >= 0
            fitting += int(np.count_nonzero(fits))
            faster += int(np.count_nonzero(fits & (_expected(evaluator, candidates) > rate)))
    return faster / fitting if fitting else 0.0


def _best_pair(
    evaluator: Evaluator, own: Values, best: Values, before: Figures
) -> tuple[Mapping[str, Any], Figures | None]:
    """The one or two changes to the winner's values that are legal and gain most, those that fit first."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in AXES:
        if own[name] != best[name]:
            head = "schedule" if name in PIPELINE else KNOB[name].detail_of or name
            groups[head] = (*groups.get(head, ()), name)
    found: tuple[Values, Figures, tuple[str, ...]] | None = None
    least = (before.fits, before.expected_tokens_per_s_per_gpu)
    heads = [*combinations(groups, 2), *((one,) for one in groups)]
    every = [{name: best[name] for head in one for name in groups[head]} for one in heads]
    for trial in evaluator.try_out(own, every, may_follow=False):
        if trial.figures is not None and (trial.fits, trial.figures.expected_tokens_per_s_per_gpu) > least:
            least = trial.fits, trial.figures.expected_tokens_per_s_per_gpu
            found = trial.values, trial.figures, tuple(trial.changes)
    if found is None:
        return {}, None
    values, figures, changed = found
    return {name: word(name, values[name]) for name in changed}, figures
