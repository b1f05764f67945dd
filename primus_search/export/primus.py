"""A Primus experiment file: the model preset and the overrides that make its trainer run this candidate.

Keys as Primus reads them at run time (AMD-AGI/Primus, primus/configs/modules/megatron/{trainer_base, primus_turbo,
primus_pipeline, zero_bubble}.yaml): Megatron's names, plus `pp_algorithm` for the schedule and the `turbo` switches.
`turbo_sync_free_moe_stage` is the key that is read; `sync_free_stage` is not.
"""

import json
import re
from typing import Any

from primus_search.export import megatron
from primus_search.export.assumed import comment
from primus_search.export.job import Job

# Schedules of Primus's own pipeline runtime; plain 1F1B and interleaved 1F1B are Megatron's and need no patch.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "zb-h1": {"pp_algorithm": "zero-bubble"},
    "zbv": {"pp_algorithm": "zbv-formatted"},
    "v-half": {"pp_algorithm": "zbv-greedy", "zero_bubble_v_schedule_mem_setup": "half"},
    "v-min": {"pp_algorithm": "zbv-greedy", "zero_bubble_v_schedule_mem_setup": "min"},
}
# Where Primus spells a key otherwise than Megatron's command line.
RENAMED = {"fp8_format": "fp8", "fp4_format": "fp4"}


def overrides(job: Job) -> dict[str, Any]:
    """The trainer overrides of this candidate."""
    said = {RENAMED.get(name, name): value for name, value in megatron.arguments(job).items()}
    row = job.row
    if row["schedule"] in ALGORITHMS:
        said |= {"patch_primus_pipeline": True} | ALGORITHMS[row["schedule"]]
    if job.model.is_moe:
        turbo = row["grouped_gemm"] == "turbo"
        said |= {"use_turbo_grouped_gemm": turbo, "use_turbo_deepep": row["deepep"]}
        said |= {"turbo_sync_free_moe_stage": row["sync_free_stage"]}
        if turbo or row["deepep"] or row["sync_free_stage"]:
            said["enable_primus_turbo"] = True
    said.setdefault("overlap_param_gather", False)
    if said.pop("no_gradient_accumulation_fusion", False):
        said["gradient_accumulation_fusion"] = False
    return said


def say(job: Job) -> str:
    """The experiment file. JSON scalars are YAML scalars, so no YAML library is needed to write it."""
    preset = re.sub(r"[^A-Za-z0-9_.-]+", "_", job.model.name)
    lines = [
        f"# nodes: {job.cluster.num_nodes} x {job.cluster.network.gpus_per_node} GPUs",
        "work_group: ${PRIMUS_TEAM:amd}",
        "user_name: ${PRIMUS_USER:root}",
        f"exp_name: ${{PRIMUS_EXP_NAME:{preset}}}",
        "workspace: ${PRIMUS_WORKSPACE:./output}",
        "modules:",
        "  pre_trainer:",
        "    framework: megatron",
        "    config: pre_trainer.yaml",
        f"    model: {preset}.yaml",
        "    overrides:",
    ]
    lines += [f"      {name}: {json.dumps(value)}" for name, value in overrides(job).items()]
    return "\n".join([*lines, *comment(job)]) + "\n"


def hear(text: str) -> dict[str, Any]:
    """The knobs of an experiment file that `say` wrote."""
    spelled = {ours: theirs for theirs, ours in RENAMED.items()}
    said: dict[str, Any] = {}
    for name, value in re.findall(r"^      (\w+): (.+)$", text, flags=re.MULTILINE):
        said[spelled.get(name, name)] = json.loads(value)
    nodes = re.search(r"^# nodes: (\d+) x (\d+) GPUs$", text, flags=re.MULTILINE)
    row = megatron.knobs(said, int(nodes.group(1)) * int(nodes.group(2)) if nodes else 1)
    if said.get("patch_primus_pipeline"):
        row["schedule"] = next(
            name for name, keys in ALGORITHMS.items() if all(said.get(key) == value for key, value in keys.items())
        )
    return row | {
        "deepep": bool(said.get("use_turbo_deepep")),
        "sync_free_stage": int(said.get("turbo_sync_free_moe_stage", 0)),
    }
