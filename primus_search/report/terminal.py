"""What `run` prints, the answer first: recommendation, choices, frontier, then evidence and legend.

Tables and plot fit 80 columns, carry no colour in a pipe, and say of each figure what it stands on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TextIO

from rich.table import Table as RichTable

from primus_search.analysis.choices import BEST_BF16, DEFAULT_KEYS, ChoiceRow, choices
from primus_search.analysis.labels import counted, fits, if_it_fitted, if_it_runs_out, rests, short
from primus_search.base.units import GB, SECONDS_PER_MINUTE
from primus_search.cost.confidence.coverage import in_words
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.memory.fit import FIT_THRESHOLD, FITS
from primus_search.declare.framework_files import framework_names, load_framework
from primus_search.exploration.faster_if_memory_saved import faster_if_memory_saved
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.result import RankingTable, SearchResult, ladder
from primus_search.exploration.run_folder.saved_run import traced_shortfall_bytes
from primus_search.report.console import Plain
from primus_search.report.frontier_text import EVIDENCE, print_frontier
from primus_search.report.plain_tables import table
from primus_search.report.ranking_text import TIED, print_choices, print_ranked
from primus_search.values.knobs import NUMERIC

MOST_RULES = 3
"""Rules that the evidence names; `--verbose` names all."""
SHOWN_SHARE = 0.015
"""Share of the step, or of the memory, below which a part is left to `explain`."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How much of a result is printed.

    folder      of the run, for the commands that are printed; "" for none
    is_raw      every row of the ranking in place of the choices
    distinct    what choices are told apart by
    is_verbose  stages of the funnel and every rule as well
    token_budget  tokens to train on, for days in the scaling table; 0 for none
    """

    folder: str = ""
    is_raw: bool = False
    distinct: Sequence[str] = DEFAULT_KEYS
    is_verbose: bool = False
    token_budget: float = 0.0


def print_result(result: SearchResult, view: View | None = None, stream: TextIO | None = None) -> None:
    """The recommendation, the choices, the frontier, then what they rest on and what the words mean."""
    view = view or View()
    console = Plain(stream)
    rows = result.ranked_rows
    chosen = choices(rows, most=result.space.search.top_k, keys=view.distinct)
    _print_recommendation(console, result, chosen, view, rows)
    if view.is_raw:
        ranks = [rank for rank, row in enumerate(rows, start=1) if _is_of_best(result, row)]
        ranks = ranks[: result.space.search.top_k]
        print_ranked(console, ranks, [rows[rank - 1] for rank in ranks])
    else:
        print_choices(console, chosen)
    for line in _unstarted(result):
        console.print(line)
    if len(result.clusters) > 1 or view.token_budget:
        console.print(_ladder(result, view.token_budget))
        for line in _goodput(result, view.token_budget):
            console.print(line)
    print_frontier(result, stream)
    _print_evidence(console, result, view, len(rows))


def _is_of_best(result: SearchResult, row: Row) -> bool:
    """Whether a row of ranking.csv is of the best cluster."""
    choice = result.best.choice
    labels = dict(choice.labels) | {"nodes": choice.cluster.num_nodes}
    return all(row[name] == value for name, value in labels.items() if name in row)


# --- the recommendation ----------------------------------------------------------------------------------------------


def _print_recommendation(
    console: Plain, result: SearchResult, chosen: Sequence[ChoiceRow], view: View, rows: Sequence[Row]
) -> None:
    """What was asked, what to run, how to start it, what that rests on and what to measure."""
    space, best, row = result.space, result.best, chosen[0].row
    cluster = best.choice.cluster
    several = f"the best of {len(result.clusters)} clusters, " if len(result.clusters) > 1 else ""
    console.print(
        f"{space.name}: {several}{counted(cluster.num_nodes, 'node')} x {cluster.network.gpus_per_node} "
        f"{cluster.accelerator.name}, sequence {space.workload.seq_length}, global batch "
        f"{space.workload.global_batch_size}"
    )
    console.print(f"Recommended: {short(row)}")
    low, high = row["tokens_per_s_per_gpu_low"], row["tokens_per_s_per_gpu_high"]
    console.print(
        f"{row['tokens_per_s_per_gpu']:,.0f} tok/s/GPU (90 %: {low:,.0f} to {high:,.0f}), MFU {row['mfu']:.0%}, "
        f"{row['memory_bytes'] / GB:.0f} of {cluster.accelerator.hbm_bytes / GB:.0f} GB ({fits(row)})."
    )
    gain = best.ranking.unmeasured_gain
    if gain is not None:
        console.print(f"Expected {row['expected_tokens_per_s_per_gpu']:,.0f} tok/s/GPU: {gain}.")
    faster = faster_if_memory_saved(rows, Evaluator(space, best.choice, traced_shortfall_bytes(rows, best.choice)))
    if faster is not None:
        console.print(if_it_fitted(faster))
    if row["memory_verdict"] != FITS:
        console.print(if_it_runs_out(chosen))
    console.print(_launch(result, chosen[0], view))
    changed = [knob.told(row) for knob in NUMERIC if row[knob.name] != knob.word(knob.off)]
    if changed:
        console.print(_numerics(changed, chosen))
    gaps = [one.part for one in best.ranking.coverage if not one.is_calibrated]
    outside = f"; extrapolated: {', '.join(gaps)}" if gaps else ""
    console.print(f"Rests on {rests(best.ranking.confidence)}{outside}.")
    console.print(_to_measure(chosen, view))


def _launch(result: SearchResult, first: ChoiceRow, view: View) -> str:
    """The command that writes what starts the recommendation, and for which framework."""
    choice, where = result.best.choice, view.folder or "RUN"
    if choice.framework.is_any:
        return f"Launch: primus-search export {where} {first.rank} --format NAME (no framework was chosen)"
    why = (
        f", assumed on {choice.cluster.accelerator.name}; --framework changes it" if choice.is_framework_assumed else ""
    )
    return f"Launch: primus-search export {where} {first.rank}  ({choice.framework.title}{why})"


def _numerics(changed: Sequence[str], chosen: Sequence[ChoiceRow]) -> str:
    """Which knobs of the first row change what training computes, and what the best row without costs."""
    plain = [f"; best in BF16: row {one.rank}, {one.change:+.0%}" for one in chosen if BEST_BF16 in one.roles]
    return f"Changes the mathematics: {', '.join(changed)} (docs/numerics.md){''.join(plain)}."


def _to_measure(chosen: Sequence[ChoiceRow], view: View) -> str:
    """The runs that would tell most: the first row, and the choice next to it if the two cannot be told apart."""
    tied = [choice.rank for choice in chosen[1:] if choice.row["ties_with_best"]]
    rows = f"rows 1 and {tied[0]}, within the noise of one run ({TIE:.0%})" if tied else "row 1"
    return f"Measure next: {rows}; primus-search next {view.folder or 'RUN'} plans the runs."


def _unstarted(result: SearchResult) -> list[str]:
    """Of a search over any framework: which of the rows shown no framework can start."""
    best = result.best
    if not best.choice.framework.is_any:
        return []
    vendor = best.choice.cluster.accelerator.vendor
    known = [load_framework(name) for name in framework_names()]
    evaluators = [
        Evaluator(result.space, replace(best.choice, framework=one))
        for one in known
        if not one.is_any and one.runs_on(vendor)
    ]
    rows = min(len(best.ranking), result.space.search.top_k)
    lost = [
        str(row + 1)
        for row in range(rows)
        if all(evaluator.broken(values_of(best.ranking.candidates, row)) for evaluator in evaluators)
    ]
    if not evaluators or not lost:
        return []
    names = ", ".join(evaluator.choice.framework.name for evaluator in evaluators)
    return [f"No framework ({names}) can start rows {', '.join(lost)}; --framework NAME ranks what one can start."]


# --- evidence and legend ---------------------------------------------------------------------------------------------


def _print_evidence(console: Plain, result: SearchResult, view: View, listed: int) -> None:
    """Where the figures come from and what the words of the tables mean."""
    console.print(_parts(result.ranking))
    console.print(f"First row, {in_words(result.ranking.coverage)}")
    if view.is_verbose:
        console.print(_funnel(result))
    console.print(_removed(result, None if view.is_verbose else MOST_RULES))
    console.print(_optimality(result))
    console.print(_legend(result.ranking, listed))
    if len(result.clusters) > 1:
        console.print(f"Ranks are those of ranking.csv, over all {len(result.clusters)} clusters.")


def _funnel(result: SearchResult) -> RichTable:
    found = table("stage", "rows", "seconds", "rows/s/core")
    for stage in result.stages:
        found.add_row(stage.name, f"{stage.rows:,}", f"{stage.seconds:.2f}", f"{stage.rows_per_s:,.0f}")
    return found


def _removed(result: SearchResult, most: int | None) -> str:
    """How many candidates there are, and the rules that removed most, with their reasons."""
    removed = sorted(((n, name) for name, n in result.removed.items() if n), key=lambda pair: (-pair[0], pair[1]))
    said = "; ".join(f"{n:,} by {name} ({result.reasons[name]})" for n, name in removed[:most])
    left = len(removed) - len(removed[:most])
    more = f"; {counted(left, 'rule')} more with --verbose" if left else ""
    counts = f"{result.raw:,} in the grid, {result.legal:,} legal, {result.feasible:,} fit in memory."
    return f"{counts}\nRemoved: {said or 'none'}{more}."


def _optimality(result: SearchResult) -> str:
    """Whether the whole space was evaluated."""
    if result.exact:
        kind = f"Global optimum under the cost model: all {result.legal:,} legal candidates evaluated"
    else:
        kind = "The best found, not proven to be the optimum"
    lines = [f"{kind} ({result.method}: {result.method_reason})."]
    if not result.is_complete:
        lines.append("The search stopped before the whole space was seen.")
    return "\n".join([*lines, *result.space.notes, *result.notes])


def _legend(ranking: RankingTable, listed: int) -> str:
    """What the columns and marks mean."""
    tied, source = int(ranking.confidence.ties_with_best.sum()), rests(ranking.confidence)
    return (
        f"{TIED} ties with #1 (within {TIE:.0%}, normal run-to-run noise): {tied:,} of {len(ranking):,} kept "
        f"candidates. vs #1: expected tokens/s/GPU against the first row; gains of switches that no run of the "
        f"model on this device had on together count in part. 90 %: interval of tok/s/GPU, from {source}. "
        f"fits: probability that it runs in device memory, FITS from {FIT_THRESHOLD:.0%}, AT RISK below; candidates "
        f"predicted to run out of memory are not listed. simplest: fewest knobs off their defaults within 2 %. "
        f"{EVIDENCE} --all prints the ranking row by row; ranking.csv has {listed:,} rows."
    )


def _parts(ranking: RankingTable) -> str:
    """Where the step and the memory of the first row go, largest first."""
    step, memory = (
        {f.name.replace("_", " "): float(parts.__getattribute__(f.name)[0]) for f in fields(parts)}
        for parts in (ranking.projection.step, ranking.projection.memory)
    )
    seconds, held = sum(step.values()), sum(memory.values())
    times = [f"{name} {part / seconds:.0%}" for name, part in _largest(step) if part > SHOWN_SHARE * seconds]
    sizes = [f"{name} {part / GB:.1f}" for name, part in _largest(memory) if part > SHOWN_SHARE * held]
    return f"First row, {seconds:.3f} s of step: {', '.join(times)}. {held / GB:.1f} GB of memory: {', '.join(sizes)}."


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -item[1])


def _goodput(result: SearchResult, token_budget: float) -> list[str]:
    """What the days hold beside training, of each cluster."""
    if not token_budget:
        return []
    lines = [
        "Days and cost are at goodput: checkpoints, work done again after a failure, restarts, spare nodes "
        "(hardware.node_mtbf_hours, restart_minutes, checkpoint_GBps, node_repair_hours; 0 switches a term off)."
    ]
    for rung in ladder(result, token_budget):
        every = f" every {rung.checkpoint_interval_s / SECONDS_PER_MINUTE:,.0f} min" if rung.checkpoint_share else ""
        lines.append(
            f"  {counted(rung.nodes, 'node')}: checkpoints of {rung.checkpoint_bytes / GB:,.0f} GB{every} "
            f"{rung.checkpoint_share:.2%}, redone {rung.redone_share:.2%}, restarts {rung.restart_share:.2%}, "
            f"{counted(rung.spare_nodes, 'spare node')}"
        )
    return lines


def _ladder(result: SearchResult, token_budget: float) -> RichTable:
    """The scaling table; with a token budget how long and how many GPU hours it takes, with a price what it costs."""
    rungs = ladder(result, token_budget)
    is_priced = any(rung.cost_USD for rung in rungs)
    budget = ("goodput", "days", "GPU hours", *(("USD",) if is_priced else ())) if token_budget else ()
    found = table("cluster", "GPUs", "tokens/s", "tok/s/GPU", "efficiency", *budget)
    for rung in rungs:
        name = ", ".join(f"{key}={value}" for key, value in rung.labels) or counted(rung.nodes, "node")
        cells = (f"{rung.goodput:.1%}", f"{rung.days:,.1f}", f"{rung.gpu_hours:,.0f}", f"{rung.cost_USD:,.0f}")
        found.add_row(
            name, f"{rung.world:,}", f"{rung.tokens_per_s:,.0f}", f"{rung.tokens_per_s_per_gpu:,.0f}",
            f"{rung.efficiency:.1%}", *cells[: len(budget)],
        )  # fmt: skip
    return found
