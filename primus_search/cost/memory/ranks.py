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
from primus_search.cost.memory.live import RankMoments, distinct_rows, moments
from primus_search.errors import ScheduleError
from primus_search.layout import Layout, StageLayers, stage_layers
from primus_search.model import LayerKind, Model

Floats = NDArray[np.float64]


STATE_UNITS = (
    "embedding", "head", "final_norm", "mtp", "attention_present", "mlp_present", "experts_present", "head_gathers",
)  # fmt: skip
BATCH_UNITS = ("inputs", "head_live", "head_runs", "hop")


@dataclass(frozen=True, slots=True)
class Units:
    """Columns of a moment, by name: first what parameters price, then what a micro-batch prices.

    layers(k)   layers of a kind on the rank           live(k)     micro-batches times layers kept for backward
    gathers(k)  1 while a layer of the kind runs       waiting(k)  likewise between input and weight gradient
    working(k)  the same, for what its tokens need     again(k)    layers brought back by full recompute
    embedding, head, final_norm, mtp   number on the rank
    attention_present, ...             1 where the rank has such weights at all
    inputs      micro-batches times layer inputs kept by full recompute
    head_live   micro-batches the head's stage holds; head_runs, head_gathers: 1 while head and loss run
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


@lru_cache(maxsize=1 << 16)
def rank_moments(model: Model, pipeline: Pipeline) -> Moments:
    """Moments of every rank, none dropped between ranks. Raises `ScheduleError` where the shape is impossible."""
    columns = Units(len(memory_kinds(model)))
    layers = _stage_layers(model, pipeline)
    order = _layer_order(model, layers)
    ranks, rows = [], []
    for rank, held in enumerate(moments(pipeline.schedule, pipeline.pp, pipeline.vpp, pipeline.microbatches)):
        stages = held.stages % len(layers.layers)
        units = _rank_rows(model, columns, pipeline, layers, order, stages, held)
        ranks.append(np.full(len(units), rank))
        rows.append(units)
    return Moments(rank=np.concatenate(ranks), units=np.concatenate(rows))


@lru_cache(maxsize=1 << 16)
def worst_moments(model: Model, pipeline: Pipeline) -> Moments:
    """The moments that could be the worst of the whole pipeline: no other equals or exceeds them everywhere."""
    every = rank_moments(model, pipeline)
    rank, units = every.rank, every.units
    covers = (units[:, None, :] >= units[None, :, :]).all(axis=2)
    # Of equal rows the first stays.
    covers &= ~(covers & covers.T & np.tri(len(units), dtype=np.bool_))
    keep = ~covers.any(axis=0)
    return Moments(rank=rank[keep], units=units[keep])


def _stage_layers(model: Model, pipeline: Pipeline) -> StageLayers:
    stages = pipeline.pp * pipeline.vpp
    layers = stage_layers(model, stages, pipeline.layout)
    if layers is None:
        raise ScheduleError(
            f"layout {pipeline.layout} does not deal {model.num_layers} layers to {stages} virtual stages"
        )
    return layers


def _layer_order(model: Model, layers: StageLayers) -> list[list[int]]:
    """Kinds of the layers of every virtual stage, in order; MTP modules hold a layer of the last kind."""
    index = {kind.is_moe: k for k, kind in enumerate(memory_kinds(model))}
    order, start = [], 0
    for number, extra in zip(layers.layers.astype(int), layers.mtp.astype(int), strict=True):
        kinds = [index[kind.is_moe] for kind in model.layers[start : start + number]]
        order.append(kinds + [index[model.layers[-1].is_moe]] * int(extra))
        start += number
    return order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunk:
    """Layers of one chunk by kind: kept whole, recomputed, all; inputs: layer inputs recompute keeps."""

    kept: Floats
    recomputed: Floats
    every: Floats
    inputs: float
    group: float
    has_head: bool


def _chunk(model: Model, pipeline: Pipeline, kinds: list[int], has_head: bool) -> _Chunk:
    """Split a chunk's layers into kept and recomputed ones.

    UNIFORM recomputes every layer, `num_layers` at a time (0 or 1: one by one), and keeps one input per group; BLOCK
    recomputes the first `num_layers` (0: all) one by one. Megatron: --recompute-method, --recompute-num-layers.
    Offloaded layers, the first of the kept ones, leave the device.
    """
    number = len(kinds)
    if not pipeline.is_full:
        first, group = 0, 0.0
    elif pipeline.method == RecomputeMethod.UNIFORM:
        first, group = number, float(max(pipeline.num_layers, 1))
    else:
        first, group = min(pipeline.num_layers or number, number), 1.0
    away = min(first + pipeline.offload, number)
    width = len(memory_kinds(model))
    every, recomputed = np.bincount(kinds, minlength=width), np.bincount(kinds[:first], minlength=width)
    return _Chunk(
        kept=np.bincount(kinds[away:], minlength=width).astype(float),
        recomputed=recomputed.astype(float),
        every=every.astype(float),
        inputs=float(np.ceil(first / group)) if group else 0.0,
        group=group,
        has_head=has_head,
    )


def _rank_rows(
    model: Model, columns: Units, pipeline: Pipeline, layers: StageLayers, order: list[list[int]],
    stages: NDArray[np.int64], held: RankMoments,
) -> Floats:  # fmt: skip
    """Units of one rank: what stays, then one row per moment and thing that runs at that moment."""
    chunks = [_chunk(model, pipeline, order[s], bool(layers.has_head[s])) for s in stages]
    rows = np.repeat(_resident(model, columns, pipeline, layers, stages, chunks)[None], len(held.live), axis=0)
    rows[:, columns.live(0) : columns.live(0) + columns.kinds] = held.live @ np.array([c.kept for c in chunks])
    waiting = columns.waiting(0)
    rows[:, waiting : waiting + columns.kinds] = held.waiting @ np.array([c.every for c in chunks])
    rows[:, columns.other("inputs")] = held.live @ np.array([c.inputs for c in chunks])
    rows[:, columns.other("head_live")] = held.live @ np.array([float(c.has_head) for c in chunks])
    out = [rows[held.backward < 0]]
    for number, chunk in enumerate(chunks):
        mine = rows[held.backward == number]
        out += _running(columns, mine, chunk) if len(mine) else []
    return distinct_rows(np.concatenate(out))


def _resident(
    model: Model, columns: Units, pipeline: Pipeline, layers: StageLayers, stages: NDArray[np.int64],
    chunks: list[_Chunk],
) -> Floats:  # fmt: skip
    """Units that do not change during a step."""
    row = np.zeros(columns.width)
    every = np.sum([chunk.every for chunk in chunks], axis=0)
    row[: columns.kinds] = every
    has_embedding, has_head = float(layers.has_embedding[stages].sum()), float(layers.has_head[stages].sum())
    is_shared = model.is_tied and has_embedding > 0
    row[columns.other("embedding")] = has_embedding
    row[columns.other("head")] = 0.0 if is_shared else has_head
    row[columns.other("final_norm")] = has_head
    row[columns.other("mtp")] = layers.mtp[stages].sum()
    moe = np.array([kind.is_moe for kind in memory_kinds(model)])
    row[columns.other("attention_present")] = float(every.sum() > 0)
    row[columns.other("mlp_present")] = float(every[~moe].sum() > 0)
    row[columns.other("experts_present")] = float(every[moe].sum() > 0)
    row[columns.other("hop")] = float(pipeline.pp > 1)
    return row


def _running(columns: Units, rows: Floats, chunk: _Chunk) -> list[Floats]:
    """The rows once per thing that may run backward in the chunk: its head, a kept layer, a recomputed layer.

    Backward goes from the last layer to the first, so when recomputed layers (the first ones) run, the kept layers
    of the same micro-batch are already released.
    """
    out = []
    for k in range(columns.kinds):
        if chunk.every[k] > chunk.recomputed[k]:
            kept = rows.copy()
            kept[:, [columns.working(k), columns.gathers(k)]] = 1.0
            out.append(kept)
        if chunk.recomputed[k] > 0:
            again = rows.copy()
            again[:, columns.live(0) : columns.live(0) + columns.kinds] -= chunk.kept
            again[:, [columns.working(k), columns.gathers(k)]] = 1.0
            again[:, columns.again(k)] = min(chunk.group, chunk.recomputed[k])
            out.append(again)
    if chunk.has_head:
        head = rows.copy()
        head[:, [columns.other("head_runs"), columns.other("head_gathers")]] = 1.0
        out.append(head)
    return out or [rows]
