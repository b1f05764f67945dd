"""What each pipeline rank holds at its worst moments, in units: layers of each kind, micro-batches times layers, ...

Memory of a rank at a moment is a sum of products, units times bytes per unit. The units follow from schedule, layout
and recompute (this module); the bytes from degrees, precision and micro-batch (`parameters`, `activations`, ...). All
bytes are at least 0, so a moment whose units another moment equals or exceeds everywhere can never be the worst: it
is dropped here, once per pipeline shape, and a handful of moments per shape remain however many stages there are.

Which micro-batches a pipeline rank holds, at every moment that could be its worst: from the schedule's own order.

At each pass a rank holds, per chunk, `live` micro-batches (forward done, backward not) and `waiting` ones (input
gradient done, weight gradient not). Only moments no other moment of the rank exceeds in everything are kept; for 1F1B
that is one per rank: p - r micro-batches.

    >>> held_microbatches(PipelineOrder("1f1b", pp=4), 8).live[0]
    array([4.])

Pipelines as memory sees them: numbers for those that differ in what their ranks hold, and the moments of each.

Two candidates share a number when schedule, stages, layout, relief of layers and the micro-batches that tell peaks
apart agree. New pipelines of one order are walked through together, however many settings of recompute they have.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import ScheduleError
from primus_search.cost.memo import Canonical, KeyNumbers, Rows, WordNumbers, alike, distinct
from primus_search.values.candidates import Candidates, Columns, Floats, Ints, PipelineOrder, Recompute, RecomputeMethod
from primus_search.values.job import Job
from primus_search.values.layout import Layout, StageLayers, dealt_layers
from primus_search.values.model import LayerKind, Model

STEADY_ROUNDS = 4
"""Micro-batches per stage after which a fixed pattern holds no more than before: it repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldMicrobatches:
    """Moments of all ranks, one rank after the other: those of rank r are first[r] .. first[r + 1].

    stages    (ranks, chunks) virtual stages of each rank      live, waiting  (moments, chunks) micro-batches
    backward  (moments,) index of the chunk that runs backward, -1 where no backward runs at that moment
    """

    first: NDArray[np.int64]
    stages: NDArray[np.int64]
    live: Floats
    waiting: Floats
    backward: NDArray[np.int64]


@lru_cache(maxsize=65536)
def telling_microbatches(order: PipelineOrder, microbatches: int) -> int:
    """The fewest micro-batches with the same peaks: what tells pipelines apart in memory.

    A fixed pattern repeats itself after a few rounds, unless it holds all micro-batches at once (GPipe). An order that
    is searched for may differ with every number, so none is left out.
    """
    from primus_search.schedule import algorithm, peak_activations_for

    few = min(microbatches, STEADY_ROUNDS * max(order.pp, order.group))
    if order.pp == 1 or few == microbatches or order.schedule == "1f1b":
        return 1 if order.pp == 1 else few
    chosen = algorithm(order.schedule, order.launcher)
    # Launchers cut other numbers than multiples of the stages into other groups.
    is_regular = not chosen.cost_aware and not (chosen.launchers and microbatches % order.pp)
    if not is_regular or float(peak_activations_for(order, few).max()) >= few:
        return microbatches
    return few


@lru_cache(maxsize=1 << 12)
def held_microbatches(order: PipelineOrder, microbatches: int) -> HeldMicrobatches:
    """The worst moments of every rank. Raises `ScheduleError` where the schedule cannot serve this shape."""
    from primus_search.schedule import order_for

    pp = order.pp
    if pp == 1 or (order.schedule == "1f1b" and order.vpp == 1):
        ranks = np.arange(pp)
        live = np.minimum(pp - ranks, microbatches).astype(np.float64)
        return HeldMicrobatches(
            first=np.arange(pp + 1), stages=ranks[:, None], live=live[:, None], waiting=np.zeros((pp, 1)),
            backward=np.zeros(pp, dtype=np.int64),
        )  # fmt: skip
    from primus_search.cost.memory.memory_kernels import highest_of_ranks

    table = order_for(order, microbatches)
    first, stages, found = highest_of_ranks(table.offsets, table.kind, table.stage, table.rank_of_stage)
    chunks = stages.shape[1]
    return HeldMicrobatches(
        first=first, stages=stages, live=found[:, :chunks].astype(np.float64),
        waiting=found[:, chunks:-1].astype(np.float64), backward=found[:, -1].copy(),
    )  # fmt: skip


STATE_UNITS = (
    "embedding", "head", "final_norm", "mtp", "attention_present", "mlp_present", "experts_present", "head_gathers",
)  # fmt: skip
BATCH_UNITS = ("inputs", "head_live", "head_waiting", "head_runs", "head_present", "hop", "tower_live")


class Units:
    """Columns of a moment: first what parameters price, then what a micro-batch prices.

    layers    layers of a kind on the rank           live      micro-batches times layers kept for backward
    gathers   1 while a layer of the kind runs       waiting   likewise between input and weight gradient
    working   the same, for what its tokens need     again     layers brought back by full recompute
    embedding, head, final_norm, mtp   number on the rank
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
    """(layers + 1, kinds) layers of each kind before every layer, and of all layers."""
    index = {_memory_key(kind): k for k, kind in enumerate(memory_kinds(model))}
    of_kind = np.eye(len(index))[[index[_memory_key(kind)] for kind in model.layers]]
    return np.concatenate([np.zeros((1, of_kind.shape[1])), np.cumsum(of_kind, axis=0)])


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


NEVER = 1e15
"""Layers, micro-batches, ... of a pipeline that cannot run: finite, and more than any device holds."""


def relief_of(c: Candidates) -> Relief:
    """What every row recomputes and offloads."""
    is_full = (c.recompute & int(Recompute.FULL)) != 0
    return Relief.of(is_full, c.recompute_method, c.recompute_num_layers, c.offload_layers)


def pipeline_of(job: Job, c: Candidates, row: int, microbatches: int) -> Pipeline:
    """The pipeline of a row; micro-batches beyond what changes a peak are not told apart."""
    order = c.order(row, job.launcher)
    return Pipeline(order, telling_microbatches(order, microbatches), c.layouts[int(c.pipeline_layout[row])])


def moment_columns(c: Candidates, microbatches: Ints, words: WordNumbers) -> Canonical:
    """Columns that are equal where two rows hold the same at every moment of their pipelines."""
    is_full = (c.recompute & int(Recompute.FULL)) != 0
    recompute = is_full * (1 + c.recompute_method + 2 * c.recompute_num_layers)
    relief = {"recompute": recompute, "recompute_method": None, "recompute_num_layers": None}
    return {**words.columns(c), "microbatches": microbatches, **relief}


class PipelineMoments:
    """The worst moments of the pipelines of a memo: those of row i are `units` first[n] .. first[n + 1], n = number[i].

    Rows that differ in what moments do not see, such as micro-batches beyond a few, have the same `number`.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._width = job, Units(len(memory_kinds(job.model))).width
        self._units, self.number = Rows(self._width), Rows(dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Drop every pipeline."""
        self._pipelines: dict[Pipeline, int] = {}
        self._reliefs = KeyNumbers()
        self.first: Ints = np.zeros(1, dtype=np.int64)
        self._units.clear()
        self.number.clear()

    def append(self, numbers: Ints) -> None:
        """Add rows by what `added` made of them."""
        self.number.append(numbers)

    @property
    def units(self) -> Floats:
        """(moments, units)"""
        return self._units.data

    def added(self, c: Candidates, microbatches: Ints) -> Ints:
        """The number of every row's pipeline; moments of new ones are worked out."""
        same, first = distinct([c.schedule, *c.order_counts, c.pipeline_layout, microbatches])
        pipelines = [pipeline_of(self._job, c, i, int(microbatches[i])) for i in first.tolist()]
        pipeline = np.array([self._pipelines.setdefault(p, len(self._pipelines)) for p in pipelines])[same]
        relief = relief_of(c)
        # Sorted, so that what is new of one pipeline gets numbers in a row.
        order = np.argsort(pipeline, kind="stable")
        columns = [column[order] for column in (pipeline, relief.again, relief.group, relief.offload)]
        numbers, new = self._reliefs.encode(columns)
        fresh = order[new]
        for members in (fresh[rows] for rows in alike(pipeline[fresh][None])):
            self._append(pipelines[same[members[0]]], relief.take(members))
        out = np.empty_like(numbers)
        out[order] = numbers
        return out

    def _append(self, pipeline: Pipeline, relief: Relief) -> None:
        """Add the moments of one pipeline under some settings."""
        try:
            moments = rank_moments(self._job.model, pipeline, relief, across=True)
            first, units = moments.first, moments.units
        except ScheduleError:
            # No order serves this shape (too few micro-batches, a layout of other stages): fits on no device.
            first = np.arange(len(relief.again) + 1)
            units = np.full((len(relief.again), self._width), NEVER)
        self.first = np.concatenate([self.first, self._units.size + first[1:]])
        self._units.append(units)
