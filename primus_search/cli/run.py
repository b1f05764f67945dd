"""`primus-search run`: parse, search, print, write the run folder."""

from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from primus_search.declare.search_path import Snapshot
    from primus_search.exploration import SearchResult
    from primus_search.report.terminal import View
    from primus_search.space import Space

from primus_search.base.guards.interrupts import Interrupted

Spaces = Annotated[str, typer.Argument(metavar="SPACE", help="A space file, or the name of one that ships with it.")]
Nodes = Annotated[str, typer.Option(help="Number of nodes; several make a scaling table: 8,16,32.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; repeatable.")]
StackName = Annotated[
    str, typer.Option("--stack", help="A software stack by name or path; one that `learn` wrote, too.")
]
EngineName = Annotated[str, typer.Option("--engine", metavar="auto|local|ray", help="Where candidates are evaluated.")]
RayAddress = Annotated[str, typer.Option(help="Join this Ray cluster (auto, host:port, ray://host:port).")]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes every core.")]
MethodName = Annotated[
    str, typer.Option("--method", metavar="auto|exhaustive|tpe|nsga2|nsga3|gp|qmc|random", help="How to search.")
]
FrameworkName = Annotated[
    str,
    typer.Option("--framework", metavar="NAME", help="What starts the job: primus, megatron, torchtitan, nemo or any."),
]
Top = Annotated[
    int | None, typer.Option(min=1, help="Rows of the ranking to print and re-validate; left out: as the space says.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of everything random; left out: as the space says.")]
NumericsWord = Annotated[
    str,
    typer.Option("--numerics", metavar="safe|usual|any", help="safe: BF16 alone; any: every low-precision recipe."),
]
MinFit = Annotated[
    float,
    typer.Option(min=0.0, max=100.0, help="Leave out what fits in memory with a lower probability, in percent: 95."),
]
Keep = Annotated[int, typer.Option(min=1, help="Best rows kept in candidates.parquet.")]
Bench = Annotated[str, typer.Option(metavar="auto|off|trace|cpu|cuda", help="Re-validate the top rows with torch.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; default results/runs/<time>-<space>.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run of --out where it stopped.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the run of another question in --out.")]
Tokens = Annotated[
    float, typer.Option(min=0.0, max=1e18, help="Tokens to train on, for days and cost in the scaling table: 1e12.")
]
SaveBenchmark = Annotated[Path | None, typer.Option(help="Write the measurements used to this file.")]
LoadBenchmark = Annotated[Path | None, typer.Option(help="Use the measurements of this file.")]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="KEY", help="Leave out this key of the model file; repeatable.")
]
BaselineFile = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="What you run now: an experiment, shown with its rank."),
]
EveryRow = Annotated[bool, typer.Option("--all", help="Print the ranking row by row as well.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print ranking, frontier, parts, stages and rules as well.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print run.json to standard output, nothing else.")]


def run(
    space: Spaces,
    nodes: Nodes = "",
    sets: Sets = None,
    stack: StackName = "",
    engine: EngineName = "auto",
    ray_address: RayAddress = "",
    workers: Workers = 0,
    method: MethodName = "",
    framework: FrameworkName = "",
    top: Top = None,
    seed: Seed = None,
    numerics: NumericsWord = "",
    min_fit: MinFit = 0.0,
    keep: Keep = 100_000,
    bench: Bench = "",
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    tokens: Tokens = 0.0,
    save_benchmark: SaveBenchmark = None,
    load_benchmark: LoadBenchmark = None,
    ignore: Ignore = None,
    baseline: BaselineFile = None,
    every_row: EveryRow = False,
    verbose: Verbose = False,
    json: AsJson = False,
) -> None:
    """Search a space: rank the configurations that fit, draw the frontier, write a run folder."""
    overrides = _as_overrides(
        sets, nodes=nodes, stack=stack, method=method, framework=framework, top=top, seed=seed, bench=bench,
        numerics=numerics, min_fit=min_fit, ignore=ignore,
    )  # fmt: skip
    loaded, inputs = _loaded(space, overrides, out if resume else None)  # validate input before the slow imports
    from primus_search.cli.output.progress import progress_bar
    from primus_search.exploration import Options, default_folder
    from primus_search.exploration.kernel_compilation import compile_kernels
    from primus_search.report.complete_search import search
    from primus_search.report.terminal import View

    _must_be_usable(load_benchmark, save_benchmark, loaded.benchmark.device != "off", baseline, out, resume)
    folder = out or default_folder(loaded.name)
    view = View(folder=str(folder), is_raw=every_row, is_verbose=verbose, token_budget=tokens)
    compile_kernels(loaded, lambda line: typer.echo(line, err=True))
    result = search(
        loaded,
        Options(
            engine=engine,
            workers=workers,
            ray_address=ray_address,
            keep=keep,
            resume=resume,
            force=force,
            inputs=inputs,
        ),
        out=folder,
        load_benchmark=load_benchmark,
        save_benchmark=save_benchmark,
        baseline=baseline,
        token_budget=tokens,
        progress=partial(progress_bar, is_shown=not json),
        on_result=_print_json if json else partial(_print, view=view),
        on_written=lambda folder: typer.echo(f"run folder: {folder}", err=True),
    )
    if result.interrupted_by:
        raise Interrupted(result.interrupted_by)


def _must_be_usable(
    load: Path | None, save: Path | None, is_measured: bool, baseline: Path | None, out: Path | None, resume: bool
) -> None:
    """Raises `InputError` where a file that was named cannot be read or used, or the run to continue is not named."""
    from primus_search.base.errors import InputError, Problem
    from primus_search.cli.output.written_files import must_exist

    must_exist(load, "--load-benchmark")
    for option, file in (("--load-benchmark", load), ("--save-benchmark", save)):
        if file is not None and not is_measured:
            raise InputError(
                [Problem(option, "nothing is measured: benchmark.device is off; --bench auto switches it on")]
            )
    if baseline is not None:
        from primus_search.analysis.own_configuration import must_be_readable

        must_be_readable(baseline)
    if resume and out is None:
        raise InputError([Problem("--resume", "needs the run folder to continue: add --out DIR")])


def _print_json(result: "SearchResult") -> None:
    from primus_search.exploration import summary

    typer.echo(dumps(summary(result), indent=2))


def _print(result: "SearchResult", view: "View") -> None:
    from primus_search.report.terminal import print_result

    print_result(result, view)


def _loaded(space: str, overrides: list[str], resumed: Path | None) -> "tuple[Space, Snapshot | None]":
    """The space with the texts it was loaded from; that of the run to continue where its originals have changed."""
    from dataclasses import replace

    from primus_search.declare import load_space
    from primus_search.declare.search_path import Snapshot, load_recorded

    kept = Snapshot.read(resumed) if resumed else None
    if kept is None or not kept.stands_for(space):
        return load_recorded(space, overrides)
    typer.echo(f"{space} changed since that run began; it goes on with the texts that it keeps", err=True)
    with kept.mounted() as source:
        loaded = load_space(source, overrides=overrides, host_file=kept.host_file)
    return replace(loaded, source=kept.source), None


def _as_overrides(
    sets: list[str] | None,
    *,
    nodes: str,
    stack: str,
    method: str,
    framework: str,
    top: int | None,
    seed: int | None,
    bench: str,
    numerics: str,
    min_fit: float,
    ignore: list[str] | None,
) -> list[str]:
    """What --set gives and the options that are keys of a space file, as overrides: one way in, one set of messages."""
    given: tuple[tuple[str, object], ...] = (
        ("--nodes nodes", _listed(nodes)),
        ("--stack stack", stack and f'"{stack}"'),
        ("--method search.method", method),
        ("--framework framework", _listed(framework)),
        ("--top search.top_k", top),
        ("--top benchmark.top_k", top),
        ("--seed search.seed", seed),
        ("--bench benchmark.device", bench and f'"{bench}"'),
        ("--numerics search.numerics", numerics),
        ("--min-fit search.min_fit", min_fit or None),
        ("--ignore ignore", ignore and f"[{','.join(ignore)}]"),
    )
    return [
        *(word for one in sets or [] for word in _as_keys(one)),
        *(f"{key}={value}" for key, value in given if value is not None and value not in ("", [])),
    ]


def _listed(text: str) -> str:
    return f"[{text}]" if "," in text else text


def _as_keys(text: str) -> list[str]:
    """What --set gives as `key=value`: a word of the tables (`PP4x2`, `recompute=full(4)`) as its axes."""
    from primus_search.space.tokens import pairs_of, read_token

    _, equals, value = text.partition("=")
    is_printed = read_token(value.strip() if equals else text.strip()) is not None
    return [f"{name}={one}" for name, one in pairs_of(text)] if is_printed else [text]
