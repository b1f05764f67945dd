"""What each pipeline rank holds at its worst moments, in units: layers of each kind, micro-batches times layers, ...

Memory of a rank at a moment is a sum of products, units times bytes per unit. The units follow from schedule, layout
and recompute (this module); the bytes from degrees, precision and micro-batch (`parameters`, `activations`, ...). All
bytes are at least 0, so a moment whose units another moment equals or exceeds everywhere can never be the worst: it
is dropped here, once per pipeline shape, and a handful of moments per shape remain however many stages there are.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import RecomputeMethod
from primus_search.cost.memory.live import moments
from primus_search.errors import ScheduleError
from primus_search.layout import Layout, StageLayers, stage_layers
from primus_search.model import LayerKind, Model

Floats = NDArray[np.float64]


STATE_UNITS = (
    "embedding", "head", "final_norm", "mtp", "attention_present", "mlp_present", "experts_present", "head_gathers",
)  # fmt: skip
BATCH_UNITS = ("inputs", "head_live", "head_waiting", "head_runs", "head_present", "hop")


@dataclass(frozen=True, slots=True)
class Units:
    """Columns of a moment, by name: first what parameters price, then what a micro-batch prices.

    layers(k)   layers of a kind on the rank           live(k)     micro-batches times layers kept for backward
    gathers(k)  1 while a layer of the kind runs       waiting(k)  likewise between input and weight gradient
    working(k)  the same, for what its tokens need     again(k)    layers brought back by full recompute
    embedding, head, final_norm, mtp   number on the rank
    attention_present, ...             1 where the rank has such weights at all
    inputs      micro-batches times layer inputs kept by full recompute
    head_live   micro-batches whose head ran forward and not backward; once layers of its stage run backward, the head
                has released theirs
    head_waiting  micro-batches between input and weight gradient of the head
    head_runs, head_gathers  1 while head and loss run backward; head_present  1 on the head's rank
    hop         1 where the pipeline has more than one stage
    Kinds are dense and MoE: an attention window does not change what is stored.
    """

    kinds: int

    @property
    def state_width(self) -> int:
        return 2 * self.kinds + len(STATE_UNITS)

    @property
    def width(self) -> int:
        return self.state_width + 4 * self.kinds + len(BATCH_UNITS)

    def layers(self, k: int) -> int:
        return k

    def gathers(self, k: int) -> int:
        return self.kinds + k

    def live(self, k: int) -> int:
        return self.state_width + k

    def waiting(self, k: int) -> int:
        return self.state_width + self.kinds + k

    def working(self, k: int) -> int:
        return self.state_width + 2 * self.kinds + k

    def again(self, k: int) -> int:
        return self.state_width + 3 * self.kinds + k

    def other(self, name: str) -> int:
        if name in STATE_UNITS:
            return 2 * self.kinds + STATE_UNITS.index(name)
        return self.state_width + 4 * self.kinds + BATCH_UNITS.index(name)


def memory_kinds(model: Model) -> tuple[LayerKind, ...]:
    """The layer kinds that differ in memory: one per MoE flag, in order of first appearance."""
    return tuple({kind.is_moe: kind for kind in reversed(model.kinds)}.values())[::-1]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline shape: everything that decides units. `group`: layers recomputed together, 0 = none."""

    schedule: str
    pp: int
    vpp: int
    microbatches: int
    layout: Layout
    is_full: bool
    method: int
    num_layers: int
    offload: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Worst moments of all ranks: (moments,) rank and (moments, units)."""

    rank: NDArray[np.int64]
    units: Floats


@lru_cache(maxsize=1 << 10)
def rank_moments(model: Model, pipeline: Pipeline) -> Moments:
    """Moments of every rank that no other of the same rank exceeds. Raises `ScheduleError` for impossible shapes."""
    return _moments(model, pipeline, across=False)


@lru_cache(maxsize=1 << 16)
def worst_moments(model: Model, pipeline: Pipeline) -> Moments:
    """The moments that could be the worst of the whole pipeline: no other equals or exceeds them everywhere."""
    return _moments(model, pipeline, across=True)


def _moments(model: Model, pipeline: Pipeline, *, across: bool) -> Moments:
    from primus_search.cost.memory.kernels import uncovered

    layers = _stage_layers(model, pipeline.pp * pipeline.vpp, pipeline.layout)
    held = _held(pipeline.schedule, pipeline.pp, pipeline.vpp, pipeline.microbatches)
    stages = held.stages % len(layers.layers)
    chunks = _chunks(model, pipeline, layers)
    resident = _resident(model, pipeline.schedule, pipeline.pp, pipeline.vpp, pipeline.microbatches, pipeline.layout)
    units, rank = uncovered(
        held.first, held.live, held.waiting, held.backward,
        chunks.kept[stages], chunks.recomputed[stages], chunks.every[stages], chunks.inputs[stages],
        layers.has_head[stages] > 0.0, chunks.group, resident, _columns(model), across,
    )  # fmt: skip
    return Moments(rank=rank, units=units)


@lru_cache(maxsize=64)
def _columns(model: Model) -> NDArray[np.int64]:
    """Columns that `uncovered` writes, in its order."""
    columns = Units(len(memory_kinds(model)))
    return np.array(
        [columns.gathers(0), columns.live(0), columns.waiting(0), columns.working(0), columns.again(0)]
        + [columns.other(name) for name in ("inputs", "head_live", "head_waiting", "head_runs", "head_gathers")]
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """Moments of all ranks, one rank after the other: those of rank r are first[r] .. first[r + 1].

    stages  (ranks, chunks) virtual stages     live, waiting, backward  as in `live.RankMoments`
    """

    first: NDArray[np.int64]
    stages: NDArray[np.int64]
    live: Floats
    waiting: Floats
    backward: NDArray[np.int64]


@lru_cache(maxsize=1 << 12)
def _held(schedule: str, pp: int, vpp: int, microbatches: int) -> _Held:
    ranks = moments(schedule, pp, vpp, microbatches)
    return _Held(
        first=np.cumsum([0, *(len(rank.live) for rank in ranks)]),
        stages=np.stack([rank.stages for rank in ranks]),
        live=np.concatenate([rank.live for rank in ranks]),
        waiting=np.concatenate([rank.waiting for rank in ranks]),
        backward=np.concatenate([rank.backward for rank in ranks]),
    )


def _stage_layers(model: Model, stages: int, layout: Layout) -> StageLayers:
    layers = stage_layers(model, stages, layout)
    if layers is None:
        raise ScheduleError(f"layout {layout} does not deal {model.num_layers} layers to {stages} virtual stages")
    return layers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunks:
    """Layers of every virtual stage by kind, (stages, kinds): kept whole, recomputed, all.

    inputs  (stages,) layer inputs that recompute keeps     group  layers recomputed together, 0 = none
    """

    kept: Floats
    recomputed: Floats
    every: Floats
    inputs: Floats
    group: float


def _chunks(model: Model, pipeline: Pipeline, layers: StageLayers) -> _Chunks:
    """Split the layers of every stage into kept and recomputed ones; MTP modules hold a layer of the last kind.

    UNIFORM recomputes every layer, `num_layers` at a time (0 or 1: one by one), and keeps one input per group; BLOCK
    recomputes the first `num_layers` (0: all) one by one. Megatron: --recompute-method, --recompute-num-layers.
    Offloaded layers, the first of the kept ones, leave the device.
    """
    number = (layers.layers + layers.mtp).astype(np.int64)
    if not pipeline.is_full:
        first, group = np.zeros_like(number), 0.0
    elif pipeline.method == RecomputeMethod.UNIFORM:
        first, group = number, float(max(pipeline.num_layers, 1))
    else:
        first, group = np.minimum(pipeline.num_layers or number, number), 1.0
    away = np.minimum(first + pipeline.offload, number)
    every = _of_first(model, layers, number)
    inputs = np.ceil(first / group) if group else np.zeros(len(number))
    kept = every - _of_first(model, layers, away)
    recomputed = _of_first(model, layers, first)
    return _Chunks(kept=kept, recomputed=recomputed, every=every, inputs=inputs, group=group)


def _of_first(model: Model, layers: StageLayers, count: NDArray[np.int64]) -> Floats:
    """(stages, kinds) layers of each kind among the first so many of every stage, MTP modules last."""
    decoder, before = layers.layers.astype(np.int64), _layers_before(model)
    begin = np.cumsum(decoder) - decoder
    is_last_kind = before[-1] - before[-2]
    own = before[begin + np.minimum(count, decoder)] - before[begin]
    found: Floats = own + np.maximum(count - decoder, 0)[:, None] * is_last_kind
    return found


@lru_cache(maxsize=64)
def _kind_of_layers(model: Model) -> NDArray[np.int64]:
    """Number of the memory kind of every decoder layer."""
    index = {kind.is_moe: k for k, kind in enumerate(memory_kinds(model))}
    return np.array([index[kind.is_moe] for kind in model.layers])


@lru_cache(maxsize=64)
def _layers_before(model: Model) -> Floats:
    """(layers + 1, kinds) layers of each kind before every layer, and of all layers."""
    of_kind = np.eye(len(memory_kinds(model)))[_kind_of_layers(model)]
    return np.concatenate([np.zeros((1, of_kind.shape[1])), np.cumsum(of_kind, axis=0)])


@lru_cache(maxsize=1 << 12)
def _resident(model: Model, schedule: str, pp: int, vpp: int, microbatches: int, layout: Layout) -> Floats:
    """(ranks, units) what does not change during a step; recompute and offloading do not matter."""
    columns, layers = Units(len(memory_kinds(model))), _stage_layers(model, pp * vpp, layout)
    stages = _held(schedule, pp, vpp, microbatches).stages % len(layers.layers)
    rows = np.zeros((len(stages), columns.width))
    every = _of_first(model, layers, (layers.layers + layers.mtp).astype(np.int64))[stages].sum(axis=1)
    rows[:, : columns.kinds] = every
    has_embedding, has_head = layers.has_embedding[stages].sum(axis=1), layers.has_head[stages].sum(axis=1)
    is_shared = model.is_tied & (has_embedding > 0)
    rows[:, columns.other("embedding")] = has_embedding
    rows[:, columns.other("head")] = np.where(is_shared, 0.0, has_head)
    rows[:, columns.other("final_norm")] = has_head
    rows[:, columns.other("mtp")] = layers.mtp[stages].sum(axis=1)
    moe = np.array([kind.is_moe for kind in memory_kinds(model)])
    rows[:, columns.other("attention_present")] = every.sum(axis=1) > 0
    rows[:, columns.other("mlp_present")] = every[:, ~moe].sum(axis=1) > 0
    rows[:, columns.other("experts_present")] = every[:, moe].sum(axis=1) > 0
    rows[:, columns.other("head_present")] = has_head > 0
    rows[:, columns.other("hop")] = float(pp > 1)
    return rows
