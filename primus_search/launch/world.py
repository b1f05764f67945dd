"""The GPUs that a launch command, a Slurm header or a log starts: how many, and how many on a node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import whole_number
from primus_search.files.known_keys import key_table
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_variables import SEEN, UNSET, counts_in


@dataclass(frozen=True, slots=True)
class World:
    """GPUs of a job, and GPUs of each of its nodes; 0 where the source gives no number.

    nodes: where it names its nodes alone, and every GPU of each (DeepSpeed's `--num_nodes`).
    """

    gpus: int = 0
    per_node: int = 0
    nodes: int = 0

    def __bool__(self) -> bool:
        return self.gpus > 0


NO_WORLD = World()
"""Of a source that names no GPUs."""


def nodes_of(world: World, node_gpus: int) -> tuple[int, int]:
    """Nodes and GPUs per node of a world on nodes of `node_gpus` devices, exactly as many GPUs as it has.

    GPUs per node that the source leaves out are whole nodes where the world fills them, else the most that divide it.
    """
    most = min(world.per_node or node_gpus, world.gpus)
    per_node = next(count for count in range(most, 0, -1) if world.gpus % count == 0)
    return world.gpus // per_node, per_node


def world_of(words: list[str], header: Mapping[str, str], folder: Path | None = None) -> World:
    """The GPUs that a command starts by its launcher, else by the header of its Slurm script; none where neither says.

    torchrun starts one process where neither its command nor a variable names a number (torch/distributed/run.py:
    `PET_NNODES`). folder: where a file of hosts lies.
    """
    table = key_table("worlds")
    sizes, usual = table["sizes"], table["sizes"][0]
    pairs = _canonical([part for word in words for part in _parts(word)], folder)
    seen = (
        header.get(SEEN) or _of_header(header)[0]
    )  # devices of a node that `--nproc-per-node gpu` starts processes for
    pairs = [
        str(seen) if one in ("gpu", "auto") and seen and before in usual["each"] else one
        for before, one in pairwise(["", *pairs])
    ]
    given = {word: int(value) for word, value in zip(pairs, [*pairs[1:], ""], strict=True) if whole_number(value)}
    (of_header, in_header), pods = _of_header(header), int(header.get("PET_NNODES", 0))
    in_all = next((given[one] for one in table["in_all"] if one in given), 0)
    machines = next((given[one] for row in sizes for one in row["nodes"] if one in given), 0)
    for row in sizes:
        nodes, each = row["nodes"], row["each"]
        per = next((given[one] for one in each if one in given), 0)
        is_known = any(one in given for one in nodes) or not any(one in pairs for one in nodes)
        if per and is_known and not (in_all and each == ["--gpus-per-task"]):
            alone = pods if pods or "torchrun" in words[0] else in_all // per or in_header
            many = next((given[one] for one in nodes if one in given), machines or alone or 1)
            return World(per * many, per)
    before = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))]
    is_torchrun = any(word.rpartition("/")[2] == "torchrun" or word in _RUN_MODULES for word in before)
    if is_torchrun and not any(one in pairs for one in usual["each"]) and not any(map(UNSET.search, before)):
        one_node = int(not any(one in pairs for one in usual["nodes"]))
        many = machines or one_node * (pods or 1)
        per = int(header.get("PET_NPROC_PER_NODE", 1)) if many else 0
        return World(many * per, per)
    if in_all:
        return World(in_all, in_all // machines if machines and in_all % machines == 0 else min(of_header, in_all))
    found = World(in_header * of_header, of_header) or _of_variables(header)
    many = next((given[one] for one in usual["nodes"] if one in given), 0)
    is_of_nodes = many > 1 and any(word.rpartition("/")[2] in table["of_every_device"] for word in before)
    return found or World(nodes=many * is_of_nodes)


def _of_variables(header: Mapping[str, str]) -> World:
    """Processes that torch waits for where no launcher starts them, and those of a node."""
    named = key_table("worlds")["variables"]
    gpus, nodes, each = (
        next((int(header[one]) for one in named[of] if one in header), 0) for of in ("gpus", "nodes", "each")
    )
    return World(gpus, each or (gpus // nodes if nodes and gpus % nodes == 0 else 0))


def _parts(word: str) -> list[str]:
    if joined := re.fullmatch(r"(-[Nn])(\d+)", word):
        return [joined[1], joined[2]]
    return word.split("=", 1) if word.startswith("-") and not word.startswith("-D") else [word]


def _canonical(words: list[str], folder: Path | None) -> list[str]:
    """The words of a command, options of other programs as those of torchrun and Slurm (`spaces/keys/worlds.yaml`).

    Counts of a list of hosts stand first: what the command names itself wins.
    """
    names = {word.rpartition("/")[2] for word in words}
    rows = [row for row in key_table("worlds")["options"] if any(re.fullmatch(row["program"], one) for one in names)]
    counted, kept = list[str](), list[str]()
    for word, value in zip(words, [*words[1:], ""], strict=True):
        row: Mapping[str, Any] = next((one for one in rows if re.fullmatch(one["option"], word)), {})
        file = beside(folder, value) if folder is not None and row.get("is_file") else None
        text = read_text(file, most=MAX_TABLE_BYTES) if file else "" if row.get("is_file") else value
        found = re.fullmatch(row.get("value", r"([0-9]+)"), text) if row and "each" not in row else None
        counts = [part for pair in zip(row["as"], found.groups(), strict=True) for part in pair] if found else []
        counted += _hosts(row, text) if "each" in row else counts if file else []
        kept += counts if counts and not file else [word]
    return counted + kept


def _hosts(row: Mapping[str, Any], text: str) -> list[str]:
    """Nodes, and devices of the first, of a list or a file of hosts; nodes without a number of a file not there."""
    nodes = [next(filter(None, one.groups()), "") for one in re.finditer(row["each"], text)]
    each = [str(one.count(",") + 1) if row.get("is_listed") else one for one in nodes[:1]]
    return [part for pair in zip(row["as"], [str(len(nodes) or ""), *each], strict=False) for part in pair]


_LISTS = re.compile(r"--(?:include[ =](?:[\w.-]{1,80}:)?|gpu[_-]ids[ =])(\d[\d,]*)|--(?:gpus|devices)[ =](\d+,[\d,]*)")


def listed_devices(words: list[str], variables: Mapping[str, str]) -> int:
    """How many devices of a node a command, or else its environment, lists by number, or the header of its script gives
    it; 0 where none does."""
    if found := _LISTS.search(" ".join(words)):
        return (found[1] or found[2]).strip(",").count(",") + 1
    head = {key: value for key, value in variables.items() if key.startswith("SLURM_") and value.isdecimal()}
    is_given = "SLURM_GPUS_PER_NODE" in head or "SLURM_GPUS" in head
    return int(counts_in(variables).get(SEEN, 0)) or (_of_header(head)[0] if is_given else 0)


_RUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def _of_header(header: Mapping[str, str]) -> tuple[int, int]:
    """GPUs of a node and nodes of a Slurm header; 0 GPUs where it gives none."""
    given = {name: int(header.get(f"SLURM_{name}", 0)) for name in ("NNODES", "NTASKS_PER_NODE", "GPUS_PER_TASK")}
    nodes, tasks = given["NNODES"] or int(header.get("PET_NNODES", 0)), given["NTASKS_PER_NODE"]
    in_all = int(header.get("SLURM_GPUS") or header.get("SLURM_NTASKS") or 0)
    each = int(header.get("SLURM_GPUS_PER_NODE") or header.get("PET_NPROC_PER_NODE") or 0) or tasks * (
        given["GPUS_PER_TASK"] or 1
    )
    nodes = nodes or (in_all // each if each else 0) or 1
    return each or in_all // nodes, nodes
