"""What legality rules see: the job, and columns of axis values for some cells of the grid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, gcd
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from primus_search.base.units import GB
from primus_search.schedule import Algorithm, algorithm
from primus_search.space.types import AXES, Axis, ClusterChoice, Space
from primus_search.values.candidates import DEFAULTS, INNER_RANKS, Bools, Candidates, Degrees, Ints
from primus_search.values.job import Job
from primus_search.values.layout import EVEN, Layout, layout_string, stage_layers
from primus_search.values.machine.framework import ANY_FRAMEWORK, Framework
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentMixer,
    Mamba2,
    Model,
)

Column = NDArray[np.int64] | NDArray[np.bool_]


def _scans(model: Model) -> list[tuple[int, int]]:
    """Heads of each scan that context parallelism exchanges tokens for, and its groups of states that heads share."""
    found = [(m.num_heads, m.num_groups) for m in (kind.mixer for kind in model.kinds) if isinstance(m, Mamba2)]
    nets = [kind.mixer for kind in model.kinds if isinstance(kind.mixer, GatedDeltaNet)]
    return found + [(mixer.num_key_heads, 1) for mixer in nets]


OF_JOB: Mapping[str, Callable[[Job], int]] = {
    "world": lambda job: job.cluster.world,
    "nodes": lambda job: job.cluster.num_nodes,
    "gpus_per_node": lambda job: job.cluster.network.gpus_per_node,
    "gpus_per_domain": lambda job: job.cluster.network.domain_size,
    "host_copy_GBps": lambda job: ceil(job.cluster.network.host_copy_bytes_per_s / GB),
    "host_update_GBps": lambda job: ceil(job.cluster.network.host_update_bytes_per_s / GB),
    "loss_chunks": lambda job: int(job.cluster.stack.memory.loss_chunks),
    "seq_length": lambda job: job.workload.seq_length,
    "num_experts": lambda job: job.model.moe.num_experts if job.model.is_moe and job.model.moe else 1,
    "expert_ffn_hidden": lambda job: job.model.moe.expert_ffn_hidden if job.model.moe else 1,
    "num_kv_heads": lambda job: job.model.num_heads if job.model.latent else job.model.num_kv_heads,
    "num_mtp_layers": lambda job: job.model.num_mtp_layers,
    "num_scan_heads": lambda job: gcd(*(heads for heads, _ in _scans(job.model))),
    "num_scan_groups": lambda job: max((groups for _, groups in _scans(job.model)), default=1),
}
"""Numbers of cluster, stack, workload and model that conditions may use, by name; one expert in a dense model."""

DERIVED: Mapping[str, tuple[str, ...]] = {
    "dp": ("tp", "cp", "pp"),
    "edp": ("etp", "ep", "pp"),
    "microbatches": ("tp", "cp", "pp", "micro_batch_size"),
    "layers_per_stage": ("pp", "vpp"),
    "most_layers": ("pp", "vpp", "pipeline_layout"),
    "cp_inner_ranks": ("cp_comm",),
    **dict.fromkeys(OF_JOB, ()),
}
"""Columns that follow from axes, and from which; those of a job from none."""

FACTS: Mapping[str, Callable[[Model], bool]] = {
    "has_experts": lambda model: model.is_moe,
    "has_shared_experts": lambda model: model.is_moe and model.beside_experts_hidden > 0,
    "has_hyper_connections": lambda model: model.hyper_streams > 0,
    "has_latent_attention": lambda model: model.latent is not None,
    "has_up_projections": lambda model: any(model.mixer(kind).core(model.hidden).up for kind in model.kinds),
    "has_mtp": lambda model: model.num_mtp_layers > 0,
    "has_bias": lambda model: model.has_linear_bias,
    "has_qkv_bias": lambda model: model.has_qkv_bias,
    "has_layernorm": lambda model: model.norm == "layernorm",
    "has_sinks": lambda model: model.has_attention_sinks,
    "has_windows": lambda model: any(model.windows),
    "has_mixers": lambda model: not model.is_uniform,
    "has_single_blocks": lambda model: model.is_single_block,
    "has_delta_net": lambda model: any(isinstance(kind.mixer, GatedDeltaNet) for kind in model.kinds),
    "has_indexer": lambda model: any(
        isinstance(kind.mixer, Attention | LatentMixer) and kind.mixer.indexer is not None for kind in model.kinds
    ),
    "has_compressed_attention": lambda model: any(isinstance(kind.mixer, CompressedAttention) for kind in model.kinds),
    "has_kimi_delta": lambda model: any(isinstance(kind.mixer, KimiDeltaAttention) for kind in model.kinds),
    "is_tied": lambda model: model.is_tied,
    "is_gated": lambda model: model.is_gated,
    "has_two_norms": lambda model: model.num_norms == 2,
    "is_plain_llama": lambda model: (
        not (model.is_moe or model.has_qk_norm or model.is_tied or model.latent or model.has_attention_sinks)
        and model.head_dim * model.num_heads == model.hidden
    ),
    "has_dense_layers": lambda model: model.is_moe and not all(model.moe_layers),
    "has_dense_behind_experts": lambda model: (
        model.is_moe and tuple(model.moe_layers) != tuple(sorted(model.moe_layers))
    ),
}
"""What conditions may say of the model, by name."""


@lru_cache(maxsize=1024)
def reads(names: tuple[str, ...]) -> frozenset[str]:
    """The axes behind a tuple of column names, derived columns resolved."""
    return frozenset(axis for name in names for axis in DERIVED.get(name, (name,)))


@dataclass(frozen=True, kw_only=True)
class GridJob(Job):
    """A job with its framework and the values of every axis: what rules may look up."""

    axes: tuple[Axis, ...]
    framework: Framework = ANY_FRAMEWORK

    @classmethod
    def on(cls, choice: ClusterChoice, space: Space, axes: tuple[Axis, ...]) -> Self:
        """The job of a space on one cluster, with some axes."""
        framework = choice.framework
        return cls(space.model, choice.cluster, space.workload, framework.launcher, axes=axes, framework=framework)

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Names of the schedule axis, aliases resolved and doubles dropped."""
        return tuple(dict.fromkeys(algorithm(str(value)).name for value in self._values("schedule")))

    @cached_property
    def algorithms(self) -> tuple[Algorithm, ...]:
        return tuple(algorithm(name, self.launcher) for name in self.schedules)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(value for value in self._values("pipeline_layout") if isinstance(value, Layout)) or (EVEN,)

    def column_values(self, axis: str) -> Column:
        """The values of an axis as its column of `Candidates` holds them: codes for words and layouts."""
        if axis == "schedule":
            return np.arange(len(self.schedules))
        if axis == "pipeline_layout":
            return np.arange(len(self.layouts))
        dtype = np.bool_ if isinstance(DEFAULTS[axis], bool) else np.int64
        values: list[Any] = list(self._values(axis))
        return np.array(values, dtype=dtype)

    def has(self, axis: str, value: object) -> bool:
        """Whether the axis offers that value."""
        return value in self._values(axis)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of values per axis."""
        return {name: len(self.column_values(name)) for name in AXES}

    def _values(self, axis: str) -> tuple[Any, ...]:
        return next(a for a in self.axes if a.name == axis).values

    # --- facts of a number of virtual stages -----------------------------------------------------------------------

    def most_layers(self, stages: Ints, layout: Ints) -> Ints:
        """Layers of the fullest virtual stage per row; 0 where the layout does not suit."""
        return self._per_pair(stages, layout, self._most_layers)

    def first_to_say_so(self, stages: Ints, layout: Ints) -> Bools:
        """Whether no earlier layout of the axis deals the layers in the very same way."""
        return self._per_pair(stages, layout, self._is_first).astype(bool)

    def _most_layers(self, stages: int, layout: int) -> int:
        found = stage_layers(self.model, stages, self.layouts[layout])
        return 0 if found is None else int(found.layers.max())

    def _is_first(self, stages: int, layout: int) -> int:
        texts = [layout_string(self.model, stages, earlier) for earlier in self.layouts[: layout + 1]]
        return texts[-1] not in texts[:-1]

    def _per_pair(self, stages: Ints, layout: Ints, ask: Any) -> Ints:
        key = stages * len(self.layouts) + layout
        distinct, inverse = np.unique(key, return_inverse=True)
        answers = [ask(int(k) // len(self.layouts), int(k) % len(self.layouts)) for k in distinct]
        return np.array(answers, dtype=np.int64)[inverse]


class Cells:
    """Columns of some cells of the grid: values by axis name, derived columns on demand.

    Axes not expanded yet take their neutral default, which can only make a row more legal, never less.
    """

    def __init__(
        self, job: GridJob, values: Mapping[str, Column], codes: Mapping[str, NDArray[Any]], length: int
    ) -> None:
        self.job, self.values, self.codes, self.length = job, values, codes, length
        self._degrees: Degrees | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, name: str) -> Column:
        if name in self.values:
            return self.values[name]
        if name in DEFAULTS:
            return np.full(self.length, DEFAULTS[name])
        return self._derived(name)

    def ints(self, name: str) -> Ints:
        return self[name].astype(np.int64, copy=False)

    def is_first_choice(self, axis: str) -> Bools:
        """Whether the row takes the first value its axis lists."""
        mask: Bools = self.codes[axis] == 0
        return mask

    @property
    def degrees(self) -> Degrees:
        if self._degrees is None:
            names = ("tp", "pp", "cp", "ep", "etp", "micro_batch_size")
            known: dict[str, Any] = {n: self.values[n] for n in names if n in self.values}
            table = Candidates.table(**known)
            if len(table) != self.length:
                table = table.take(np.zeros(self.length, dtype=np.int64))
            self._degrees = self.job.degrees(table)
        return self._degrees

    def _derived(self, name: str) -> Column:
        match name:
            case "dp" | "edp" | "microbatches":
                found: Ints = self.degrees.__getattribute__(name)
                return found
            case "layers_per_stage":
                return self.job.model.num_layers // (self.ints("pp") * self.ints("vpp"))
            case "most_layers":
                return self.job.most_layers(self.ints("pp") * self.ints("vpp"), self.ints("pipeline_layout"))
            case "cp_inner_ranks":
                return INNER_RANKS[self.ints("cp_comm")]
        return np.full(self.length, OF_JOB[name](self.job))
