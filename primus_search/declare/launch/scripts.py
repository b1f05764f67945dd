"""Arguments in shell scripts, as bash would hand them to a program."""

import re
import shlex
from typing import Any

FLAGS = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""

ASSIGNED = re.compile(r"(?:^|;)[ \t]{0,80}(?:export[ \t]{1,80})?([A-Za-z_]\w{0,200})=([^\s;()]*)", re.MULTILINE)
REFERENCE = re.compile(r"\$\{(\w{1,200})(?::?[-=]([^}]{0,400}))?\}|\$(\w+)")


def settings_in(text: str) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables that the script itself assigns are filled in, and the default of `${TP:-8}`; others stay as written.
    """
    body = ARRAY.sub(" -- ", resolved(text.replace("\\\n", " ")))
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(body, comments=True):
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").rstrip(")").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name:
            found[name].append(word.rstrip(")") if "(" not in word else word)
    return {name: True if not values else values if name in LISTS else values[0] for name, values in found.items()}


ARRAY = re.compile(
    r"^[ \t]{0,80}(?:declare[ \t]{1,80}-a[ \t]{1,80})?\w{1,200}\+?=\(|^[ \t]{0,80}\)[ \t\r]*$", re.MULTILINE
)
"""Where an array of arguments begins and ends."""


LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes", "rampup_batch_size",
)  # fmt: skip
"""Arguments of several words."""


def resolved(text: str) -> str:
    """A script with the values of its own variables and the defaults of others filled in."""
    known = {name: _without_itself(name, value.strip("\"'")) for name, value in ASSIGNED.findall(text)}

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1] or match[3], match[2])
        return match[0] if found is None else str(found)

    for _ in range(4):  # a variable may hold another
        text = REFERENCE.sub(value, text)
    return text


def _without_itself(name: str, value: str) -> str:
    """A value that may refer to its own variable's default, `PP=${PP:-4}`, without that reference."""
    return REFERENCE.sub(lambda match: match[2] if match[1] == name and match[2] is not None else match[0], value)


def devices_in(text: str, found: dict[str, Any]) -> int:
    """GPUs a script starts: `--nnodes` times `--nproc-per-node`; 0 where it does not say."""
    try:
        return int(str(found.get("nnodes", 1))) * int(str(found.get("nproc_per_node", 0)))
    except ValueError:
        return 0
