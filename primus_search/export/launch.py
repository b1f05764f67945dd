"""Write and read launch files; what a format cannot say travels in one comment line of the file.

The comment is found by saying, reading back, and comparing: whatever did not survive is what the format cannot say.
So a format only lists what it can.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_search.candidates import Candidates
from primus_search.errors import InputError, Problem
from primus_search.export import environment, megatron, primus, torchtitan
from primus_search.export.job import Job

MARK = "# primus-search, not expressible here: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One framework's file: its name on disk, how to say a job in it, and which knobs of a text it understands.

    sign  what a text of this format has and one of another has not
    """

    filename: str
    sign: str
    say: Callable[[Job], str]
    hear: Callable[[str], Mapping[str, Any]]


FORMATS: Mapping[str, Format] = {
    "primus": Format(filename="primus.yaml", sign="overrides:", say=primus.say, hear=primus.hear),
    "megatron": Format(
        filename="megatron.sh", sign="--tensor-model-parallel-size", say=megatron.say, hear=megatron.hear
    ),
    "torchtitan": Format(filename="torchtitan.toml", sign="[parallelism]", say=torchtitan.say, hear=torchtitan.hear),
    "env": Format(filename="primus.env", sign="export PRIMUS_TP=", say=environment.say, hear=environment.hear),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch file and the knobs that its format could not say, with their values."""

    filename: str
    text: str
    unsaid: Mapping[str, Any]


def write_launch(job: Job, format_name: str) -> Launch:
    """The launch file of one candidate. Raises `InputError` for an unknown format."""
    chosen = _format(format_name)
    body = chosen.say(job)
    heard = _row(chosen.hear(body))
    unsaid = {name: value for name, value in job.row.items() if heard[name] != value}
    note = "".join(f"#   {name}: {value}\n" for name, value in unsaid.items())
    note += f"{MARK}{json.dumps(unsaid, sort_keys=True)}\n"
    return Launch(filename=chosen.filename, text=body.rstrip("\n") + "\n" + note, unsaid=unsaid)


def read_launch(text: str, format_name: str, where: str = "launch file") -> Candidates:
    """The candidate of a launch file, one row; `where` it is, for messages.

    Raises `InputError` where a value is none (`${TP}`), is missing, or the comment line has been damaged.
    """
    try:
        row = dict(_format(format_name).hear(text))
        for line in text.splitlines():
            if line.startswith(MARK):
                row |= json.loads(line.removeprefix(MARK))
        return Candidates.from_words(row)
    except KeyError as error:
        raise InputError([Problem(where, f"cannot be read as that of {format_name}: {error} is missing")]) from error
    except (ValueError, TypeError, StopIteration) as error:
        raise InputError([Problem(where, f"cannot be read as that of {format_name}: {error}")]) from error


def open_launch(path: Path) -> Candidates:
    """The candidate of a launch file of any format. Raises `InputError` where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error
    for name, known in FORMATS.items():
        if known.sign in text:
            return read_launch(text, name, str(path))
    what = "is no launch file that is known: " + ", ".join(f"{name} has '{one.sign}'" for name, one in FORMATS.items())
    raise InputError([Problem(str(path), what)])


def _row(heard: Mapping[str, Any]) -> dict[str, Any]:
    return Candidates.from_words(heard).row(0)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise InputError([Problem("--format", f"{name!r} is unknown; use one of {', '.join(FORMATS)}")])
    return FORMATS[name]
