"""`primus-search ask`: a question without a space file, which it writes into the run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A preset, or the path of a config.json or a model file.")]
Hardware = Annotated[str, typer.Argument(metavar="HARDWARE", help="An accelerator by name, or a hardware file.")]
Nodes = Annotated[str, typer.Option(help="Number of nodes; several make a scaling table: 8,16,32.")]
Seq = Annotated[int, typer.Option("--seq", min=1, help="Sequence length in tokens.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Global batch in samples.")]
FrameworkName = Annotated[
    str, typer.Option("--framework", metavar="NAME", help="What starts the job: torchtitan, megatron, ... or any.")
]
StackName = Annotated[str, typer.Option("--stack", help="A software stack by name or path.")]
Now = Annotated[Path | None, typer.Option("--now", metavar="FILE", help="What you run now: shown with its rank.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further keys; repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; default results/runs/<time>-<model>.")]
Bench = Annotated[str, typer.Option(metavar="auto|off|trace|cpu|cuda", help="Re-validate the top rows with torch.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the run of another question in --out.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print ranking, frontier, parts, stages and rules too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print run.json to standard output, nothing else.")]

SPACE_FILE = "space.yaml"


def ask(
    model: Model,
    hardware: Hardware,
    nodes: Nodes,
    seq: Seq,
    batch: Batch,
    framework: FrameworkName = "",
    stack: StackName = "",
    now: Now = None,
    sets: Sets = None,
    out: Out = None,
    bench: Bench = "",
    force: Force = False,
    verbose: Verbose = False,
    json: AsJson = False,
) -> None:
    """Ask without a space file: the best configurations of a model on some nodes, everything else searched."""
    from primus_search.cli.run import run
    from primus_search.declare import make_space
    from primus_search.exploration import default_folder

    data = _space_of(model, hardware, nodes, seq, batch) | {
        key: value for key, value in (("framework", framework), ("stack", stack)) if value
    }
    space = make_space(data, name="ask", overrides=sets or ())  # whatever is wrong is said before a file is written
    folder = out or default_folder(space.name)
    run(
        space=str(_space_file(folder, data, force)),
        sets=sets,
        bench=bench,
        out=folder,
        baseline=now,
        force=force,
        verbose=verbose,
        json=json,
    )


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
    from primus_search.cli.output.written_files import write
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
