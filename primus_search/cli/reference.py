"""`primus-search schema`, `words` and `doctor`: space files, words of the tables, this installation."""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from primus_search.base.cores import available_cores
from primus_search.base.units import GB


def schema(of: str = "space") -> None:
    """The JSON schema of a space file, or of what a command prints with --json: `schema run`.

    Save it and point your editor at it: `# yaml-language-server: $schema=space.schema.json` as the first line of a
    space file completes keys and values and checks them as you type. `schema run` is that of run.json, too.
    """
    from primus_search.base.errors import InputError, Problem, did_you_mean
    from primus_search.cli.output_schema import commands, output_schema
    from primus_search.declare.space_schema import json_schema

    known = ("space", *commands())
    if of not in known:
        raise InputError(
            [Problem(f"schema {of[:40]}", f"has none{did_you_mean(of, known)} - known: {', '.join(known)}")]
        )
    typer.echo(json.dumps(json_schema() if of == "space" else output_schema(of), indent=2))


def words(word: str = "") -> None:
    """What a word of the tables means: sf3, PP4x2, zero1, AT RISK; without a word, all of them."""
    import textwrap

    from primus_search.analysis.glossary import TERMS, every_token, explain_word, nicknames
    from primus_search.base.errors import InputError, Problem, did_you_mean

    if word:
        lines = explain_word(word)
        if not lines:
            near = did_you_mean(word, [*TERMS, *(token for token, _ in every_token())])
            raise InputError([Problem(f"words {word}", f"is no word of the tables{near}")])
        for line in lines:
            typer.echo(line)
        return
    for name, text in [*every_token(), *TERMS.items()]:
        typer.echo(textwrap.fill(f"{name:<22} {text}", 80, subsequent_indent=" " * 23))
    typer.echo("Short names of axes: " + ", ".join(nicknames()))


def doctor(as_json: bool = False) -> None:
    """Versions, devices, caches and folders of this installation."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(found) for found in findings], indent=2))
    else:
        width = max(len(f.name) for f in findings)
        for f in findings:
            typer.echo(f"{'ok ' if f.is_well else 'BAD'} {f.name:<{width}}  {f.value}")
    if not all(f.is_well for f in findings):
        raise typer.Exit(1)


NEEDED = ("numpy", "numba", "scipy", "pydantic", "pyarrow")
# What may be missing, and what is then not done.
EXTRAS = {
    "torch": "memory stays projected and nothing is measured; pip install 'primus-search[torch]'",
    "ray": "searches use this machine alone; pip install 'primus-search[ray]'",
    "optuna": "large spaces are not sampled; pip install 'primus-search[optuna]'",
}
SPARE_BYTES = 1.0 * GB  # free disk below which a run folder with its Parquet table and a Ray session may not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact, and whether the tool can work with it."""

    name: str
    value: str
    is_well: bool = True


def examine() -> list[Finding]:
    """Every finding, in the order a person would ask."""
    return [*_versions(), *_machine(), *_devices(), *_folders()]


def _versions() -> Iterator[Finding]:
    yield Finding(name="python", value=platform.python_version())
    for name in ("primus-search", *NEEDED, *EXTRAS):
        try:
            yield Finding(name=name, value=metadata.version(name))
        except metadata.PackageNotFoundError:
            what = f", optional: {EXTRAS[name]}" if name in EXTRAS else ""
            yield Finding(name=name, value=f"not installed{what}", is_well=name in EXTRAS)


def _machine() -> Iterator[Finding]:
    yield Finding(name="processors", value=str(available_cores()))
    address = os.environ.get("RAY_ADDRESS", "")
    yield Finding(name="ray cluster", value=address or "none named by RAY_ADDRESS; a local one is started when it pays")


def _devices() -> Iterator[Finding]:
    """Accelerators by their drivers' device files, so that torch need not be loaded."""
    nvidia = sorted(Path("/dev").glob("nvidia[0-9]*"))
    amd = sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"))
    num_amd = sum(path.read_text(encoding="utf-8").strip() not in ("", "0") for path in amd)
    if not nvidia and not num_amd:
        yield Finding(name="accelerators", value="none; times stay projected, memory is traced on the processor")
        return
    yield Finding(name="accelerators", value=f"{len(nvidia)} NVIDIA, {num_amd} AMD")


def _folders() -> Iterator[Finding]:
    for name, folder in (("run folders", Path("results/runs")), ("temporary files", Path(tempfile.gettempdir()))):
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        can_write, free = os.access(there, os.W_OK), shutil.disk_usage(there).free
        value = f"{folder} ({'writable' if can_write else 'NOT writable'}, {free / GB:.0f} GB free)"
        yield Finding(name=name, value=value, is_well=can_write and free > SPARE_BYTES)
