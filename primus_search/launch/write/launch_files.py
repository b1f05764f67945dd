"""The files that start a candidate, by the writer of its framework, and a folder that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import writing
from primus_search.launch.adapters import adapter_settings
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.shell import Text, launch_file
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates

WRITERS = ("primus", "megatron", "torchtitan", "nemo")
"""Frameworks whose files are written, each by the module of its name; NAME.sh starts a node."""
SLURM, SLURM_FILE = "slurm", "job.slurm"
FORMATS = (*WRITERS, SLURM)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The files of one launch by name."""

    files: Mapping[str, Text]

    @property
    def texts(self) -> dict[str, str]:
        """The text of every file."""
        return {name: text if isinstance(text, str) else text() for name, text in self.files.items()}


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
    if job.workload.policy is not None:
        what = f"{job.framework.title} starts no {job.workload.task} step; set the row's axes in verl, slime or NeMo-RL"
        raise Inexpressible(f"{what}, and check that file with `project`")
    if job.workload.image_tokens and not job.framework.options.get("towers"):
        what = (
            "starts no tower of this model; Megatron-Bridge does (--framework nemo), or --set workload.image_tokens=0"
        )
        raise Inexpressible(f"{job.framework.title} {what}")
    adapter_settings(job.framework, job.workload)  # a framework without them is refused before any file
    files: dict[str, Text] = dict(import_module(f"primus_search.launch.write.{name}").files(job))
    if format_name == SLURM:
        files[SLURM_FILE] = launch_file(job, SLURM_FILE, script=f"{name}.sh")
    return LaunchFiles(files=files)


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


EXECUTED = (".sh", ".slurm")
FILE_SUFFIXES = (".yaml", ".yml", ".toml", ".json", *EXECUTED)


def write_all(folder: Path, files: dict[str, LaunchFiles]) -> list[Path]:
    """Every file below `folder`, one folder a row; scripts are executable. Raises `InputError` where it cannot."""
    if folder.suffix in FILE_SUFFIXES and not folder.is_dir():
        what = f"names a folder, not a file: a launch is several files, in one folder per rank ({folder.stem}/1/...)"
        raise InputError([Problem(f"--out {folder}", what)])
    written = []
    with writing(f"--out {folder}"):
        for name, launch in files.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for filename, text in launch.texts.items():
                path = folder / name / filename
                path.write_text(text, encoding="utf-8")
                path.chmod(0o755 if path.suffix in EXECUTED else 0o644)
                written.append(path)
    return written
