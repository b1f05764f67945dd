"""The GPUs that a launch command, a Slurm header or a log starts: how many, and how many on a node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from primus_search.base.guards.values import whole_number
from primus_search.launch.script.shell_variables import UNSET


@dataclass(frozen=True, slots=True)
class World:
    """GPUs of a job, and GPUs of each of its nodes; 0 where the source gives no number."""

    gpus: int = 0
    per_node: int = 0

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


_SIZES = (
    (("--nnodes", "--num_nodes", "--num-nodes"), ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus")),
    (("--actor-num-nodes",), ("--actor-num-gpus-per-node",)),
    (("--num_machines", "--num-machines"), ()),
    (("--nodes", "-N"), ("--ntasks-per-node", "--gpus-per-node", "--gpus-per-task")),
)
"""Options of launchers for nodes and for processes of a node."""
_IN_ALL = ("-np", "--num_processes", "--num-processes", "--ntasks", "-n")
"""Options of launchers for processes in all."""


def world_of(words: list[str], header: Mapping[str, str]) -> World:
    """The GPUs that a command starts by its launcher, else by the header of its Slurm script; none where neither says.

    torchrun starts one process where its command names no number (torch/distributed/run.py).
    """
    pairs = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = {word: int(value) for word, value in zip(pairs, [*pairs[1:], ""], strict=True) if whole_number(value)}
    of_header, in_header = _of_header(header)
    in_all = next((given[one] for one in _IN_ALL if one in given), 0)
    machines = next((given[one] for nodes, _ in _SIZES for one in nodes if one in given), 0)
    for nodes, each in _SIZES:
        per = next((given[one] for one in each if one in given), 0)
        is_known = any(one in given for one in nodes) or not any(one in pairs for one in nodes)
        if per and is_known:
            alone = 1 if "torchrun" in words[0] else in_header
            many = next((given[one] for one in nodes if one in given), machines or alone)
            return World(per * many, per)
    before = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))]
    is_torchrun = any(word.rpartition("/")[2] == "torchrun" or word in _RUN_MODULES for word in before)
    if is_torchrun and not any(one in pairs for one in _SIZES[0][1]) and not any(map(UNSET.search, before)):
        alone = 0 if any(one in pairs for one in _SIZES[0][0]) else 1
        return World(machines or alone, 1 if machines or alone else 0)
    if in_all:
        return World(in_all, in_all // machines if machines and in_all % machines == 0 else min(of_header, in_all))
    return World(in_header * of_header, of_header)


_LISTS = re.compile(r"--(?:include[ =](?:[\w.-]{1,80}:)?|gpu[_-]ids[ =])(\d[\d,]*)|--(?:gpus|devices)[ =](\d+,[\d,]*)")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def listed_devices(words: list[str], variables: Mapping[str, str]) -> int:
    """How many devices of a node a command, or else its environment, lists by number; 0 where neither does."""
    found = _LISTS.search(" ".join(words))
    lists = [found[1] or found[2]] if found else [variables.get(one, "") for one in _VISIBLE]
    return next((one.count(",") + 1 for one in lists if re.fullmatch(r"\d+(?:,\d+)*", one)), 0)


_RUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def _of_header(header: Mapping[str, str]) -> tuple[int, int]:
    """GPUs of a node and nodes of a Slurm header; 0 GPUs where it gives none."""
    each = header.get("SLURM_GPUS_PER_NODE") or header.get("SLURM_NTASKS_PER_NODE") or 0
    return int(each), int(header.get("SLURM_NNODES", 1))
