"""The command line: a table of commands, each loaded when it is called, so that `--help` answers at once.

A command is a function of its own name in its own file, small ones share one (`FILES`): it parses, calls one function
of the library, prints, and returns an exit code through the type of the error it meets
(`errors.PrimusSearchError.exit_code`).
"""

import atexit
import errno
import gc
import os
import platform
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from primus_search import __version__
from primus_search.base.errors import InputError, PrimusSearchError, printable
from primus_search.base.guards import interrupts
from primus_search.cli.output import discard, prepare

COMMANDS: dict[str, str] = {
    "run": "Search a space: rank the configurations that fit, draw the frontier, write a run folder.",
    "ask": "A question without a space file: a model, a machine, lengths and counts.",
    "project": "Project one candidate: its memory tree and its step, part by part.",
    "explain": "Why a candidate of a run is fast or slow, what each knob gives, what would help.",
    "pareto": "The frontier of memory per GPU against tokens per second per GPU of a run.",
    "compare": "Two runs side by side: what changed, and why.",
    "schedules": "Every pipeline schedule side by side, with its gap to the lower bound.",
    "bench": "Measure the top candidates of a run with real torch layers on this machine.",
    "calibrate": "Fit the efficiencies of an accelerator from measurements, or measure this device.",
    "learn": "Learn the stack of your own software and cluster from its training logs.",
    "next": "Which configurations of a run to measure next, and what that is worth.",
    "tune": "Find the best configuration by running few: choose, launch, read the log, learn.",
    "validate": "Compare projections with measured training runs of a CSV file.",
    "nightly": "Run a set of spaces and compare with the committed baselines.",
    "track": "Write a run, the trials of tune or a night to MLflow.",
    "export": "Write a candidate as launch files of Primus, Megatron, NeMo, torchtitan or Slurm.",
    "models": "The model presets and their sizes.",
    "hardware": "The accelerators and networks, every number with its source.",
    "schema": "The JSON schema of a space file.",
    "words": "What a word of the tables means: sf3, PP4x2, zero1, AT RISK.",
    "doctor": "Versions, devices, caches and folders of this installation.",
}

FILES = {
    **dict.fromkeys(("schema", "words", "doctor"), "reference"),
    **dict.fromkeys(("pareto", "compare", "export", "explain", "bench", "track"), "finished_runs"),
    "ask": "run",
    "hardware": "models",
    "next": "learn",
}
"""Commands whose file has another name."""

EXTRAS = {name: f"pip install 'primus-search[{name}]'" for name in ("torch", "ray", "optuna")}
"""Libraries that a search can do without, and how to get them."""


FAULT = 70
"""Exit code after an error that no message is made for (EX_SOFTWARE of sysexits.h)."""
SHOW_TRACEBACK = "PRIMUS_SEARCH_TRACEBACK"

SELDOM = 100_000
"""Objects between collections of garbage: at 700, imports alone make a first ranking 5 % longer, at 20,000 3 %."""


class _LazyGroup(TyperGroup):
    """A command group that imports a command's file only when that command is called or asked for its own help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        function = import_module(f"primus_search.cli.{FILES.get(cmd_name, cmd_name)}").__dict__[cmd_name]
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command.command(name=cmd_name, help=function.__doc__)(function)
        return typer.main.get_command(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Choose the training configuration of a large model before the cluster is paid for.")
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        with formatter.section("Options"):
            formatter.write_dl(
                [("--version", "Print the version."), ("--help", "Show this text; also after a command.")]
            )


app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"primus-search {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True)) -> None:
    """Choose the training configuration of a large model before the cluster is paid for."""


def main() -> None:
    """Entry point of the `primus-search` command: errors a user can act on end as a message and an exit code."""
    gc.set_threshold(SELDOM)
    atexit.register(gc.freeze)  # the collections at exit would walk a million objects: 8 % of a first ranking
    prepare()
    interrupts.install()
    code = _exit_code()
    signal = interrupts.finish()
    if signal:
        typer.echo(f"primus-search: {interrupts.Interrupted(signal)}", err=True)
    sys.exit(128 + signal if signal else code)


def _exit_code() -> int:
    """The exit code of the command; what went wrong is printed."""
    try:
        try:
            interrupts.check()
            app()
        finally:
            sys.stdout.flush()
    except interrupts.Interrupted as stop:
        return 128 + stop.number
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except PrimusSearchError as error:
        typer.echo(str(error), err=True)
        return error.exit_code
    except BrokenPipeError:
        discard()  # the reader of the pipe (head, less) is gone
        return 141
    except Exception as error:
        return _unexpected(error)
    return 0


def _unexpected(error: Exception) -> int:
    """The exit code after an error without a message of its own: a missing library or file, else a fault to report."""
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        typer.echo(f"this needs {error.name}, which is not installed: {EXTRAS[error.name]}", err=True)
        return InputError.exit_code
    if isinstance(error, OSError) and (what := unusable(error)):
        if error.filename is None:
            discard()
        typer.echo(what, err=True)
        return 1 if error.filename is None else InputError.exit_code
    typer.echo(fault(error), err=True)
    if os.environ.get(SHOW_TRACEBACK):
        traceback.print_exception(error)
    return FAULT


def fault(error: Exception) -> str:
    """What is printed about an error that should have been a message."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "primus_search" in frame.filename]
    path = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames[-5:]))
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return printable(
        f"primus-search: {type(error).__name__}: {first}\n"
        "This is a fault of primus-search, or a damaged file that it should have refused by name. Please report it with"
        f" the command and this line:\n  {__version__}, Python {platform.python_version()}: {path}\n"
        f"{SHOW_TRACEBACK}=1 prints the traceback."
    )


def unusable(error: OSError) -> str:
    """The sentence for a file or stream that the system refuses, or the empty string for any other error."""
    if error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EIO):
        return f"primus-search: standard output cannot be written: {error.strerror}"
    return ""
