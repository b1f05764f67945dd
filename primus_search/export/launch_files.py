"""Launch files of one candidate: the files of its framework, written whole, or a refusal that names the knobs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from primus_search.errors import InputError, Problem
from primus_search.export import megatron, nemo, primus, shell, torchtitan
from primus_search.export.job import LaunchJob

WRITERS: Mapping[str, Callable[[LaunchJob], Mapping[str, str]]] = {
    "primus": primus.files,
    "megatron": megatron.files,
    "torchtitan": torchtitan.files,
    "nemo": nemo.files,
}
"""What writes the files of a framework: name of each file and its text."""
STARTED_BY = {
    "primus": primus.SCRIPT,
    "megatron": megatron.SCRIPT,
    "torchtitan": torchtitan.SCRIPT,
    "nemo": nemo.SCRIPT,
}
"""The script of each framework that starts a node."""
SLURM, SLURM_FILE = "slurm", "job.slurm"
FORMATS = (*WRITERS, SLURM)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The files of one launch by name, and those of them that are executed."""

    texts: Mapping[str, str]

    @property
    def executables(self) -> tuple[str, ...]:
        """Names of the files to be made executable."""
        return tuple(name for name in self.texts if name.endswith((".sh", ".slurm")))


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
        nodes, gpus = job.cluster.num_nodes, job.cluster.network.gpus_per_node
        texts[SLURM_FILE] = shell.sbatch(job.model.name, nodes, gpus, STARTED_BY[name])
    return LaunchFiles(texts=texts)
