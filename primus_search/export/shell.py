"""Text of shell scripts: foreign names are quoted where they are values, and reduced to safe letters in comments."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from primus_search.export.job import LaunchJob

LONGEST_NAME = 80


def safe_name(text: str) -> str:
    """A text as a file or job name: letters, digits, dot, dash and underscore only, never empty, never hidden."""
    bare = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("._-")
    return bare[:LONGEST_NAME] or "model"


def words(settings: Mapping[str, Any]) -> list[list[str]]:
    """Settings as command-line options, each a list of quoted words; None and False are left out."""
    lines = []
    for name, value in settings.items():
        if value is None or value is False:
            continue
        given = [] if value is True else value if isinstance(value, list) else [value]
        lines.append([f"--{name.replace('_', '-')}", *(shlex.quote(str(one)) for one in given)])
    return lines


def array(name: str, settings: Mapping[str, Any]) -> list[str]:
    """A bash array of command-line options, one option a line."""
    return [f"{name}=(", *("  " + " ".join(line) for line in words(settings)), ")"]


RENDEZVOUS = """\
: "${NNODES:=@NODES@}"
: "${GPUS_PER_NODE:=@GPUS@}"
: "${NODE_RANK:=${SLURM_NODEID:-0}}"
if [[ -z "${MASTER_ADDR:-}" && -n "${SLURM_JOB_NODELIST:-}" ]]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
: "${MASTER_ADDR:=localhost}"
: "${MASTER_PORT:=29500}"
"""
"""Where nodes meet: the user's variables first, then Slurm's, then this machine."""

TORCHRUN = """\
torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \\
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\"""


def offloading(job: LaunchJob) -> list[str]:
    """What Transformer Engine needs beside offloaded modules, so that it leaves weights alone (arguments.py)."""
    return [] if job.row["offload_modules"] == "none" else ["export NVTE_CPU_OFFLOAD_V1=1"]


def _size(job: LaunchJob) -> tuple[int, int]:
    return job.cluster.num_nodes, job.cluster.network.gpus_per_node


def rendezvous(job: LaunchJob) -> str:
    """The lines that set where nodes meet."""
    nodes, gpus = _size(job)
    return RENDEZVOUS.replace("@NODES@", str(nodes)).replace("@GPUS@", str(gpus)).rstrip()


def notes(job: LaunchJob, edits: list[str]) -> str:
    """The comments at the top of a file that a script reads: for which cluster it is, what is to be edited by hand."""
    nodes, gpus = _size(job)
    return text_of([f"# nodes: {nodes} x {gpus} GPUs", release(job), *(f"# Edit: {line}" for line in edits)])


def release(job: LaunchJob) -> str:
    """The comment that names the release that a file is written for, and the software it was priced with."""
    framework = job.framework
    at = framework.name.partition("@")[2]
    needed = f"{framework.title} {at}" if at else framework.release
    return f"# Needs: {needed}; priced as stack {safe_name(job.cluster.stack.reference)}"


def script(job: LaunchJob, name: str, edits: list[str], body: list[str]) -> str:
    """A script: what it starts, how, what is to be edited by hand, then its lines."""
    nodes, gpus = _size(job)
    head = [
        "#!/usr/bin/env bash",
        f"# {safe_name(job.model.name)} on {nodes} nodes x {gpus} GPUs",
        release(job),
        f"# Slurm: srun --nodes {nodes} --ntasks-per-node 1 --gpus-per-node {gpus} bash {name}",
        *(f"# Edit: {line}" for line in edits),
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
    ]
    return text_of([*head, *body])


def text_of(lines: list[str]) -> str:
    """Lines as the text of a file."""
    return "\n".join(lines) + "\n"


def sbatch(job: LaunchJob, script: str) -> str:
    """A Slurm batch file that starts a script once per node."""
    nodes, gpus = _size(job)
    lines = [
        "#!/usr/bin/env bash",
        "# Edit: account, partition and time limit",
        f"#SBATCH --job-name={safe_name(job.model.name)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={gpus}",
        "#SBATCH --exclusive",
        "#SBATCH --time=01:00:00",
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        f"srun bash {script}",
    ]
    return text_of(lines)
