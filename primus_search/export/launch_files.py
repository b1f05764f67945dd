"""Launch files of one candidate: the files of its framework, written whole, or a refusal that names the knobs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.export import megatron, nemo, primus, shell, torchtitan
from primus_search.export.job import Inexpressible, LaunchJob
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates

_HOMES = {"primus": primus, "megatron": megatron, "torchtitan": torchtitan, "nemo": nemo}
WRITERS: Mapping[str, Callable[[LaunchJob], Mapping[str, str]]] = {n: home.files for n, home in _HOMES.items()}
"""What writes the files of a framework: name of each file and its text."""
STARTED_BY: Mapping[str, str] = {name: home.SCRIPT for name, home in _HOMES.items()}
"""The script of each framework that starts a node."""
SLURM, SLURM_FILE = "slurm", "job.slurm"
FORMATS = (*WRITERS, SLURM)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The files of one launch by name."""

    texts: Mapping[str, str]


def launch_files(job: LaunchJob, format_name: str = "") -> LaunchFiles:
    """The files that start a candidate that is legal under the job's framework.

    `format_name`: slurm adds a batch file. Raises `InputError` for `any`, from which no job starts,
    and `Inexpressible` for a model that the framework cannot train.
    """
    name = job.framework.launcher
    if name not in WRITERS:
        known = ", ".join(WRITERS)
        what = f"no job starts from {job.framework.title!r}; name one of {known} with --framework"
        raise InputError([Problem("--format", what)])
    texts = dict(WRITERS[name](job))
    if format_name == SLURM:
        texts[SLURM_FILE] = shell.sbatch(job, STARTED_BY[name])
    return LaunchFiles(texts=texts)


def refusal_of(space: Space, choice: ClusterChoice, row: Mapping[str, Any]) -> str:
    """Why the framework of a cluster cannot start a row; empty where it can, or where none was searched for."""
    if choice.framework.is_any:
        return ""
    candidate = Candidates.from_words({axis: row[axis] for axis in COLUMN_NAMES})
    try:
        launch_files(LaunchJob.of(space, choice, candidate))
    except Inexpressible as error:
        return str(error)
    return ""
