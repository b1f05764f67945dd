"""Published tuned recipes by the user's path: `python tests/bench/recipes.py` writes docs/dev/recipes_log.md.

The fastest published run of every job (model, devices, sequence, batch, precision) of NVIDIA's performance summaries
(ids `mb-` and `k1mb-` of the measured tables; `--framework nemo@RELEASE`, their launcher as the container of the run
has it) is projected three times and compared with its measurement:

    as published   the row itself, as `validate` projects it
    same layout    `run` with its degrees and micro-batch, every other knob left out: expected rate of the first row
    newest         the same by the rules of the newest release, which take what the recipe could not have had
    best found     the same with all left out but model, hardware, nodes, batch, sequence, precision and optimizer
    vendor         both with `site: vendor`, for the runs are of the publisher's own cluster (docs/cost/uncertainty.md)

Beside it: is the recipe legal with every knob at its published value; which knobs of the same layout's winner differ
from the recipe, and what measured pairs that differ in one of them alone say; what rows of the tables still override.
"""

import argparse
import csv
import multiprocessing
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.errors import InputError, PrimusSearchError
from primus_search.cost.confidence.uncertainty import site_ratio
from primus_search.declare import make_space
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.published.run_machine import stack_file
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.exploration.funnel import Options, run_search
from primus_search.space import Enumerator, Space
from primus_search.values.knobs import KNOBS
from primus_search.values.measured_run import MeasuredRun, overridden

ROOT = Path(__file__).resolve().parents[2]
DATA, PAGE = ROOT / "tests" / "oracle" / "data", ROOT / "docs" / "dev" / "recipes_log.md"
TABLES = ("training_runs", "unseen_runs", "unseen_runs_2", "unseen_runs_3", "unseen_runs_4", "unseen_runs_5",
          "blind_runs", "blind_trainers", "amd_runs")  # fmt: skip
RECIPES = ("mb-", "k1mb-")
PRESETS = {
    "Llama-3.1-405B": "llama3.1_405b", "Llama-3-70B": "llama3_70b", "Llama-3-8B": "llama3_8b", "Kimi-K2": "kimi_k2",
    "DeepSeek-V3": "deepseek_v3", "Qwen3-235B-A22B": "qwen3_235b_a22b", "Qwen3-30B-A3B": "qwen3_30b_a3b",
    "GPT-OSS-120B": "gpt_oss_120b",
}  # fmt: skip
PRECISIONS = ("bf16", "fp8-current", "mxfp8", "nvfp4")
LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
SWITCHES = tuple(
    knob.name
    for knob in KNOBS
    if knob.name
    not in (
        *LAYOUT,
        "etp",
        "fp8",
        "fp8_attention",
        "pipeline_layout",
        "schedule",
        "sequence_parallel",
        "recompute_method",
    )
)
NEVER_BELOW, NEVER_ABOVE = 0.95, 1.15
CONTAINER = re.compile(r"\((\d\d\.\d\d)[.\d]* container\)")
NEWEST = "nemo"


@dataclass(frozen=True)
class Found:
    """What a search of one recipe's job gives: rate and row of its best; the reason where there is none."""

    rate: float = float("nan")
    row: dict[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    """A recipe with its projections; `why_illegal` is empty where it is legal."""

    run: MeasuredRun
    published: float
    same: Found
    newest: Found
    best: Found
    why_illegal: str

    @property
    def measured(self) -> float:
        return self.run.tokens_per_s_per_gpu

    @property
    def kind(self) -> str:
        return "experts" if self.run.model.is_moe else "dense"

    @property
    def at_vendor(self) -> float:
        """What a rate expected on a site that nobody has seen is times on a vendor's."""
        return 1.0 / site_ratio(space_of(self.run, {}, framework_of(self.run)).cluster, self.run.model)


@cache
def every_run() -> tuple[MeasuredRun, ...]:
    """The runs of every table."""
    return tuple(run for name in TABLES for run in measured_table(DATA / f"{name}.csv").runs)


@cache
def releases() -> dict[str, str]:
    """Run -> release of the container that its source names, of its framework."""
    found: dict[str, str] = {}
    for name in TABLES:
        with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                container = CONTAINER.search(row["source"])
                if container is not None:
                    found[row["id"]] = container[1]
    return found


def recipes() -> list[MeasuredRun]:
    """The fastest run of every job."""
    fastest: dict[tuple[Any, ...], MeasuredRun] = {}
    for run in every_run():
        if run.id.startswith(RECIPES) and run.has_rate and run.precision in PRECISIONS and run.model.name in PRESETS:
            key = (run.model.name, run.gpu, run.cluster.world, run.workload, run.precision)
            if key not in fastest or run.tokens_per_s_per_gpu > fastest[key].tokens_per_s_per_gpu:
                fastest[key] = run
    return list(fastest.values())


def framework_of(run: MeasuredRun) -> str:
    """Its launcher at the release it ran on."""
    return f"{NEWEST}@{releases()[run.id]}"


def space_of(run: MeasuredRun, axes: dict[str, Any], framework: str) -> Space:
    """A user's space of a recipe's job, with its precision, its optimizer and some axes given.

    Under Muon weights are sharded by the optimizer itself, which `auto` of sharding does not list.
    """
    work = {"seq_length": run.workload.seq_length, "global_batch_size": run.workload.global_batch_size}
    row = run.candidates.row(0)
    numerics = {name: row[name] for name in ("fp8", "fp8_attention", "optimizer")}
    if "muon" in row["optimizer"]:
        numerics["sharding"] = row["sharding"]
    return make_space(
        {"name": run.id, "model": PRESETS[run.model.name], "hardware": run.hardware, "nodes": run.cluster.num_nodes,
         "framework": framework,
         "workload": work, "space": numerics | axes}
    )  # fmt: skip


def searched(run: MeasuredRun, axes: dict[str, Any], framework: str = "") -> Found:
    """The best of a user's space."""
    try:
        best = run_search(
            space_of(run, axes, framework or framework_of(run)), Options(engine="local", workers=1, keep=1000)
        ).ranking.row(0)
    except PrimusSearchError as problem:
        return Found(reason=str(problem).splitlines()[-1].strip())
    return Found(rate=float(best["expected_tokens_per_s_per_gpu"]), row=best)


def pinned(run: MeasuredRun) -> dict[str, Any]:
    """Every axis at the recipe's value."""
    row = run.candidates.row(0)
    axes = {name: value for name, value in row.items() if name not in ("recompute_num_layers", "recompute_method")}
    axes = {name: value for name, value in axes.items() if name != "shard_group"}
    if row["recompute"] == "full":
        axes["recompute"] = {"full": [row["recompute_num_layers"] or "all"], "method": [row["recompute_method"]]}
    axes["pipeline_layout"] = ["even", "balanced", *_as_axis(str(row["pipeline_layout"]))]
    return axes


def _as_axis(layout: str) -> list[Any]:
    """A layout as a space file writes it."""
    if layout in ("even", "balanced"):
        return []
    ends = dict(part.split("=") for part in layout.split(",")) if layout.startswith("first=") else {}
    return [{name: int(n) for name, n in ends.items() if n != "None"}] if ends else [layout]


def why_illegal(run: MeasuredRun) -> str:
    """Why a recipe is not legal in its framework's space; empty where it is."""
    try:
        enumerator = Enumerator(space_of(run, pinned(run), framework_of(run)))
    except InputError as problem:
        return str(problem).splitlines()[-1].strip()
    return "" if enumerator.size else ", ".join(enumerator.removed)


def judged(run: MeasuredRun) -> Judged:
    """One recipe with its searches."""
    row = run.candidates.row(0)
    layout = {name: row[name] for name in LAYOUT}
    same, newest, best = searched(run, layout), searched(run, layout, NEWEST), searched(run, {})
    return Judged(run=run, published=0.0, same=same, newest=newest, best=best, why_illegal=why_illegal(run))


# --- evidence ------------------------------------------------------------------------------------------------------


def pairs(knob: str) -> Iterator[tuple[MeasuredRun, MeasuredRun]]:
    """Measured runs of one job and publisher that differ in a knob alone."""
    groups: dict[tuple[Any, ...], list[MeasuredRun]] = defaultdict(list)
    for run in every_run():
        if run.has_rate:
            rest = tuple(value for name, value in run.candidates.row(0).items() if name != knob)
            job = (run.model.name, run.gpu, run.cluster.world, run.workload, run.provenance.publisher)
            groups[job, run.cluster.stack.name, rest].append(run)
    for group in groups.values():
        for a, b in combinations(group, 2):
            if a.candidates.row(0)[knob] != b.candidates.row(0)[knob]:
                yield a, b


def evidence(knob: str) -> str:
    """Measured pairs of a knob: how many, on which devices, and the median ratio of the faster to the slower."""
    found = list(pairs(knob))
    if not found:
        return "no measured pair"
    faster = [max(b.tokens_per_s_per_gpu / a.tokens_per_s_per_gpu, a.tokens_per_s_per_gpu / b.tokens_per_s_per_gpu)
              for a, b in found]  # fmt: skip
    devices = Counter(a.gpu for a, _ in found)
    where = ", ".join(f"{gpu} {count}" for gpu, count in devices.most_common())
    return f"{len(found)} measured pairs ({where}), median ratio {np.median(faster):.2f}"


# --- overrides -----------------------------------------------------------------------------------------------------


def override_lines() -> list[str]:
    """Keys that rows override: how many runs, and their median error with and without."""
    by_key: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in every_run():
        for one in run.overrides:
            by_key[one.key].append(run)
    lines = ["| key | rows | median error with it | without |", "|---|---|---|---|"]
    for key, runs in sorted(by_key.items(), key=lambda item: -len(item[1])):
        timed = [run for run in runs if run.has_rate]
        before, after = _median_error(timed), _median_error([_without(run, key) for run in timed])
        lines.append(f"| {key} | {len(runs)} | {before} | {after} |")
    return lines


def _without(run: MeasuredRun, key: str) -> MeasuredRun:
    """The run without one of its overrides; numbers of the hardware stay, for a file gives them per device."""
    if not key.startswith("stack."):
        return run
    others = {one.key: one.value for one in run.overrides if one.key != key and one.key.startswith("stack.")}
    stack = replace(stack_file(run.cluster.stack.reference), is_assumed=run.cluster.stack.is_assumed)
    return replace(run, cluster=overridden(replace(run.cluster, stack=stack), others))


def _median_error(runs: Sequence[MeasuredRun]) -> str:
    errors = [abs(row.error) for row in project_runs(runs)[0]]
    return f"{np.median(errors):.1%}" if errors else "-"


# --- the page ------------------------------------------------------------------------------------------------------


def signed(rate: float, measured: float) -> str:
    return "nothing fits" if np.isnan(rate) else f"{rate / measured - 1:+.0%}"


def label(row: dict[str, Any] | None) -> str:
    """Degrees and what is not plain, short."""
    if row is None:
        return ""
    degrees = " ".join(f"{name.replace('micro_batch_size', 'mbs')}{row[name]}" for name in LAYOUT)
    plain = {knob.name: knob.word(knob.default) for knob in KNOBS}
    others = (name for name in SWITCHES if row.get(name) != plain[name])
    return " ".join([degrees, *(f"{name}={row[name]}" for name in others)])


def summary(every: Sequence[Judged]) -> list[str]:
    lines = ["| | what | recipes | median error | 90th percentile | bias | range |", "|---|---|---|---|---|---|---|"]
    for kind in ("dense", "experts"):
        some = [one for one in every if one.kind == kind]
        for what, rates in (
            ("as published", [one.published for one in some]),
            ("same layout", [one.same.rate for one in some]),
            ("newest", [one.newest.rate for one in some]),
            ("best found", [one.best.rate for one in some]),
            ("same layout, vendor", [one.same.rate * one.at_vendor for one in some]),
            ("best found, vendor", [one.best.rate * one.at_vendor for one in some]),
        ):
            errors = np.array(rates) / np.array([one.measured for one in some]) - 1
            errors = errors[~np.isnan(errors)]
            a = np.abs(errors)
            lines.append(
                f"| {kind} | {what} | {len(a)} | {np.median(a):.1%} | {np.quantile(a, 0.9):.1%} | "
                f"{np.median(errors):+.1%} | {errors.min():+.0%} to {errors.max():+.0%} |"
            )
    return lines


def differences(one: Judged) -> list[str]:
    """Knobs in which the same layout's winner differs from the recipe."""
    mine, theirs = one.same.row, one.run.candidates.row(0)
    return [] if mine is None else [name for name in SWITCHES if mine[name] != theirs[name]]


def page(every: Sequence[Judged]) -> str:
    legal = sum(not one.why_illegal for one in every)
    below = [one for one in every if not one.best.rate / one.measured >= NEVER_BELOW]
    above = [one for one in every if one.best.rate / one.measured > NEVER_ABOVE]
    sharded = [one.run.id for one in above if (one.best.row or {})["sharding"] != one.run.candidates.row(0)["sharding"]]
    high = [one.run.id for one in above if one.published / one.measured > 1.05]
    at_vendor = sum(one.best.rate * one.at_vendor / one.measured > NEVER_ABOVE for one in every)
    rows, over = len(every_run()), sum(bool(run.overrides) for run in every_run())
    changed = Counter(name for one in every for name in differences(one))
    lines = [
        "# Published recipes as judges of the search",
        "",
        "Written by `python tests/bench/recipes.py`; its docstring says what is compared. Errors are of tokens/s per",
        "GPU against the measurement. These runs are in the fit of the shipped numbers.",
        "",
        *summary(every),
        "",
        f"Legal with every knob at its published value: {legal} of {len(every)}.",
        f"Best found below {NEVER_BELOW} of the recipe: {len(below)} ({', '.join(one.run.id for one in below)});",
        f"above {NEVER_ABOVE}: {len(above)} ({', '.join(one.run.id for one in above)}); at a vendor {at_vendor}.",
        f"Of these the best shards weights where the recipe does not: {', '.join(sharded)};",
        f"the recipe itself is projected above 1.05: {', '.join(high)}.",
        "",
        "## Recipe by recipe",
        "",
        "| run | model | GPUs | precision | release | measured | as published | same layout | newest | best found | "
        "knobs of the same layout's winner that the recipe does not have | best |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in every:
        run, mine = one.run, one.same.row or {}
        said = ", ".join(f"{name}={mine[name]}" for name in differences(one)) or one.why_illegal
        lines.append(
            f"| {run.id} | {run.model.name} | {run.cluster.world} {run.gpu} | {run.precision} | "
            f"{releases()[run.id]} | {one.measured:,.0f} | "
            f"{signed(one.published, one.measured)} | {signed(one.same.rate, one.measured)} | "
            f"{signed(one.newest.rate, one.measured)} | "
            f"{signed(one.best.rate, one.measured)} | {said} | {label(one.best.row)} |"
        )
    lines += ["", "## Evidence of the knobs that differ", "", "| knob | recipes | measured |", "|---|---|---|"]
    lines += [f"| {name} | {count} | {evidence(name)} |" for name, count in changed.most_common()]
    lines += [
        "",
        "## What rows of the measured tables still override",
        "",
        f"{over} of {rows} rows ({over / rows:.0%}) differ in at least one number from the files they name.",
        "",
        *override_lines(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    runs = recipes()
    published = {row.run.id: row.predicted for row in project_runs(runs)[0]}
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        every = [replace(one, published=published[one.run.id]) for one in pool.imap(judged, runs, chunksize=1)]
    text = page(every)
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
