"""`primus-search run` and `ask`: parse, search, print, write the run folder; `ask` writes the space file first."""

import sys
from functools import partial
from json import dumps
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.errors import InputError, NothingFits, Problem
from primus_search.base.guards.interrupts import Interrupted
from primus_search.base.lazy import load_without
from primus_search.cli import overrides
from primus_search.cli.output import must_exist, print_table, write

if TYPE_CHECKING:
    from primus_search.exploration.result import SearchResult
    from primus_search.files.snapshot import Snapshot
    from primus_search.space import Space


def run(
    space: str, nodes: str = "", sets: list[str] | None = None, stack: str = "", engine: str = "auto",
    ray_address: str = "", workers: int = 0, method: str = "", framework: str = "", top: int | None = None,
    seed: int | None = None, numerics: str = "", min_fit: float | None = None, keep: int = 100_000, bench: str = "",
    out: Path | None = None, resume: bool = False, force: bool = False, tokens: str = "", within: str = "",
    budget: str = "", chance: float | None = None, objective: str = "", cheapest: bool = False,
    price: list[str] | None = None, gpus: str = "",
    save_benchmark: Path | None = None, load_benchmark: Path | None = None, ignore: list[str] | None = None,
    baseline: Path | None = None, every_row: bool = False, verbose: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Search a space: rank the configurations that fit, draw the frontier, write a run folder."""
    given = [*(word for one in sets or [] for word in _as_keys(one)), *overrides("run", locals())]
    loaded, inputs = _loaded(space, given, out if resume else None)  # validate input before the slow imports
    from primus_search.exploration.funnel import Options
    from primus_search.exploration.kernel_compilation import compile_kernels
    from primus_search.exploration.run_folder.folder import default_folder
    from primus_search.report.terminal import View, print_result, progress_bar
    from primus_search.session.complete_search import search

    must_exist(load_benchmark, "--load-benchmark")
    for flag, file in (("--load-benchmark", load_benchmark), ("--save-benchmark", save_benchmark)):
        if file is not None and loaded.benchmark.device == "off":
            what = "nothing is measured: benchmark.device is off; --bench auto switches it on"
            raise InputError([Problem(flag, what)])
    if baseline is not None:
        from primus_search.analysis.own_configuration import must_be_readable

        must_be_readable(baseline)
    if resume and out is None:
        raise InputError([Problem("--resume", "needs the run folder to continue: add --out DIR")])
    folder = out or default_folder(loaded.name)
    view = View(folder=str(folder), is_raw=every_row, is_verbose=verbose)
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
        progress=partial(progress_bar, is_shown=not json),
        on_result=_print_json if json else partial(print_result, view=view),
        on_written=None if sys.stdout.isatty() else lambda folder: typer.echo(f"run folder: {folder}", err=True),
    )
    if result.interrupted_by:
        raise Interrupted(result.interrupted_by)


def _print_json(result: "SearchResult") -> None:
    from primus_search.exploration.run_folder.folder import summary

    typer.echo(dumps(summary(result), indent=2))


def _loaded(space: str, overrides: list[str], resumed: Path | None) -> "tuple[Space, Snapshot | None]":
    """The space with the texts it was loaded from; that of the run to continue where its originals have changed."""
    from dataclasses import replace

    load_without("numba.np.arraymath", "scipy.linalg")  # for products of matrices, which no kernel has: 0.1 s
    from primus_search.declare import load_space
    from primus_search.declare.recorded_space import load_recorded
    from primus_search.files.snapshot import Snapshot

    kept = Snapshot.read(resumed) if resumed else None
    if kept is None or not kept.stands_for(space):
        return load_recorded(space, overrides)
    typer.echo(f"{space} changed since that run began; it goes on with the texts that it keeps", err=True)
    with kept.mounted() as source:
        loaded = load_space(source, overrides=overrides, host_file=kept.host_file)
    return replace(loaded, source=kept.source), None


def _as_keys(text: str) -> list[str]:
    """What --set gives as `key=value`: a word of the tables (`PP4x2`, `recompute=full(4)`) as its axes."""
    from primus_search.space.tokens import pairs_of, read_token

    _, equals, value = text.partition("=")
    is_printed = read_token(value.strip() if equals else text.strip()) is not None
    return [f"{name}={one}" for name, one in pairs_of(text)] if is_printed else [text]


SPACE_FILE = "space.yaml"


def ask(
    model: str, hardware: str, seq: int, batch: int, nodes: str = "", gpus: str = "", tokens: str = "",
    within: str = "", budget: str = "", chance: float | None = None, objective: str = "", cheapest: bool = False,
    price: list[str] | None = None, framework: str = "", stack: str = "", task: str = "", rank: int = 0,
    modules: str = "", now: Path | None = None, log: list[Path] | None = None, sets: list[str] | None = None,
    out: Path | None = None, bench: str = "", force: bool = False, verbose: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Ask without a space file: the best configurations of a model on some nodes, everything else searched."""
    from primus_search.declare import make_space
    from primus_search.exploration.run_folder.folder import default_folder

    if not (nodes or gpus):
        raise InputError(
            [Problem("ask", "say how large the cluster is: --nodes 32 or --gpus 256, several for a table")]
        )
    goal: dict[str, Any] = {
        "tokens": tokens,
        "within": within,
        "budget": budget,
        "chance": chance,
        "objective": objective,
        "cheapest": cheapest,
        "price": price,
    }
    data = _space_of(model, hardware, {"nodes": nodes} if nodes else {"gpus": gpus}, seq, batch) | {
        key: value for key, value in (("framework", framework), ("stack", stack)) if value
    }
    given = [*(sets or []), *overrides("ask", goal)]
    if "," in task:
        alone = {"--now": now, "--log": log, "--bench": bench, "--verbose": verbose, "--json": json}
        if named := [Problem(flag, "is for one task; ask for each alone") for flag, one in alone.items() if one]:
            raise InputError(named)
        tasks = [one.strip() for one in task.split(",")]
        own = {one: _trained(one, *((0, "") if _trains_all(one) else (rank, modules))) for one in tasks}
        _ask_for_tasks(data, own, given, out, force)
        return
    data["workload"] |= _trained(task, rank, modules)
    space = make_space(data, name="ask", overrides=given)  # whatever is wrong is said before a file is written
    folder = out or default_folder(space.name)
    learned = None
    if log:
        from primus_search.cli.learn import learner

        learned = learner(log, hardware=data["hardware"], model=data["model"], base=stack or None)
    path = str(_space_file(folder, data, force))
    run(
        path,
        stack=learned(folder.resolve()) if learned else "",
        sets=sets,
        **goal,
        bench=bench,
        out=folder,
        baseline=now,
        force=force,
        verbose=verbose,
        json=json,
    )


def _trains_all(task: str) -> bool:
    """Whether a task takes no adapters."""
    from primus_search.values.tasks import TASKS

    return any(name == task and parts.adapters == "never" for name, parts in TASKS.items())


def _ask_for_tasks(
    data: dict[str, Any], tasks: dict[str, dict[str, Any]], given: list[str], out: Path | None, force: bool
) -> None:
    """Search each task alone, a folder for each, and print what they need side by side.

    Raises NothingFits where none fits.
    """
    from primus_search.declare import load_space, make_space
    from primus_search.exploration.funnel import Options
    from primus_search.exploration.run_folder.folder import default_folder
    from primus_search.report.task_text import HEAD, compared, task_rows
    from primus_search.session.complete_search import search

    spelled = {task: data | {"workload": data["workload"] | trained} for task, trained in tasks.items()}
    for one in spelled.values():
        make_space(one, name="ask", overrides=given)  # whatever is wrong is said before a file is written
    folder, found = out or default_folder(data["name"]), dict[str, "SearchResult | None"]()
    for task, one in spelled.items():
        path = _space_file(folder / task, one, force)
        try:
            found[task] = search(load_space(path, overrides=given), Options(force=force), out=folder / task)
        except NothingFits:
            found[task] = None
    if not any(found.values()):
        raise NothingFits(compared(found))
    print_table(HEAD, task_rows(found), numbers=(2, 3, 4, 5))
    typer.echo(f"\n{fill(compared(found), 80)}")
    typer.echo("Files: primus-search export RUN A   Why: primus-search explain RUN")
    typer.echo(f"Runs:  {folder}/{{{','.join(found)}}}")


def _trained(task: str, rank: int, modules: str) -> dict[str, Any]:
    """Keys of the workload that say what is trained: adapters where a rank or modules are given."""
    lora: dict[str, Any] = {"rank": rank} if rank else {}
    lora |= {"modules": [one.strip() for one in modules.split(",")]} if modules else {}
    return ({"task": task or "lora"} if task or lora else {}) | ({"lora": lora} if lora else {})


def _space_of(model: str, hardware: str, size: dict[str, str], seq: int, batch: int) -> dict[str, Any]:
    """The content of a space file; paths are absolute, for the file lies in the run folder."""
    model, *machines = (
        str(Path(text).resolve()) if Path(text).is_file() else text.strip()
        for text in (model, *([hardware] if Path(hardware).is_file() else hardware.split(",")))
    )
    (key, text), single = next(iter(size.items())), "nodes" in size
    counts = [int(text) if text.strip().isdecimal() else text for text in text.split(",")]
    return {
        "name": f"{_name(model)} on {' or '.join(map(_name, machines))}",
        "model": model,
        "hardware": machines if len(machines) > 1 else machines[0],
        key: counts if len(counts) > 1 or not single else counts[0],
        "workload": {"seq_length": seq, "global_batch_size": batch},
    }


def _name(text: str) -> str:
    """A preset as it is; of a path the file, and the folder of a config.json."""
    path = Path(text)
    return text if not path.is_absolute() else path.parent.name if path.name == "config.json" else path.stem


def _space_file(folder: Path, data: dict[str, Any], force: bool) -> Path:
    """The space file in the run folder. Raises `InputError` where it cannot be written, or another run is there."""
    from primus_search.files.source import written

    path, text = folder / SPACE_FILE, written(data)
    is_same = path.is_file() and path.read_text(encoding="utf-8") == text
    if not force and (folder / "run.json").exists() and not is_same:
        what = "holds a run of another question; choose another folder, or --force"
        raise InputError([Problem(f"--out {folder}", what)])
    write(path, text, "--out")
    return path
