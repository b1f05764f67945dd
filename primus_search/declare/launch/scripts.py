"""Arguments in shell scripts, as bash would hand them to a program."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from primus_search.declare.launch.bash import Script

FLAGS = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""

LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes", "rampup_batch_size",
)  # fmt: skip
"""Arguments of several words."""


def settings_in(text: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables have the value that the script gives them, else that of the environment, else the script's default; the
    name of one without any stays in the value (`bash.UNSET`).
    """
    script = Script(text, environ=os.environ if environ is None else environ)
    found = _arguments(script.words())
    if not ARGUMENTS & found.keys():  # a file of arrays that another one starts
        listed = [word for words in script.arrays.values() for word in words]
        held = [word for value in script.values.values() if "--" in value for word in value.split()]
        found = _arguments(listed + held) | found
    if UNDECIDED not in found and script.undecided:
        found[UNDECIDED] = script.undecided
    return found


UNDECIDED = "undecided"
"""Names without a value that branches of a script depend on."""
ARGUMENTS = {"micro_batch_size", "tensor_model_parallel_size", "num_layers", "hidden_size"}


def _arguments(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name:
            found[name].append(word)
    return {name: True if not values else values if name in LISTS else values[0] for name, values in found.items()}


def devices_in(text: str, found: dict[str, Any]) -> int:
    """GPUs a script starts: `--nnodes` times `--nproc-per-node`; 0 where it does not say."""
    try:
        return int(str(found.get("nnodes", 1))) * int(str(found.get("nproc_per_node", 0)))
    except ValueError:
        return 0


def pop_undecided(found: dict[str, Any], needed: Collection[str]) -> list[str]:
    """Names that branches depend on, taken out of a script's settings; those where an argument is missing."""
    names: list[str] = found.pop(UNDECIDED, [])
    return names if any(key not in found for key in needed) else []
