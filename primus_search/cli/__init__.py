"""The command line: a table of commands, each loaded when it is called, so that `--help` answers at once.

A command is a function of its own name: it parses, calls one function of the library, prints, and returns an exit code
through the type of the error it meets (`errors.PrimusSearchError.exit_code`). Types and defaults of its options are
those of the function; `commands.toml` has their texts, and the module of a command that shares one.

May import: every room.
"""

import atexit
import errno
import gc
import os
import platform
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from primus_search.base.errors import InputError, PrimusSearchError, printable
from primus_search.base.guards import interrupts
from primus_search.base.version import __version__
from primus_search.cli.output import discard, prepare

# What `--help` prints of each command and how its options are written; `shared` has the options of several.
TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
SHARED = TABLE.pop("shared")
COMMANDS: dict[str, str] = {name: rows["summary"] for name, rows in TABLE.items()}
# Libraries that a search can do without, and how to get them.
EXTRAS = {name: f"pip install 'primus-search[{name}]'" for name in ("torch", "ray", "optuna")}


FAULT = 70  # exit code after an error that no message is made for (EX_SOFTWARE of sysexits.h)
PIPE_CLOSED = 128 + signal.SIGPIPE  # what a shell says of a program that SIGPIPE ended
SHOW_TRACEBACK = "PRIMUS_SEARCH_TRACEBACK"

# Objects between collections of garbage: at 700, imports alone make a first ranking 5 % longer, at 100,000 3 %.
SELDOM = 300_000


COMPLETED = ("model", "hardware", "stack", "framework", "space", "sweep")
"""Parameters whose values shells complete by the names of shipped files, where the table does not say otherwise."""


def option(command: str, name: str) -> dict[str, Any]:
    """The row of an argument or option in the table, its flags and what completes its values included."""
    row: dict[str, Any] = TABLE[command].get(name) or SHARED[name]
    values = name.upper() if name in COMPLETED else ""
    return {"flags": "--" + name.replace("_", "-"), "values": values} | row


def overrides(command: str, given: Mapping[str, Any]) -> list[str]:
    """What --set would be given for those options of a command that stand for keys of a space file."""
    found = []
    for name, value in given.items():
        row = option(command, name)
        if "keys" in row and value is not False and value not in (None, "", []):
            if row.get("each"):
                found += [f"{row['flags']} {key}.{one}" for key in row["keys"] for one in value]
                continue
            text = ",".join(value) if isinstance(value, list) else str(value)
            text = row["form"].format(text) if "form" in row else f"[{text}]" if "," in text else text
            found += [f"{row['flags']} {key}={text}" for key in row["keys"]]
    return found


def _typed(row: Mapping[str, Any]) -> Any:
    """What typer takes for a row."""
    known = {name: row[name] for name in ("help", "metavar", "min", "max") if name in row}
    if row["values"]:
        known["autocompletion"] = _offer(row["values"])
    if "argument" in row:
        return typer.Argument(**known | {"metavar": row["argument"] or None})
    return typer.Option(*row["flags"].split(), **known)


def _offer(values: str) -> Callable[[str], list[str]]:
    """What completes a value: names of a kind of file, the last one of a list, or the letters of the last run."""

    def offered(incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",")
        return [f"{head}{comma}{name}" for name in _names(values) if name.startswith(last)]

    return offered


def _names(values: str) -> Collection[str]:
    from primus_search.files.search_path import FileKind, names

    if values in FileKind.__members__:
        return names(FileKind[values])
    if values == "RECIPE":
        from primus_search.launch.read.recipes import recipes

        return recipes()
    from primus_search.exploration.run_folder.saved_run import SavedRun, last_run

    try:
        return [one.letter for one in SavedRun.open(last_run()).answer.choices]
    except PrimusSearchError:
        return ()


class _LazyGroup(TyperGroup):
    """A command group that imports a command's file only when that command or its help is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = TABLE[cmd_name].get("module", cmd_name)
        function = import_module(f"primus_search.cli.{module}").__dict__[cmd_name]
        function.__annotations__ = {
            name: Annotated[hint, _typed(option(cmd_name, name))]
            for name, hint in get_type_hints(function).items()
            if name != "return"
        }
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
    number = interrupts.finish()
    if number:
        typer.echo(f"primus-search: {interrupts.Interrupted(number)}", err=True)
    sys.exit(128 + number if number else code)


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
        if isinstance(end.__context__, BrokenPipeError):  # typer turns it into an exit with 1
            discard()
            return PIPE_CLOSED
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except PrimusSearchError as error:
        typer.echo(str(error), err=True)
        return error.exit_code
    except BrokenPipeError:
        discard()  # the reader of the pipe (head, less) is gone
        return PIPE_CLOSED
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
