"""The environment variables that override parallelism in Primus: `PRIMUS_TP`, `PRIMUS_PP`, `PRIMUS_EP`, and nodes."""

import re
from typing import Any

from primus_search.export.job import Job

KNOBS = {"PRIMUS_TP": "tp", "PRIMUS_PP": "pp", "PRIMUS_EP": "ep"}


def say(job: Job) -> str:
    """Lines to be sourced by a shell."""
    lines = [f"export {variable}={job.row[knob]}" for variable, knob in KNOBS.items()]
    lines.append(f"export NNODES={job.cluster.num_nodes}")
    lines.append(f"export GPUS_PER_NODE={job.cluster.network.gpus_per_node}")
    return "\n".join(lines) + "\n"


def hear(text: str) -> dict[str, Any]:
    """The knobs of lines that `say` wrote."""
    found = dict(re.findall(r"^export (\w+)=(\d+)$", text, flags=re.MULTILINE))
    return {knob: int(found[variable]) for variable, knob in KNOBS.items() if variable in found}
