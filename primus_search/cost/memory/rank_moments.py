"""What each pipeline rank holds at its worst moments, in units: layers of each kind, micro-batches times layers, ...

Memory of a rank at a moment is a sum of products, units times bytes per unit. The units follow from schedule, layout
and recompute (this module); the bytes from degrees, precision and micro-batch (`parameters`, `activations`, ...). All
bytes are at least 0, so a moment whose units another moment equals or exceeds everywhere can never be the worst: it
is dropped here, once per pipeline shape, and a handful of moments per shape remain however many stages there are.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.memory.held_microbatches import HeldMicrobatches, held_microbatches
from primus_search.values.candidates import Columns, Floats, PipelineOrder, RecomputeMethod
from primus_search.values.layout import Layout, StageLayers, dealt_layers
from primus_search.values.model import LayerKind, Model

STATE_UNITS = (
    "embedding", "head", "final_norm", "mtp", "first_stage", "attention_present", "mlp_present", "experts_present",
    "head_gathers",
)  # fmt: skip
BATCH_UNITS = ("inputs", "head_live", "head_waiting", "head_runs", "head_present", "hop", "tower_live")


class Units:
    """Columns of a moment: first what parameters price, then what a micro-batch prices.

    layers    layers of a kind on the rank           live      micro-batches times layers kept for backward
    gathers   1 while a layer of the kind runs       waiting   likewise between input and weight gradient
    working   the same, for what its tokens need     again     layers brought back by full recompute
    embedding, head, final_norm, mtp, first_stage   number on the rank
    attention_present, ...             1 where the rank has such weights at all
    inputs      micro-batches times layer inputs kept by full recompute
    head_live   micro-batches whose head ran forward and not backward; once layers of its stage run backward, the head
                has released theirs
    head_waiting  micro-batches between input and weight gradient of the head
    head_runs, head_gathers  1 while head and loss run backward; head_present  1 on the head's rank
    hop         1 where the pipeline has more than one stage
    tower_live  most micro-batches that wait for backward on a rank with the embedding, at any moment
    Kinds are dense and MoE: an attention window does not change what is stored.
    """

    def __init__(self, kinds: int) -> None:
        state = [*product(("layers", "gathers"), range(kinds)), *product(STATE_UNITS, (0,))]
        batch = [*product(("live", "waiting", "working", "again"), range(kinds)), *product(BATCH_UNITS, (0,))]
        self.kinds, self.state_width, self.width = kinds, len(state), len(state) + len(batch)
        self._columns = {unit: column for column, unit in enumerate(state + batch)}

    def at(self, name: str, kind: int = 0) -> int:
        """The column of a unit, of one kind of layers where each kind has its own."""
        return self._columns[name, kind]


def memory_kinds(model: Model) -> tuple[LayerKind, ...]:
    """The layer kinds that differ in memory, in order of first appearance; the reach of attention does not."""
    return tuple({_memory_key(kind): kind for kind in reversed(model.kinds)}.values())[::-1]


def _memory_key(kind: LayerKind) -> tuple[object, ...]:
    return kind.is_moe, kind.mixer, kind.feed_forward


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How layers and micro-batches pass over the ranks: what decides units, but for the layers that are relieved."""

    order: PipelineOrder
    microbatches: int
    layout: Layout

    @property
    def num_stages(self) -> int:
        """Virtual stages of one copy of the model."""
        return self.order.pp * self.order.vpp


ALL_LAYERS = 1 << 30
"""More layers than any stage has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relief(Columns):
    """Layers that do not keep their activations, one setting per entry; columns of (settings,).

    again    layers of every stage that are recomputed as a whole, its first ones; ALL_LAYERS where that is all of them
    group    layers recomputed together, 0 = none      offload  layers after those whose activations leave the device
    """

    again: NDArray[np.int64]
    group: NDArray[np.int64]
    offload: NDArray[np.int64]

    @classmethod
    def of(cls, is_full: NDArray[np.bool_], method: NDArray[np.int64], num_layers: NDArray[np.int64],
           offload: NDArray[np.int64]) -> "Relief":  # fmt: skip
        """UNIFORM recomputes every layer, `num_layers` at a time (0 or 1: one by one), and keeps one input per group;
        BLOCK recomputes the first `num_layers` (0: all) one by one. Megatron: --recompute-method,
        --recompute-num-layers. Offloaded layers, the first of the kept ones, leave the device.
        """
        is_uniform = method == int(RecomputeMethod.UNIFORM)
        again = np.where(is_uniform | (num_layers == 0), ALL_LAYERS, num_layers)
        group = np.where(is_uniform, np.maximum(num_layers, 1), 1)
        return cls(again=np.where(is_full, again, 0), group=np.where(is_full, group, 0), offload=offload)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Worst moments of all ranks, setting after setting: those of setting i are first[i] .. first[i + 1].

    first  (settings + 1,)      rank  (moments,)       units  (moments, units)
    """

    first: NDArray[np.int64]
    rank: NDArray[np.int64]
    units: Floats


def rank_moments(model: Model, pipeline: Pipeline, relief: Relief, *, across: bool = False) -> Moments:
    """Moments that no other of the same rank exceeds or, `across`, none of the whole pipeline: those that may be worst.

    Raises `ScheduleError` for impossible shapes.
    """
    from primus_search.cost.memory.memory_kernels import uncovered_of_each

    layers = dealt_layers(model, pipeline.num_stages, pipeline.layout)
    held = held_microbatches(pipeline.order, pipeline.microbatches)
    decoder = layers.layers.astype(np.int64)
    first, rows = uncovered_of_each(
        held.first, held.live, held.waiting, held.backward, held.stages % len(decoder),
        decoder, decoder + layers.mtp.astype(np.int64), _layers_before(model), layers.has_head > 0.0,
        _resident(model, pipeline), _columns(model), relief.again, relief.group, relief.offload.copy(), across,
    )  # fmt: skip
    return Moments(first=first, rank=rows[:, -1].astype(np.int64), units=rows[:, :-1].copy())


@lru_cache(maxsize=64)
def _columns(model: Model) -> NDArray[np.int64]:
    """Columns that `uncovered` writes, in its order."""
    columns = Units(len(memory_kinds(model)))
    of_kinds = ("gathers", "live", "waiting", "working", "again")
    of_head = ("inputs", "head_live", "head_waiting", "head_runs", "head_gathers")
    return np.array([columns.at(name) for name in of_kinds + of_head])


@lru_cache(maxsize=64)
def _layers_before(model: Model) -> Floats:
    """(layers + 2, kinds) layers of each kind before every layer, of all layers, and with those of an MTP module."""
    index = {_memory_key(kind): k for k, kind in enumerate(memory_kinds(model))}
    of_kind = np.eye(len(index))[[index[_memory_key(kind)] for kind in model.layers]]
    module = np.sum([of_kind[model.layers.index(kind)] for kind in model.mtp_kinds], axis=0)
    return np.concatenate([np.zeros((1, of_kind.shape[1])), np.cumsum([*of_kind, module], axis=0)])


def _resident(model: Model, pipeline: Pipeline) -> Floats:
    """(ranks, units) what does not change during a step; recompute and offloading do not matter."""
    columns, layers = Units(len(memory_kinds(model))), dealt_layers(model, pipeline.num_stages, pipeline.layout)
    held = held_microbatches(pipeline.order, pipeline.microbatches)
    stages = held.stages % len(layers.layers)
    rows = np.zeros((len(stages), columns.width))
    decoder, before = layers.layers.astype(np.int64), _layers_before(model)
    begin = np.cumsum(decoder) - decoder
    of_stages = before[begin + decoder] - before[begin] + layers.mtp[:, None] * (before[-1] - before[-2])
    every = of_stages[stages].sum(axis=1)
    rows[:, : columns.kinds] = every
    has_embedding, has_head = layers.has_embedding[stages].sum(axis=1), layers.has_head[stages].sum(axis=1)
    is_shared = model.is_tied & (has_embedding > 0)
    rows[:, columns.at("embedding")] = layers.num_embeddings[stages].sum(axis=1)
    rows[:, columns.at("first_stage")] = has_embedding
    rows[:, columns.at("head")] = np.where(is_shared, 0.0, has_head)
    rows[:, columns.at("final_norm")] = has_head
    rows[:, columns.at("mtp")] = layers.mtp[stages].sum(axis=1)
    moe = np.array([kind.is_moe for kind in memory_kinds(model)])
    rows[:, columns.at("attention_present")] = every.sum(axis=1) > 0
    rows[:, columns.at("mlp_present")] = every[:, ~moe].sum(axis=1) > 0
    rows[:, columns.at("experts_present")] = every[:, moe].sum(axis=1) > 0
    rows[:, columns.at("head_present")] = has_head > 0
    rows[:, columns.at("hop")] = float(pipeline.order.pp > 1)
    if model.towers:
        rows[:, columns.at("tower_live")] = _most_live(held, layers)
    return rows


def _most_live(held: HeldMicrobatches, layers: StageLayers) -> Floats:
    """(ranks,) the most micro-batches of a stage with the embedding that a rank holds at one moment."""
    stages = held.stages % len(layers.layers)
    most = np.zeros(len(stages))
    for rank, (begin, end) in enumerate(zip(held.first[:-1], held.first[1:], strict=True)):
        if end > begin:
            both = held.live[begin:end] + held.waiting[begin:end]
            most[rank] = (both * layers.has_embedding[stages[rank]]).sum(axis=1).max()
    return most
