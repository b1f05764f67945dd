"""`primus-search project`: one candidate, its memory tree and its step, part by part."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.cli.output import print_json, write

if TYPE_CHECKING:
    from primus_search.exploration.ranking_table import RankingTable
    from primus_search.space import Space
    from primus_search.values.candidates import Candidates

DEFAULT_SEQUENCE, DEFAULT_SAMPLES_PER_GPU = 4096, 8
MOST_NAMED = 20
"""Names that a message lists of many."""


def project(
    file: Path | None = None, model: str = "", recipe: str = "", arguments: str = "", hardware: str = "",
    nodes: int = 0, sets: list[str] | None = None, stack: str | None = None, ignore: list[str] | None = None,
    framework: str = "", row: str = "", trace: Path | None = None, against: Path | None = None, verbose: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    """Project one candidate: its rate, its memory and its step.

    With a FILE, the candidate and the workload of a real experiment; --set changes them. With --row, a row of a run.
    """
    if recipe:
        file = _recipe(recipe)
    if row:
        space, one = _of_row(row)
        notes, not_modelled = list(space.notes), None
    else:
        given = (file, model, hardware, nodes, sets, stack, ignore, framework, arguments)
        space, one, notes, not_modelled = _of_options(*given)
    import numpy as np

    from primus_search.exploration.neighbours import Evaluator
    from primus_search.exploration.ranking_table import RankingTable

    ranked = RankingTable.of(Evaluator(space, space.clusters[0]), np.zeros(1, np.int64), one)
    projection, figures = ranked.projection, _figures(space, ranked) | {"notes": notes}
    if not_modelled is not None:
        figures["not_modelled"] = not_modelled
    if trace is not None:
        from primus_search.report.step_trace import trace_bytes

        write(trace, trace_bytes(space.job, one, projection, packed=trace.suffix == ".gz"), "--trace")
    if against is not None:
        from primus_search.analysis.slow_jobs.device_trace import read_trace
        from primus_search.analysis.slow_jobs.traced_step import side_by_side

        figures["trace"] = side_by_side(space.job, one, projection, read_trace(against))
    if as_json:
        print_json(figures)
    else:
        _print(space, figures, verbose or against is not None)


def _of_options(
    file: Path | None, model: str, hardware: str, nodes: int, sets: list[str] | None, stack: str | None,
    ignore: list[str] | None, framework: str, arguments: str,
) -> "tuple[Space, Candidates, list[str], list[str] | None]":  # fmt: skip
    """The one candidate that options or an experiment describe, notes on it, what of the file is not modelled."""
    from primus_search.exploration.neighbours import Evaluator, values_of
    from primus_search.space import Enumerator

    given = [*(sets or []), *([f"--ignore ignore=[{','.join(ignore)}]"] if ignore else [])]
    notes, not_modelled = list[str](), None
    if file is not None:
        from primus_search.launch.experiment_space import space_of
        from primus_search.learning.started_experiment import start

        experiment = start(file, hardware, nodes, model, shlex.split(arguments), _per_node(given))
        space = space_of(experiment, given, stack, framework)
        replaced = tuple(f"assumed {text.partition('=')[0].strip()} =" for text in given)
        notes = [note for note in experiment.notes if not note.startswith(replaced)]
        not_modelled = list(experiment.experiment.not_modelled)
    else:
        options = {"--model": model, "--hardware": hardware, "--nodes": nodes}
        what = "is needed: a model, hardware and nodes, or the FILE of an experiment"
        if missing := [Problem(name, what) for name, value in options.items() if not value]:
            raise InputError(missing)
        space = _space(model, hardware, nodes, given, stack, framework)
    enumerator = Enumerator(space)
    chunk = enumerator.chunk(0, enumerator.size)
    if file is not None and not len(chunk.candidates):
        started, reasons = _started(space)
        if started is not None:
            return space, started, [*reasons, *space.notes, *notes], not_modelled
    _must_be_one(space, len(chunk.candidates), "--set" if given else str(file or "project"))
    cautions = Evaluator(space, space.clusters[0]).cautions(values_of(chunk.candidates))
    return space, chunk.candidates, [*(one.reason for one in cautions), *space.notes, *notes], not_modelled


def of_file(file: Path, hardware: str) -> "tuple[Space, Candidates]":
    """The space and the one candidate of an experiment or a log. Raises InputError where it is none."""
    space, one, *_ = _of_options(file, "", hardware, 0, None, None, None, "", "")
    return space, one


def _started(space: "Space") -> "tuple[Candidates | None, list[str]]":
    """The candidate of a file that raises in its first step, not at its start, and why; None for another."""
    from dataclasses import replace

    from primus_search.space import Enumerator

    strict = Enumerator(space)
    broken = strict.removed | strict.chunk(0, strict.size).removed
    choices = tuple(replace(one, framework=one.framework.until_first_step) for one in space.clusters)
    lenient = Enumerator(replace(space, clusters=choices))
    rows = lenient.chunk(0, lenient.size).candidates
    title = space.framework.title
    advice = {one.name for one in space.framework.requires if one.advised}
    named = (name for name, count in broken.items() if count and name not in advice)
    reasons = [f"{title} stops in the first step - {strict.reasons[name]}" for name in named]
    return (rows if len(rows) == 1 else None), reasons


def _per_node(sets: list[str]) -> int:
    """GPUs per node that `--set gpus_per_node=N` gives; 0 where it is left out, or for the space to refuse."""
    from primus_search.declare.overrides import set_values

    given = set_values(sets).get("gpus_per_node", "")
    return int(given) if given.isdecimal() and len(given) < 6 else 0


def _recipe(name: str) -> Path:
    """The path that stands for a recipe. Raises `InputError` for a name that none has."""
    from primus_search.launch.read.recipes import is_recipe, recipes

    if not is_recipe(Path(name)):
        known = sorted(recipes(), key=lambda one: (one[:4] != name[:4], one))
        what = f"no recipe of Megatron-Bridge that is known{did_you_mean(name, known)} - {len(known)} are: "
        what += f"{', '.join(known[:MOST_NAMED])} ... (spaces/keys/nemo_recipes.tsv)"
        raise InputError([Problem(f"--recipe {name[:80]}", what)])
    return Path(name)


def _of_row(row: str) -> "tuple[Space, Candidates]":
    """A row of a run's ranking on its cluster."""
    from primus_search.exploration.run_folder.saved_run import SavedRun

    place, colon, rank = row.rpartition(":")
    path = Path(place)
    if not colon or not rank.isdecimal() or len(rank) > 9:
        raise InputError([Problem(f"--row {row}", "write RUN:RANK, for example out/first/ranking.csv:17")])
    saved = SavedRun.open(path.parent if path.name == "ranking.csv" else path)
    return saved.space.on(saved.cluster(int(rank))), saved.candidate(int(rank))


def _space(model: str, hardware: str, nodes: int, sets: list[str], stack: str | None, framework: str) -> "Space":
    """A space of one candidate: every axis at its plain value unless set."""
    from primus_search.declare.overrides import set_values
    from primus_search.declare.space_file import make_space
    from primus_search.files.hardware_files import load_hardware

    try:
        gpus = max(nodes, 1) * load_hardware(hardware).network.gpus_per_node
    except InputError:
        gpus = 1  # said below, with all else that is wrong
    chunks = set_values(sets).get("space.vpp", "1")
    data: dict[str, Any] = {
        "model": model,
        "hardware": hardware,
        "workload": {"seq_length": DEFAULT_SEQUENCE, "global_batch_size": DEFAULT_SAMPLES_PER_GPU * gpus},
        "space": _plain() | {"schedule": "1f1b" if chunks in ("1", "") else "interleaved"},
        "search": {"memory_margin": 0.0},
    }
    data |= {"stack": stack} if stack is not None else {}
    data |= {"framework": framework} if framework else {}
    return make_space(data, name="project", nodes=nodes, overrides=sets)


def _plain() -> dict[str, Any]:
    """What an axis is when it is not set: its default, where `auto` would be a search."""
    from primus_search.values.knobs import KNOBS

    searched = (k for k in KNOBS if not k.detail_of and (k.auto is None or len(k.auto) > 1))
    return {knob.name: knob.word(knob.default) for knob in searched}


def _must_be_one(space: "Space", rows: int, where: str) -> None:
    """Raise every rule that is broken when the settings leave no legal candidate, or that they leave more than one.

    where: what the settings are of, for messages.
    """
    from primus_search.exploration.neighbours import Evaluator

    several = [axis.name for axis in space.axes if len(axis.values) > 1]
    if several and rows != 1:
        raise InputError([Problem(where, f"{', '.join(several)}: give one value each; `run` searches many")])
    if rows == 0:
        values = {axis.name: axis.values[0] for axis in space.axes}
        broken = Evaluator(space, space.clusters[0]).broken(values)
        broken = tuple(one for one in broken if not one.drops_doubles) or broken
        what = "this configuration is not legal"
        raise InputError([Problem(where, f"{what} - {one.rule}: {one.reason}") for one in broken])


def _figures(space: "Space", ranked: "RankingTable") -> dict[str, Any]:
    """What is printed of the one row of a table, with the rates that it has in a ranking."""
    from primus_search.analysis.coverage import coverage
    from primus_search.analysis.kernel_evidence import kernel_evidence, sentence
    from primus_search.analysis.labels import short
    from primus_search.cost.projection import Verdict
    from primus_search.exploration.neighbours import figures_of
    from primus_search.files.evidence_files import load_ranges

    p, one, sure = ranked.projection, ranked.candidates, ranked.confidence
    of = figures_of(p, 0)
    model, cluster = space.model, space.cluster
    job = space.workload
    feasible, fits = bool(p.fits[0]), float(sure.fits[0])
    return {
        "framework": space.framework.name,
        "job": {
            "model": model.name,
            "parameters": model.total_params,
            "trained_parameters": space.job.model.trained_params,
            "task": space.workload.task,
            "layers": model.num_layers,
            "nodes": cluster.num_nodes,
            "gpus_per_node": cluster.network.gpus_per_node,
            "gpus": cluster.world,
            "layout": short(one.row(0)),
        },
        "workload": {
            "seq_length": job.seq_length,
            "global_batch_size": job.global_batch_size,
            "packing": job.packing,
            "counted_share": job.counted_share,
        },
        "candidate": one.row(0) | {"dp": of.dp, "microbatches": of.microbatches},
        "memory": {f"{name}_bytes": held for name, held in of.memory.items()} | {"total_bytes": of.memory_bytes},
        "step": {f"{name}_s": seconds for name, seconds in of.step.items()} | {"total_s": of.step_s},
        "tokens_per_s": float(p.tokens_per_s[0]),
        "tokens_per_s_per_gpu": of.tokens_per_s_per_gpu,
        "expected_tokens_per_s_per_gpu": float(sure.expected[0]),
        "knowledge": str(sure.knowledge),
        "comparison": sure.comparison,
        "tokens_per_s_per_gpu_low": float(sure.low[0]),
        "tokens_per_s_per_gpu_high": float(sure.high[0]),
        "interval_runs": int(sure.runs[0]),
        "bubble_ratio": of.bubble_ratio,
        "mfu": of.mfu,
        "feasible": feasible,
        "headroom_bytes": of.headroom_bytes,
        "fit_probability": fits,
        "memory_verdict": str(ranked.verdicts[0]),
        "reason": "fits" if feasible else Verdict(int(p.verdict[0])).name,
        "coverage": [asdict(part) for part in coverage(space.job, one, of.memory_bytes, load_ranges())],
        "measured_kernels": sentence(kernel_evidence(space.job, one)),
        "time_evidence": str(ranked.time_evidence[0]),
        "memory_evidence": str(ranked.memory_evidence[0]),
    }


def _print(space: "Space", figures: dict[str, Any], verbose: bool) -> None:
    from textwrap import fill

    from primus_search.analysis.answer import task_words
    from primus_search.analysis.labels import ROUNDING, chance, counted
    from primus_search.base.html_templates import rendered
    from primus_search.base.units import GB
    from primus_search.cost.confidence.uncertainty import supposed_band
    from primus_search.report.short_text import projected_lines

    supposed = supposed_band(space.cluster, space.model)
    if not verbose:
        runs = f"{figures['knowledge']}, {counted(figures['interval_runs'], 'left-out run')} of its kind"
        basis = f"software not named: {' '.join(supposed.stacks.split())}".rstrip(",") if supposed else runs
        typer.echo("\n".join(projected_lines(space, figures, basis)))
        return
    values = {"nodes": counted(space.cluster.num_nodes, "node"), "chance": chance(figures["fit_probability"])}
    values["task"] = task_words(space.job)
    values["supposed"] = supposed.stacks if supposed else ""

    def filled(text: str, indent: int) -> str:
        return fill(text, 80, initial_indent="  ", subsequent_indent=" " * indent)

    text = rendered(
        "project.txt", space=space, cluster=space.cluster, f=figures, GB=GB, rounding=ROUNDING, fill=filled, **values
    )
    typer.echo(text, nl=False)
