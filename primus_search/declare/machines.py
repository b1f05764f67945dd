"""The clusters of a space file: devices, prices, stacks, frameworks and sizes by name, in every combination."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from primus_search.base.errors import did_you_mean, tried
from primus_search.declare import variants
from primus_search.declare.file_problems import FileProblems
from primus_search.declare.space_schema import SpaceFile
from primus_search.files.framework_files import default_framework, framework_names, load_framework
from primus_search.files.hardware_files import Hardware, is_guess, load_hardware, load_stack, on_gpus, site_of
from primus_search.files.search_path import title
from primus_search.files.source import Keys, join_words
from primus_search.space import ClusterChoice
from primus_search.space.context import FACTS
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.stack import Stack, with_numbers
from primus_search.values.model import Model

MAX_NODES = 1_000_000
"""Upper limit of a cluster that can be planned; the largest announced have some 100,000 nodes."""

MAX_CLUSTERS = 1000


@dataclass(frozen=True, slots=True)
class MachineReader:
    """Reads the clusters of one space file; what is wrong with them goes to `noted`.

    beside, host_file   where files named in it are, and that of this machine (`files.hardware_files`)
    is_started          the job of a launch file, which another program with adapters may start
    """

    noted: FileProblems
    beside: Path | None
    host_file: Callable[[], Path] | None
    is_started: bool

    def clusters(self, shape: SpaceFile, axes: list[variants.HardwareAxis], model: Model | None) -> list[ClusterChoice]:
        """Every combination of sizes, machines and hardware axes; none where one of them is wrong."""
        before = len(self.noted.problems)
        nodes = [] if self._size_key() == "gpus" else self.noted.listed("nodes", shape.nodes)
        for count, keys in nodes:
            if not 1 <= count <= MAX_NODES:
                wrong = "must be at least 1" if count < 1 else f"at most {MAX_NODES:,} nodes can be planned"
                self.noted.problem(keys, f"{wrong}, got {count}")
        machines = self._machines(shape, model)
        self.noted.notes += dict.fromkeys(
            f"nodes of {shape.gpus_per_node} devices: {one.hardware.name} has {one.hardware.network.gpus_per_node}, "
            f"and {one.hardware.network.domain_size} that reach each other without NICs"
            for one in machines
            if (shape.gpus_per_node or 0) > one.hardware.network.gpus_per_node
        )
        sizes = [(machine, count) for machine in machines for count, _ in nodes]
        sizes = sizes or self._of_gpus(shape, machines)
        if len(self.noted.problems) > before:
            return []
        count = len(sizes)
        for axis in axes:
            count *= len(axis.values)
        if count > MAX_CLUSTERS:
            what = f"nodes, hardware, stack and hardware axes make {count:,} clusters; at most {MAX_CLUSTERS:,}"
            self.noted.problem(("space",), what)
            return []
        try:
            return variants.clusters(sizes, axes, shape.gpus_per_node)
        except ValueError as error:
            self.noted.problem(("space",), str(error))
            return []

    def _size_key(self) -> str:
        """Whether nodes or devices say how large clusters are: a flag wins; a problem where both say it alike."""
        given = [key for key in ("nodes", "gpus") if key in self.noted.document.data]
        flags = [key for key in given if (key,) in self.noted.document.origins]
        if len(given) == 2 and len(flags) != 1:
            self.noted.problem(("gpus",), "nodes are given as well; keep one of them")
        return flags[0] if len(flags) == 1 else given[-1] if given else "nodes"

    def _of_gpus(self, shape: SpaceFile, machines: Sequence[variants.Machine]) -> list[tuple[variants.Machine, int]]:
        """Every machine with the nodes that hold the wanted devices, or a part of one; a problem where these are no
        whole nodes."""
        found = []
        for machine in machines:
            per_node = shape.gpus_per_node or machine.hardware.network.gpus_per_node
            for i, gpus in enumerate(shape.gpus):
                if 0 < gpus < per_node and shape.gpus_per_node is None:
                    hardware = machine.hardware
                    part = replace(hardware, network=on_gpus(hardware.network, gpus))
                    found.append((replace(machine, hardware=part), 1))
                    continue
                found.append((machine, gpus // per_node))
                if gpus < 1 or gpus % per_node or gpus // per_node > MAX_NODES:
                    near = join_words([gpus // per_node * per_node or per_node, (gpus // per_node + 1) * per_node])
                    whole = f"whole nodes of {per_node} {machine.hardware.name}"
                    what = f"{gpus} devices are no {whole}; use {near}, or give gpus_per_node"
                    self.noted.problem(("gpus", i), what)
        return found

    def _priced(self, hardware: Hardware, text: str, shape: SpaceFile) -> Hardware:
        """The hardware at the price that the space gives for its name, if any."""
        names = {text.lower(), title(text).lower(), hardware.name.lower()}
        given = [price for name, price in shape.price.items() if name.lower() in names]
        return replace(hardware, price_per_gpu_hour_usd=given[-1]) if given else hardware

    def _check_prices(self, shape: SpaceFile, machines: Sequence[variants.Machine]) -> None:
        """Problems of prices of no device of the space, and of prices that are none."""
        given = [shape.hardware] if isinstance(shape.hardware, str) else shape.hardware
        known = {name.lower() for text in given for name in (text, title(text))}
        known |= {one.hardware.name.lower() for one in machines}
        for name, price in shape.price.items():
            if name.lower() not in known:
                near = did_you_mean(name.lower(), known)
                what = f"is no device of this space{near} - known: {', '.join(sorted(known))}"
                self.noted.problem(("price", name), what)
            elif price <= 0.0:
                self.noted.problem(("price", name), f"must be above 0, got {price:g}")

    def _machines(self, shape: SpaceFile, model: Model | None) -> list[variants.Machine]:
        """Every combination of hardware, stack and framework of the file."""
        machines: list[variants.Machine] = []
        devices = [one for one in self._hardware(shape) if one is not None]
        frameworks = self._frameworks(shape, devices)
        named = self._named_stacks(shape) if shape.stack is not None else [None]
        for hardware in devices:
            self.noted.notes += hardware.notes
            pairs = (
                (stack or self._default_stack(shape, hardware, framework, model), framework)
                for stack in named
                for framework in frameworks[hardware.name]
            )
            machines += [
                variants.Machine(
                    hardware=hardware,
                    stack=with_numbers(stack, framework.fixes),
                    framework=framework,
                    is_framework_assumed=shape.framework is None,
                    site=None if shape.site == "vendor" else site_of(hardware),
                )
                for stack, framework in pairs
                if stack is not None
            ]
        self._check_prices(shape, machines)
        return machines

    def _loaded(self, key: str, given: Any, load: Callable[..., Any]) -> Iterator[tuple[Any, str, Keys]]:
        """What the names of a key stand for, None where one cannot be read; the name and its place."""
        for name, keys in self.noted.listed(key, given):
            where = self.noted.document.where(keys)
            yield tried(partial(load, name, beside=self.beside, where=where), self.noted.problems), name, keys

    def _hardware(self, shape: SpaceFile) -> Iterator[Hardware | None]:
        """Every device of the file; None where one cannot be read."""
        load = partial(load_hardware, host_file=self.host_file)
        for hardware, text, _ in self._loaded("hardware", shape.hardware, load):
            yield self._priced(hardware, text, shape) if hardware is not None else None

    def _frameworks(self, shape: SpaceFile, devices: list[Hardware]) -> dict[str, list[Framework]]:
        """The frameworks that run on each device: those that are named, or the one that is assumed there.

        A problem for a framework that runs on no device, and for a device without a framework.
        """
        task = shape.workload.task
        if shape.framework is None:
            return {one.name: [default_framework(one.accelerator.vendor, task)] for one in devices}
        loaded = self._loaded("framework", shape.framework, load_framework)
        named = [(one, keys) for one, _, keys in loaded if one is not None]
        runs = {device.name: [one for one, _ in named if one.runs_on(device.accelerator.vendor)] for device in devices}
        for framework, keys in named:
            if self._lacks(framework, task):
                known = [one for one in framework_names() if load_framework(one).adapters]
                known = [] if task == "qlora" else known
                what = f"{framework.title} has no adapters of {task}; use {join_words([*known, 'any'])}"
                self.noted.problem(keys, what)
            for device in devices:
                vendor = device.accelerator.vendor
                if framework in runs[device.name]:
                    continue
                what = f"{framework.title} does not run on {device.name} ({vendor})"
                if runs[device.name] and any(framework in some for some in runs.values()):
                    self.noted.notes.append(f"{what}; not searched there")
                    continue
                known = [one for one in framework_names() if load_framework(one).runs_on(vendor)]
                self.noted.problem(keys, f"{what}; use {join_words(known)}")
        return runs

    def _lacks(self, framework: Framework, task: str) -> bool:
        """Whether a framework cannot start what is trained; contracts with adapters hold frozen weights in BF16."""
        if self.is_started or framework.is_any or not task.endswith("lora"):
            return False
        return task == "qlora" or not framework.adapters

    def _named_stacks(self, shape: SpaceFile) -> list[Stack | None]:
        loaded = self._loaded("stack", shape.stack, load_stack)
        return [replace(one, is_assumed=False) for one, _, _ in loaded if one is not None]

    def _default_stack(
        self, shape: SpaceFile, hardware: Hardware, framework: Framework, model: Model | None
    ) -> Stack | None:
        """The stack that runs under a framework that was named, else the one of the hardware file."""
        vendor = hardware.accelerator.vendor
        variant = next((one for fact, one in framework.variants.items() if model and FACTS[fact](model)), "")
        own = framework.stack_of(vendor, variant) if shape.framework is not None else None
        name, where = own, f"hardware/frameworks/{framework.launcher}.yaml @ $.stacks"
        said = framework.stack_notes.get(vendor)
        self.noted.notes += [said] if own and said and said not in self.noted.notes else []
        if name is None:
            name, where = hardware.default_stack, f"{hardware.path} @ $.default_stack"
        if name is None:
            what = f"hardware '{hardware.name}' names no default_stack; add stack: NAME"
            self.noted.problem(("hardware",), what)
            return None
        stack = tried(partial(load_stack, name, beside=self.beside, where=where), self.noted.problems)
        return stack and replace(stack, is_assumed=own is None and is_guess(hardware))
