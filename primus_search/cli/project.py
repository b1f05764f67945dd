"""`primus-search project`: one candidate, its memory tree and its step, part by part."""

import json
import os
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.cli.output import write

if TYPE_CHECKING:
    from primus_search.cost.projection import Projection
    from primus_search.space import Space
    from primus_search.values.candidates import Candidates

DEFAULT_SEQUENCE, DEFAULT_SAMPLES_PER_GPU = 4096, 8


def project(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="An experiment: Primus YAML, Megatron script, torchtitan TOML."),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="A preset, a Primus/Megatron YAML or a config.json.")] = "",
    recipe: Annotated[
        str, typer.Option("--recipe", help="A pre-training recipe of Megatron-Bridge by name, in place of a FILE.")
    ] = "",
    arguments: Annotated[
        str, typer.Option("--args", help="What the FILE, a script, is started with: $1, $2 ...: --args '8B 4 2'.")
    ] = "",
    hardware: Annotated[str, typer.Option("--hardware", help="A hardware file by name or path.")] = "",
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of that hardware.")] = 0,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="An axis or workload value: tp=8, pp=4, seq_length=8192 ...")
    ] = None,
    stack: Annotated[str | None, typer.Option("--stack", help="A software stack by name or path.")] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="KEY", help="Leave out this key of the model file; repeatable."),
    ] = None,
    framework: Annotated[str, typer.Option("--framework", help="What starts the job; its rules bind.")] = "",
    row: Annotated[
        str, typer.Option("--row", metavar="RUN:RANK", help="A row of a run: out/first/ranking.csv:17.")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option(help="Write the step as a Chrome/Perfetto trace: .json or .json.gz.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="A trace of one step: Kineto JSON (.gz), nsys SQLite or rocprof CSV.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Project one candidate: its memory tree and its step, part by part.

    With a FILE, the candidate and the workload of a real experiment; --set changes them. With --row, a row of a run.
    """
    if recipe:
        file = _recipe(recipe)
    os.environ.update({str(i): word for i, word in enumerate(shlex.split(arguments), start=1)})
    found = _of_row(row) if row else _of_options(file, model, hardware, nodes, sets, stack, ignore, framework)
    space, figures = found.space, found.figures
    if trace is not None:
        from primus_search.report.step_trace import trace_bytes

        write(trace, trace_bytes(space.job, found.one, found.projection, packed=trace.suffix == ".gz"), "--trace")
    if against is not None:
        from primus_search.analysis.traced_step import side_by_side
        from primus_search.runs.device_trace import read_trace

        figures["trace"] = side_by_side(space.job, found.one, found.projection, read_trace(against))
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        _print(space, figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projected:
    """One candidate on the first cluster of a space."""

    space: "Space"
    one: "Candidates"
    projection: "Projection"
    figures: dict[str, Any]

    @classmethod
    def of(cls, space: "Space", one: "Candidates") -> "_Projected":
        from primus_search.cost.project import Projector

        projection = Projector(space.job, memory_margin=space.search.memory_margin).project(one)
        return cls(space=space, one=one, projection=projection, figures=_figures(space, projection, one))


def _of_options(
    file: Path | None, model: str, hardware: str, nodes: int, sets: list[str] | None, stack: str | None,
    ignore: list[str] | None, framework: str,
) -> _Projected:  # fmt: skip
    """The one candidate that options or an experiment describe."""
    from primus_search.space import Enumerator

    skipped = [f"--ignore ignore=[{','.join(ignore)}]"] if ignore else []
    given = [*(sets or []), *skipped]
    experiment = None
    if file is not None:
        from primus_search.export.experiment_space import space_of, start

        experiment = start(file, hardware, nodes, model)
        space = space_of(experiment, given, stack, framework)
    else:
        _must_have(model=model, hardware=hardware, nodes=nodes)
        space = _space(model, hardware, nodes, given, stack, framework)
    enumerator = Enumerator(space)
    chunk = enumerator.chunk(0, enumerator.size)
    _must_be_one(space, enumerator.reasons, enumerator.removed | chunk.removed, len(chunk.candidates))
    found = _Projected.of(space, chunk.candidates)
    if experiment is not None:
        found.figures["notes"] += experiment.notes
        found.figures["not_modelled"] = list(experiment.experiment.not_modelled)
    return found


def _recipe(name: str) -> Path:
    """The path that stands for a recipe. Raises `InputError` for a name that none has."""
    from primus_search.declare.fields import key_table
    from primus_search.declare.launch.experiments import RECIPES, is_recipe
    from primus_search.declare.source import did_you_mean

    if not is_recipe(Path(name)):
        known = key_table(RECIPES)
        what = f"no recipe of Megatron-Bridge that is known{did_you_mean(name, known)} - known: {', '.join(known)}"
        raise InputError([Problem(f"--recipe {name[:80]}", what)])
    return Path(name)


def _of_row(row: str) -> _Projected:
    """A row of a run's ranking on its cluster."""
    from primus_search.exploration.run_folder.saved_run import SavedRun

    place, colon, rank = row.rpartition(":")
    path = Path(place)
    folder = path.parent if path.name == "ranking.csv" else path
    if not colon or not rank.isdecimal() or len(rank) > 9:
        raise InputError([Problem(f"--row {row}", "write RUN:RANK, for example out/first/ranking.csv:17")])
    saved = SavedRun.open(folder)
    return _Projected.of(saved.space.on(saved.cluster(int(rank))), saved.candidate(int(rank)))


def _must_have(**options: str | int) -> None:
    """Raises `InputError` that names every option that is missing."""
    missing = [f"--{name}" for name, value in options.items() if not value]
    if missing:
        what = "is needed: a model, hardware and nodes, or the FILE of an experiment"
        raise InputError([Problem(name, what) for name in missing])


def _space(model: str, hardware: str, nodes: int, sets: list[str], stack: str | None, framework: str) -> "Space":
    """A space of one candidate: every axis at its plain value unless set."""
    from primus_search.declare.hardware_files import load_hardware
    from primus_search.declare.space_file import make_space

    try:
        gpus = max(nodes, 1) * load_hardware(hardware).network.gpus_per_node
    except InputError:
        gpus = 1  # said below, with all else that is wrong
    data: dict[str, Any] = {
        "model": model,
        "hardware": hardware,
        "workload": {"seq_length": DEFAULT_SEQUENCE, "global_batch_size": DEFAULT_SAMPLES_PER_GPU * gpus},
        "space": _plain() | {"schedule": "interleaved" if _is_interleaved(sets) else "1f1b"},
        "search": {"memory_margin": 0.0},
    }
    if stack is not None:
        data["stack"] = stack
    if framework:
        data["framework"] = framework
    return make_space(data, name="project", nodes=nodes, overrides=sets)


def _plain() -> dict[str, Any]:
    """What an axis is when nobody sets it: its default, where `auto` would be a search."""
    from primus_search.values.knobs import KNOBS

    searched = (k for k in KNOBS if not k.detail_of and (k.auto is None or len(k.auto) > 1))
    return {knob.name: knob.word(knob.default) for knob in searched}


def _is_interleaved(sets: list[str]) -> bool:
    given = dict(text.partition("=")[::2] for text in sets)
    return given.get("vpp", "1").strip() not in ("1", "")


def _must_be_one(space: "Space", reasons: dict[str, str], removed: dict[str, int], rows: int) -> None:
    """Raise what is wrong when the settings leave no legal candidate, or more than one."""
    if rows == 0:
        broken = [f"{name}: {reasons.get(name, 'not legal')}" for name, count in removed.items() if count]
        raise InputError([Problem("--set", f"this configuration is not legal - {text}") for text in broken])
    if rows > 1:
        several = [axis.name for axis in space.axes if len(axis.values) > 1]
        raise InputError([Problem("--set", f"{', '.join(several)}: give one value each; `run` searches many")])


def _figures(space: "Space", p: "Projection", one: "Candidates") -> dict[str, Any]:
    from primus_search.cost.confidence.coverage import coverage, kernel_evidence, sentence
    from primus_search.cost.confidence.uncertainty import confidence
    from primus_search.cost.memory import fit_verdict
    from primus_search.cost.projection import Verdict
    from primus_search.declare.evidence_files import load_ranges

    memory = {f.name + "_bytes": float(p.memory.__getattribute__(f.name)[0]) for f in fields(p.memory)}
    step = {f.name + "_s": float(p.step.__getattribute__(f.name)[0]) for f in fields(p.step)}
    sure = confidence(space.model, space.cluster, one.fp8, p)
    parts = coverage(space.job, one, float(p.memory.total[0]), load_ranges())
    feasible = bool(p.fits[0])
    return {
        "framework": space.framework.name,
        "workload": {
            "seq_length": space.workload.seq_length,
            "global_batch_size": space.workload.global_batch_size,
        },
        "candidate": one.row(0) | {"dp": int(p.dp[0]), "microbatches": int(p.microbatches[0])},
        "memory": memory | {"total_bytes": float(p.memory.total[0])},
        "step": step | {"total_s": float(p.step.total[0])},
        "tokens_per_s": float(p.tokens_per_s[0]),
        "tokens_per_s_per_gpu": float(p.tokens_per_s_per_gpu[0]),
        "expected_tokens_per_s_per_gpu": float(sure.expected[0]),
        "knowledge": str(sure.knowledge),
        "comparison": sure.comparison,
        "tokens_per_s_per_gpu_low": float(sure.low[0]),
        "tokens_per_s_per_gpu_high": float(sure.high[0]),
        "interval_runs": int(sure.runs[0]),
        "bubble_ratio": float(p.bubble_ratio[0]),
        "mfu": float(p.mfu[0]),
        "feasible": feasible,
        "headroom_bytes": float(p.headroom_bytes[0]),
        "fit_probability": float(sure.fits[0]),
        "memory_verdict": fit_verdict(float(sure.fits[0]), float(p.headroom_bytes[0])),
        "reason": "fits" if feasible else Verdict(int(p.verdict[0])).name,
        "coverage": [asdict(part) for part in parts],
        "measured_kernels": sentence(kernel_evidence(space.job, one)),
        "time_evidence": "projected",
        "memory_evidence": "projected",
        "notes": list(space.notes),
    }


def _print(space: "Space", figures: dict[str, Any]) -> None:
    import textwrap

    from primus_search.analysis.labels import chance, counted
    from primus_search.base.units import GB

    cluster, left = space.cluster, figures.get("not_modelled", [])
    typer.echo(
        f"{space.model.name} on {counted(cluster.num_nodes, 'node')} x {cluster.network.gpus_per_node} "
        f"{cluster.accelerator.name}, stack {cluster.stack.title}, "
        f"framework {space.framework.name},\nsequence {space.workload.seq_length}, "
        f"global batch {space.workload.global_batch_size}"
    )
    typer.echo(
        f"{figures['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU "
        f"(expected {figures['expected_tokens_per_s_per_gpu']:,.0f}, {figures['knowledge']}),\n"
        f"90 % interval {figures['tokens_per_s_per_gpu_low']:,.0f} to {figures['tokens_per_s_per_gpu_high']:,.0f}, "
        f"{figures['interval_runs']} left-out runs of its kind,\n"
        f"MFU {figures['mfu']:.1%}, bubble {figures['bubble_ratio']:z.1%}"
    )
    room = figures["headroom_bytes"] / GB
    typer.echo(
        f"memory: {figures['memory_verdict']}, {room:+.1f} GB to spare, "
        f"runs with probability {chance(figures['fit_probability'])}"
    )
    typer.echo("\nrests on")
    for part in figures["coverage"]:
        said = f"{part['part']:<14}{'measured' if part['is_calibrated'] else 'EXTRAPOLATED':<14}{part['why']}"
        typer.echo(textwrap.fill(said, 80, initial_indent="  ", subsequent_indent=" " * 30))
    for note in filter(None, [*figures["notes"], figures["measured_kernels"]]):
        typer.echo(textwrap.fill(note, 80, initial_indent="  ", subsequent_indent="  "))
    _tree("step", figures["step"], "total_s", 1e3, "ms")
    if "trace" in figures:
        _print_trace(figures["trace"])
    _tree("memory per GPU, worst pipeline rank", figures["memory"], "total_bytes", 1.0 / GB, "GB")
    if left:
        typer.echo("\nset in the file and not modelled")
    for line in left:
        typer.echo(f"  {line}")


def _tree(title: str, parts: dict[str, float], total: str, factor: float, unit: str) -> None:
    from primus_search.analysis.labels import ROUNDING

    typer.echo(f"\n{title}")
    for name, value in parts.items():
        if abs(value) > ROUNDING * parts[total] or name == total:
            label = name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
            typer.echo(f"  {label:<24}{value * factor:>12,.2f} {unit}{value / parts[total]:>9.1%}")


def _print_trace(trace: dict[str, Any]) -> None:
    """The projected step beside the traced one, part by part."""
    projected, traced = trace["projected"], trace["traced"]
    typer.echo(f"\n{'step by kernels':<26}{'projected':>12}{'traced':>15}")
    for name, seconds in traced.items():
        label = {"gemm_s": "GEMM"}.get(name, name.removesuffix("_s"))
        off = f"{projected[name] / seconds - 1:>+9.0%}" if seconds > 0.0 else ""
        typer.echo(f"  {label:<24}{1e3 * projected[name]:>9,.1f} ms{1e3 * seconds:>12,.1f} ms{off}")
    typer.echo(
        f"  traced: mean of {trace['steps']} steps, {1e3 * trace['hidden_exchange_s']:,.1f} ms of exchange hidden"
    )
