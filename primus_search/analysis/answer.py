"""The answer of a run: what to run, in words and figures, and the choices beside it, each with when to take it.

Decided once, after ranking and re-validation; the terminal, report.html, the notebook and later commands print it as it
stands in run.json (`exploration.answer_values`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from primus_search.analysis.choices import choices_of, faster_if_memory_saved
from primus_search.analysis.coverage import coverage
from primus_search.analysis.goals import goal_words, other_clusters
from primus_search.analysis.row_words import Row, in_words, number_format, precision_words
from primus_search.cost.confidence.fit import FITS
from primus_search.cost.confidence.uncertainty import TIE, Knowledge, knowledge, supposed_band
from primus_search.exploration.answer_values import Answer, Choice
from primus_search.exploration.expected import RATE, unmeasured_gain
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.ranking_table import MEASURED, RUN, RankingTable
from primus_search.exploration.result import SearchResult, traced_shortfall_bytes
from primus_search.files.evidence_files import load_ranges
from primus_search.files.framework_files import framework_names, load_framework
from primus_search.space import ClusterChoice, Space
from primus_search.values.job import Job
from primus_search.values.knobs import KNOB, KNOBS
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.workload import Workload

SITES = {
    Knowledge.FIRST_CONTACT: "first contact with this cluster",
    Knowledge.VENDOR: "a cluster that fits have seen",
    Knowledge.OWN_RUNS: "own runs learned",
}
"""What is known of the cluster, in words."""


def answered(result: SearchResult) -> SearchResult:
    """The result with its answer."""
    return result.with_answer(answer_of(result))


def answer_of(result: SearchResult) -> Answer:
    """What a search found, for its first screen."""
    best = result.best
    return decide(
        result.space,
        best.ranking,
        result.ranked_rows,
        best.evaluator,
        counts=_counts(result),
        several=len(result.clusters),
        remarks=(*result.space.notes, *result.notes),
        goal=goal_words(result),
        others=other_clusters(result),
    )


def decide(
    space: Space,
    ranking: RankingTable,
    rows: Sequence[Row],
    evaluator: Evaluator,
    *,
    counts: str,
    several: int,
    remarks: tuple[str, ...],
    goal: tuple[str, ...] = (),
    others: Mapping[int, str] | None = None,
) -> Answer:
    """The answer of a ranking whose rows, over all of `several` clusters, are `rows`.

    goal: how it meets the goal of the training; others: when to take rows of other clusters, by their places.
    """
    first, choice = rows[0], ranking.choice
    cluster, device = choice.cluster, choice.cluster.accelerator
    evaluator = replace(evaluator, traced_shortfall_bytes=traced_shortfall_bytes(rows, choice))
    choices = choices_of(rows, ranking.job, partial(faster_if_memory_saved, rows, evaluator), others or {})
    flops_per_s = first["mfu"] * device.bf16_peak_flops_per_s * first[RATE] / first["tokens_per_s_per_gpu"]
    word = number_format(first)
    best_of = f", the best of {several} clusters" if several > 1 else ""
    return Answer(
        job=f"{space.model.name}, {_billions(space.model)} | {cluster.world:,} {device.name} "
        f"({cluster.num_nodes:,} x {cluster.network.gpus_per_node}) | {choice.framework.title}, "
        f"stack {cluster.stack.title}",
        size=f"sequence {space.workload.seq_length:,}, global batch {space.workload.global_batch_size:,}{best_of}"
        f"{task_words(ranking.job)}{document_words(space.workload, first['micro_batch_size'])}",
        what=in_words(first),
        rate=first[RATE],
        low=first["tokens_per_s_per_gpu_low"],
        high=first["tokens_per_s_per_gpu_high"],
        flops_per_s=flops_per_s,
        peak_share=flops_per_s / _peak_flops_per_s(device, word),
        number_format=word,
        memory_bytes=first["memory_bytes"],
        device_bytes=device.hbm_bytes,
        verdict=first["memory_verdict"],
        fit_probability=first["fit_probability"],
        trust=_trust(ranking, evaluator),
        notes=_notes(space, choice, ranking, rows, choices),
        remarks=remarks,
        choices=choices,
        counts=counts,
        goal=goal,
    )


def _peak_flops_per_s(device: Accelerator, number_format: str) -> float:
    peaks = {"BF16": device.bf16_peak_flops_per_s, "FP4": device.fp4_peak_flops_per_s}
    return peaks.get(number_format, device.fp8_peak_flops_per_s) or device.bf16_peak_flops_per_s


def _billions(model: Any) -> str:
    total, active = model.total_params / 1e9, model.active_params / 1e9
    return f"{total:,.1f} B" if active >= total else f"{total:,.1f} B ({active:,.1f} B active)"


def document_words(workload: Workload, micro_batch_size: int) -> str:
    """How rows are filled from documents of different lengths, in words behind a comma; empty where all are as long."""
    if workload.lengths is None:
        return ""
    tokens, shares = workload.lengths.within(workload.seq_length)
    held = workload.filling(np.array([micro_batch_size]))
    padding = 1.0 - held.counted / float(held.computed[0])
    how = f"{workload.packing.replace('_', ' ')}{', balanced' if workload.balanced_packing else ''}"
    return f", documents of {tokens @ shares:,.0f} tokens ({how}): padding, not counted, is {padding:.1%} of the tokens"


def policy_words(workload: Workload) -> str:
    """How a policy is trained, in brackets: passes beside training, reference, memory and seconds of rollouts."""
    policy = workload.policy
    assert policy is not None
    found = [f"{workload.forward_passes:g} forward passes a row beside training", f"reference {policy.reference}"]
    if workload.parts.has_critic:
        found.append("a critic of the policy's size")
    if policy.gpu_memory_utilization:
        found.append(f"{policy.gpu_memory_utilization:.0%} of memory held by rollouts")
    if workload.parts.has_rollouts:
        found.append(f"rollouts {policy.rollout_s:g} s" if policy.rollout_s else "rollouts not in the step")
    return f" ({', '.join(found)})"


def task_words(job: Job) -> str:
    """What a job trains, in words behind a comma: the task, and of adapters the rank and the parameters; empty for
    pre-training."""
    workload, model = job.workload, job.model
    of_policy = f", {workload.task.upper()}{policy_words(workload)}" if workload.policy else ""
    if workload.adapters is None:
        return ", SFT of all weights" if workload.task == "sft" else of_policy
    base = "" if workload.adapters.base.name == "bf16" else f" beside {workload.adapters.base.name} weights"
    name = "QLoRA" if workload.adapters.base.is_packed else "LoRA"
    millions = model.trained_params / 1e6
    trained = f"{millions:,.1f} M of {model.total_params / 1e9:,.1f} B trained"
    return f"{of_policy}, {name} rank {workload.adapters.rank}{base}: {trained}"


def _counts(result: SearchResult) -> str:
    kind = "all priced" if result.exact else f"searched by {result.method}, the optimum is not proven"
    fit = f"{result.feasible:,} fit"
    if result.looked_at < result.legal:
        fit = f"{result.looked_at:,} of them looked at, of these {fit}"
    return f"{result.raw:,} combinations, {result.legal:,} legal, {fit}; {kind}."


def _trust(ranking: RankingTable, evaluator: Evaluator) -> tuple[str, ...]:
    """What was measured, what was not, and how far two runs of one job differ."""
    one, runs, evidence = (
        ranking.candidates.take(slice(0, 1)),
        round(float(ranking.confidence.runs[0])),
        ranking.time_evidence[0],
    )
    parts = coverage(ranking.job, one, float(ranking.projection.memory.total[0]), load_ranges())
    gain = None if evidence in (MEASURED, RUN) else unmeasured_gain(evaluator.projector, one)
    supposed = supposed_band(ranking.choice.cluster, ranking.job.model)
    if ancestor := ranking.job.accelerator.ancestor:
        rests = f"a device that nobody measured, at the efficiencies of {ancestor} with a spread"
    elif evidence == RUN:
        rests = "an own run of this very row"
    elif supposed is not None:
        rests = "software not named"
    elif runs:
        rests = f"{runs:,} {'own' if ranking.job.stack.runs_file else 'unseen'} run{'s' * (runs != 1)} of this kind"
    else:
        rests = "no run of this stack and kind"
    band = f"90 % band: {SITES[knowledge(ranking.choice.cluster)]}, {rests}."
    gaps = ", ".join(one.part for one in parts if not one.is_calibrated)
    known = ", ".join(one.part for one in parts if one.is_calibrated)
    covered = f"Measured here: {known}." + (f" Extrapolated: {gaps}." if gaps else "")
    found = [band, covered] if known else [f"{band} No part was measured on such a device."]
    if supposed is not None:
        found.insert(1, f"Median of {supposed.stacks}.")
    if gain is not None and gain.gain > TIE:
        row, names = one.row(0), [text.partition("=")[0] for text in gain.switches]
        switches = ", ".join(KNOB[name].in_words(row) for name in names)
        found.append(
            f"No measured run had {switches} with A's other switches: a gain of {gain.gain:.0%} is projected, "
            f"{gain.expected:.0%} counted. Time A without it, too."
        )
    found.append(f"Two runs of one job differ by {TIE:.0%}. Memory is {ranking.memory_evidence[0]}.")
    return tuple(found)


def _notes(
    space: Space, choice: ClusterChoice, ranking: RankingTable, rows: Sequence[Row], choices: Sequence[Choice]
) -> tuple[str, ...]:
    """What to know before the first row is started."""
    first, found = rows[0], list[str]()
    if first["memory_verdict"] != FITS:
        sure = next((one.letter for one in choices if one.verdict == FITS), "no row")
        instead = f"{sure} surely fits"
        found.append(f"It may run out of memory in its first steps: {instead}.")
    numeric = [knob for knob in KNOBS if knob.is_numeric and first[knob.name] != knob.word(knob.off)]
    changed = [precision_words(first) if knob.name == "fp8" else knob.in_words(first) for knob in numeric]
    if changed:
        found.append(f"{', '.join(changed)} changes the mathematics (docs/numerics.md).")
    if choice.is_framework_assumed and not choice.framework.is_any:
        found.append(f"{choice.framework.title} is assumed; --framework changes it.")
    found += [f"{one.reason}." for one in Evaluator(space, choice).cautions(values_of(ranking.candidates, 0))]
    return (*found, *_unstartable(space, choice, ranking))


def _unstartable(space: Space, choice: ClusterChoice, ranking: RankingTable) -> list[str]:
    """Of a search over any framework: which of the first rows no framework can start."""
    if not choice.framework.is_any:
        return []
    vendor = choice.cluster.accelerator.vendor
    known = [load_framework(name) for name in framework_names()]
    there = [
        Evaluator(space, replace(choice, framework=one)) for one in known if not one.is_any and one.runs_on(vendor)
    ]
    rows = range(min(len(ranking), space.search.top_k))
    lost = [str(row + 1) for row in rows if all(one.broken(values_of(ranking.candidates, row)) for one in there)]
    if not there or not lost:
        return []
    names = ", ".join(one.choice.framework.name for one in there)
    return [f"No framework ({names}) can start ranks {', '.join(lost)}; --framework NAME ranks what one can start."]
