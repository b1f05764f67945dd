"""Launch files from `templates/launch/`: foreign names are quoted, and reduced to safe letters in comments."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.base.html_templates import rendered
from primus_search.files.source import read
from primus_search.launch.workload_settings import unwritten
from primus_search.launch.write.job import LaunchJob
from primus_search.values.machine.framework import NOTHING, Settings

LONGEST_NAME = 80


@lru_cache
def argument_table(name: str) -> dict[str, Any]:
    """A part of `arguments.yaml`: what launch files say that no knob decides."""
    found: dict[str, Any] = read(Path(__file__).with_name("arguments.yaml")).data[name]
    return found


Text = str | Callable[[], str]
"""The text of a file, or what renders it: whether a framework can say a job shows before any template is read."""


def launch_file(
    job: LaunchJob,
    template: str,
    edits: Sequence[str] = (),
    body: str = "",
    packed: Settings | None = NOTHING,
    **values: Any,
) -> Callable[[], str]:
    """What renders a template of a job, then `body`; `edits`: what is to be set by hand beside that of every job;
    `packed`: settings of the file that say how rows are filled, None where what it runs brings them."""
    framework = job.framework
    at, listed = framework.name.partition("@")[2], argument_table("edits")
    needed = f"{framework.title} {at}" if at else framework.release
    values |= {
        "name": template,
        "model": safe_name(job.model.name),
        "nodes": job.cluster.num_nodes,
        "gpus": job.cluster.network.gpus_per_node,
        "domain": job.cluster.network.domain_size,
        "needs": f"{needed}; priced as stack {safe_name(job.cluster.stack.reference)}",
        "edits": [*(listed.get(framework.name) or listed[framework.launcher]), *edits, *_of_workload(job, packed)],
        "options": framework.options,
        "row": job.row,
    }
    return lambda: rendered(f"launch/{template}", **values) + body


def _of_workload(job: LaunchJob, packed: Settings | None) -> list[str]:
    """What a person is to set for a workload, with the value that prices it."""
    texts = argument_table("workload")
    by_lengths = ("document_length",) if job.workload.lengths else ()
    values = {
        field: value for field, value in unwritten(job, packed).items() if field in texts and field not in by_lengths
    }
    return [f"{texts[field].format(value)}{_set(field, value)}" for field, value in values.items()]


def _set(field: str, value: Any) -> str:
    """How a value of a workload is given to a projection of the file."""
    is_plain = isinstance(value, str | int | float)
    return f" (--set workload.{field}={value})" if is_plain else " (--set workload.document_length=lengths.txt)"


def safe_name(text: str) -> str:
    """A text as a file or job name: letters, digits, dot, dash and underscore only, never empty, never hidden."""
    bare = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("._-")
    return bare[:LONGEST_NAME] or "model"


def words(settings: Mapping[str, Any]) -> list[list[str]]:
    """Settings as command-line options, each a list of quoted words; None and False are left out."""
    given = {name: value for name, value in settings.items() if value is not None and value is not False}
    lists = {
        name: [] if value is True else value if isinstance(value, list) else [value] for name, value in given.items()
    }
    return [[f"--{name.replace('_', '-')}", *(shlex.quote(str(one)) for one in many)] for name, many in lists.items()]
