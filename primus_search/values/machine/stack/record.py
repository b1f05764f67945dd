"""One framework release on one vendor's libraries: eight named groups of numbers and habits, and its error bands."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from primus_search.values.machine.stack.communication import Communication
from primus_search.values.machine.stack.efficiencies import Efficiencies
from primus_search.values.machine.stack.error_bands import ErrorBand
from primus_search.values.machine.stack.expert_layers import ExpertLayers
from primus_search.values.machine.stack.host_overheads import HostOverheads
from primus_search.values.machine.stack.kept_memory import KeptMemory
from primus_search.values.machine.stack.kernels import Kernels
from primus_search.values.machine.stack.precision import Precision
from primus_search.values.machine.stack.replica_traffic import ReplicaTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One framework release on one vendor's libraries. Every value is sourced or fitted, with its date, in YAML.

    Names of fields are unique over all groups, so that `gemm_efficiency` stands for `efficiencies.gemm_efficiency`
    wherever a user names a number (`--set stack.gemm_efficiency=0.9`).
    """

    name: str
    kernels: Kernels
    precision: Precision
    communication: Communication
    experts: ExpertLayers
    sharding: ReplicaTraffic
    host: HostOverheads
    memory: KeptMemory
    efficiencies: Efficiencies

    errors: dict[str, ErrorBand] = field(default_factory=dict, hash=False)
    """Error bands by regime (`moe/sm100/fp8`) and, for unseen regimes, by family, from runs left out of the fit; by
    family and of peaks (memory) where this stack was assumed and another one ran."""

    is_assumed: bool = False
    """The stack of the run is not known and this one stands in for it, which widens every band."""

    variant: str = ""
    """Which of the variants of its file this is; empty: the file as it stands. Fits and error bands are of the name."""

    varied: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The fields in which the variant differs from the file, with its values."""

    runs_file: str = field(default="", compare=False, repr=False)
    """Path of the site's own runs that `learn` wrote beside the stack's file; empty where there are none."""

    @property
    def reference(self) -> str:
        """What names it in a space file: `torchtitan`, `torchtitan@2025`."""
        return f"{self.name}@{self.variant}" if self.variant else self.name

    @property
    def title(self) -> str:
        """Its name for a reader, marked where it was assumed."""
        return f"{self.reference} (assumed)" if self.is_assumed else self.reference

    def __post_init__(self) -> None:
        traffic, replicas = self.communication, self.sharding
        shares: tuple[float, ...] = (traffic.tensor_overlap, traffic.context_overlap, self.experts.expert_overlap)
        shares += (traffic.switched_tensor_overlap, self.experts.batch_expert_overlap, replicas.shard_overlap)
        shares += (traffic.tensor_async_overlap, traffic.pipeline_blocking)
        shares += (replicas.gradient_overlap, replicas.param_gather_overlap)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(f"stack {self.name!r}: every overlap is a share in 0..1")


def _groups() -> dict[str, type]:
    """Group -> its dataclass."""
    hints = typing.get_type_hints(Stack)
    return {f.name: hints[f.name] for f in fields(Stack) if is_dataclass(hints[f.name])}


GROUPS: Mapping[str, type] = _groups()
"""Every group of a stack file -> its dataclass."""

GROUP_OF: Mapping[str, str] = {f.name: group for group, cls in GROUPS.items() for f in fields(cls)}
"""Every number or habit of a stack -> the group that it stands in."""


def with_numbers(stack: Stack, numbers: Mapping[str, Any]) -> Stack:
    """The stack with some numbers or habits replaced, each given by the name of its field (`gemm_efficiency`).

    Raises KeyError for a name that is no field of a group, ValueError for an overlap outside 0..1.
    """
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in numbers.items():
        by_group.setdefault(GROUP_OF[name], {})[name] = value
    changed = {group: replace(stack.__getattribute__(group), **values) for group, values in by_group.items()}
    return replace(stack, **changed)


def number_of(stack: Stack, name: str) -> Any:
    """One number or habit of a stack by the name of its field. Raises KeyError for a name that is no field."""
    return stack.__getattribute__(GROUP_OF[name]).__getattribute__(name)
