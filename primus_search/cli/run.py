"""`primus-search run` and `ask`: parse, search, print, write the run folder; `ask` writes the space file first."""

import sys
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from primus_search.base.guards.interrupts import Interrupted
from primus_search.base.lazy import load_without

if TYPE_CHECKING:
    from primus_search.declare.search_path import Snapshot
    from primus_search.exploration import SearchResult
    from primus_search.report.terminal import View
    from primus_search.space import Space


class Key(NamedTuple):
    """An option that overrides keys of a space file, and how its value is written there."""

    option: str
    keys: tuple[str, ...]
    form: str = "{}"

    def overrides(self, value: Any) -> list[str]:
        """What --set would be given; nothing for an option that was left out."""
        if value is None or value in ("", []):
            return []
        text = self.form.format(",".join(value) if isinstance(value, list) else value)
        return [f"--{self.option} {key}={_listed(text) if self.form == '{}' else text}" for key in self.keys]


Spaces = Annotated[str, typer.Argument(metavar="SPACE", help="A space file, or the name of one that ships with it.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; repeatable.")]
Nodes = Annotated[
    str, typer.Option(help="Number of nodes; several make a scaling table: 8,16,32."), Key("nodes", ("nodes",))
]
StackName = Annotated[
    str,
    typer.Option("--stack", help="A software stack by name or path; one that `learn` wrote, too."),
    Key("stack", ("stack",), '"{}"'),
]
FrameworkName = Annotated[
    str,
    typer.Option("--framework", metavar="NAME", help="What starts the job: primus, megatron, torchtitan, nemo or any."),
    Key("framework", ("framework",)),
]
Bench = Annotated[
    str,
    typer.Option(metavar="auto|off|trace|cpu|cuda", help="Re-validate the top rows with torch."),
    Key("bench", ("benchmark.device",), '"{}"'),
]
Out = Annotated[Path | None, typer.Option(help="Run folder; default results/runs/<time>-<space>.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the run of another question in --out.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print ranking, frontier, parts, stages and rules as well.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print run.json to standard output, nothing else.")]


def run(
    space: Spaces,
    nodes: Nodes = "",
    sets: Sets = None,
    stack: StackName = "",
    engine: Annotated[
        str, typer.Option("--engine", metavar="auto|local|ray", help="Where candidates are evaluated.")
    ] = "auto",
    ray_address: Annotated[str, typer.Option(help="Join this Ray cluster (auto, host:port, ray://host:port).")] = "",
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes every core.")] = 0,
    method: Annotated[
        str,
        typer.Option("--method", metavar="auto|exhaustive|tpe|nsga2|nsga3|gp|qmc|random", help="How to search."),
        Key("method", ("search.method",)),
    ] = "",
    framework: FrameworkName = "",
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of the ranking to print and re-validate; left out: as the space says."),
        Key("top", ("search.top_k", "benchmark.top_k")),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of everything random; left out: as the space says."),
        Key("seed", ("search.seed",)),
    ] = None,
    numerics: Annotated[
        str,
        typer.Option("--numerics", metavar="safe|usual|any", help="safe: BF16 alone; any: every low-precision recipe."),
        Key("numerics", ("search.numerics",)),
    ] = "",
    min_fit: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=100.0, help="Leave out what fits in memory with a lower probability, in percent: 95."
        ),
        Key("min-fit", ("search.min_fit",)),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Best rows kept in candidates.parquet.")] = 100_000,
    bench: Bench = "",
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run of --out where it stopped.")] = False,
    force: Force = False,
    tokens: Annotated[
        float, typer.Option(min=0.0, max=1e18, help="Tokens to train on, for days and cost in the scaling table: 1e12.")
    ] = 0.0,
    save_benchmark: Annotated[Path | None, typer.Option(help="Write the measurements used to this file.")] = None,
    load_benchmark: Annotated[Path | None, typer.Option(help="Use the measurements of this file.")] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="KEY", help="Leave out this key of the model file; repeatable."),
        Key("ignore", ("ignore",), "[{}]"),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="What you run now: an experiment, shown with its rank."),
    ] = None,
    every_row: Annotated[bool, typer.Option("--all", help="Print the ranking row by row as well.")] = False,
    verbose: Verbose = False,
    json: AsJson = False,
) -> None:
    """Search a space: rank the configurations that fit, draw the frontier, write a run folder."""
    overrides = _as_overrides(sets, locals())
    loaded, inputs = _loaded(space, overrides, out if resume else None)  # validate input before the slow imports
    from primus_search.exploration import Options, default_folder
    from primus_search.exploration.kernel_compilation import compile_kernels
    from primus_search.report.complete_search import search
    from primus_search.report.terminal import View, progress_bar

    _must_be_usable(load_benchmark, save_benchmark, loaded.benchmark.device != "off", baseline, out, resume)
    folder = out or default_folder(loaded.name)
    view = View(folder=str(folder), is_raw=every_row, is_verbose=verbose, token_budget=tokens)
    compile_kernels(loaded, partial(typer.echo, err=True))
    options = Options(
        engine=engine, workers=workers, ray_address=ray_address, keep=keep, resume=resume, force=force, inputs=inputs
    )
    result = search(
        loaded,
        options,
        out=folder,
        load_benchmark=load_benchmark,
        save_benchmark=save_benchmark,
        baseline=baseline,
        token_budget=tokens,
        progress=partial(progress_bar, is_shown=not json),
        on_result=_print_json if json else partial(_print, view=view),
        on_written=None if sys.stdout.isatty() else lambda folder: typer.echo(f"run folder: {folder}", err=True),
    )
    if result.interrupted_by:
        raise Interrupted(result.interrupted_by)


def _must_be_usable(
    load: Path | None, save: Path | None, is_measured: bool, baseline: Path | None, out: Path | None, resume: bool
) -> None:
    """Raises `InputError` where a file that was named cannot be read or used, or the run to continue is not named."""
    from primus_search.base.errors import InputError, Problem
    from primus_search.cli.output import must_exist

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

    load_without("numba.np.arraymath", "scipy.linalg")  # for products of matrices, which no kernel has: 0.1 s
    from primus_search.declare import load_space
    from primus_search.declare.search_path import Snapshot, load_recorded

    kept = Snapshot.read(resumed) if resumed else None
    if kept is None or not kept.stands_for(space):
        return load_recorded(space, overrides)
    typer.echo(f"{space} changed since that run began; it goes on with the texts that it keeps", err=True)
    with kept.mounted() as source:
        loaded = load_space(source, overrides=overrides, host_file=kept.host_file)
    return replace(loaded, source=kept.source), None


def _as_overrides(sets: list[str] | None, given: dict[str, Any]) -> list[str]:
    """What --set gives and the options that are keys of a space file, as overrides: one way in, one set of messages."""
    hints = run.__annotations__.items()
    named = [
        (key, given[name]) for name, hint in hints for key in getattr(hint, "__metadata__", ()) if isinstance(key, Key)
    ]
    return [
        *(word for one in sets or [] for word in _as_keys(one)),
        *(text for key, value in named for text in key.overrides(value)),
    ]


def _listed(text: str) -> str:
    return f"[{text}]" if "," in text else text


def _as_keys(text: str) -> list[str]:
    """What --set gives as `key=value`: a word of the tables (`PP4x2`, `recompute=full(4)`) as its axes."""
    from primus_search.space.tokens import pairs_of, read_token

    _, equals, value = text.partition("=")
    is_printed = read_token(value.strip() if equals else text.strip()) is not None
    return [f"{name}={one}" for name, one in pairs_of(text)] if is_printed else [text]


SPACE_FILE = "space.yaml"


def ask(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A preset, or the path of a config.json or a model file.")
    ],
    hardware: Annotated[str, typer.Argument(metavar="HARDWARE", help="An accelerator by name, or a hardware file.")],
    nodes: Nodes,
    seq: Annotated[int, typer.Option("--seq", min=1, help="Sequence length in tokens.")],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Global batch in samples.")],
    framework: FrameworkName = "",
    stack: StackName = "",
    now: Annotated[
        Path | None, typer.Option("--now", metavar="FILE", help="What you run now: shown with its rank.")
    ] = None,
    sets: Sets = None,
    out: Out = None,
    bench: Bench = "",
    force: Force = False,
    verbose: Verbose = False,
    json: AsJson = False,
) -> None:
    """Ask without a space file: the best configurations of a model on some nodes, everything else searched."""
    from primus_search.declare import make_space
    from primus_search.exploration import default_folder

    data = _space_of(model, hardware, nodes, seq, batch) | {
        key: value for key, value in (("framework", framework), ("stack", stack)) if value
    }
    space = make_space(data, name="ask", overrides=sets or ())  # whatever is wrong is said before a file is written
    folder = out or default_folder(space.name)
    path = str(_space_file(folder, data, force))
    run(path, sets=sets, bench=bench, out=folder, baseline=now, force=force, verbose=verbose, json=json)


def _space_of(model: str, hardware: str, nodes: str, seq: int, batch: int) -> dict[str, Any]:
    """The content of a space file; paths are absolute, for the file lies in the run folder."""
    model, hardware = (str(Path(text).resolve()) if Path(text).is_file() else text for text in (model, hardware))
    counts = [int(text) if text.strip().isdecimal() else text for text in nodes.split(",")]
    return {
        "name": f"{_name(model)} on {_name(hardware)}",
        "model": model,
        "hardware": hardware,
        "nodes": counts if len(counts) > 1 else counts[0],
        "workload": {"seq_length": seq, "global_batch_size": batch},
    }


def _name(text: str) -> str:
    """A preset as it is; of a path the file, and the folder of a config.json."""
    path = Path(text)
    return text if not path.is_absolute() else path.parent.name if path.name == "config.json" else path.stem


def _space_file(folder: Path, data: dict[str, Any], force: bool) -> Path:
    """The space file in the run folder. Raises `InputError` where it cannot be written, or another run is there."""
    from primus_search.base.errors import InputError, Problem
    from primus_search.cli.output import write
    from primus_search.declare.source import written

    path, text = folder / SPACE_FILE, written(data)
    if (
        not force
        and (folder / "run.json").exists()
        and not (path.is_file() and path.read_text(encoding="utf-8") == text)
    ):
        raise InputError(
            [Problem(f"--out {folder}", "holds a run of another question; choose another folder, or --force")]
        )
    write(path, text, "--out")
    return path
