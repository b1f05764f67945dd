"""Memory of chunks of candidates, fast: every key once, then a few products per row.

A row needs three keys. Its pipeline (schedule, stages, layout, recompute of whole layers, micro-batches) decides the
moments and their units. Its state (degrees and sharding) decides the prices of what stays, its micro-batch (tokens,
precision, recompute of modules) the prices of what comes and goes. `cost.factor.Vocabulary` numbers them; a search over
a grid remembers the numbers per pair of outer cell and inner combination and asks for `total_of` alone.
"""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Candidates, Floats, Ints, Sharding, degrees
from primus_search.cluster import Cluster
from primus_search.cost.factor import Vocabulary, in_order
from primus_search.cost.memory import buffers
from primus_search.cost.memory.keys import PipelineMoments, pipeline_of, relief_of
from primus_search.cost.memory.price import PARTS, STATIC_PARTS, Prices, activation_prices, state_prices
from primus_search.cost.memory.ranks import Pipeline, Relief, Units, memory_kinds
from primus_search.cost.memory.runtime import context_bytes
from primus_search.cost.memory.share import Share, share
from primus_search.cost.result import Memory
from primus_search.model import Model
from primus_search.workload import Workload

ROUNDING = 1e-9
"""A full device is this much short of full, so that its parts, added in another order, do not overflow it."""

KEY_LIMIT = 200_000
"""Keys of one kind kept before a table starts afresh (about 100 MB)."""

STATE_READS = frozenset({"tp", "pp", "cp", "ep", "etp", "sharding", "shard_group", "fp8"})
BATCH_READS = frozenset(
    {"tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sharding", "fp8", "recompute", "sequence_parallel", "deepep",
     "loss_fusion"}
)  # fmt: skip
PIPELINE_READS = frozenset(
    {"pp", "vpp", "schedule", "pipeline_layout", "microbatches", "recompute", "recompute_method",
     "recompute_num_layers", "offload_layers"}
)  # fmt: skip
"""Columns that each kind of key depends on."""


class MemoryTable:
    """Memory of candidates of one model, cluster and workload; remembers every key it has seen."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload) -> None:
        self.model, self.cluster, self.workload = model, cluster, workload
        self._columns = Units(len(memory_kinds(model)))
        self.generation = 0
        self._start()

    def forget(self) -> None:
        """Drop every key; numbers given before mean nothing afterwards, which a new `generation` tells."""
        self._start()
        self.generation += 1

    @property
    def is_full(self) -> bool:
        """Whether the tables hold more than they should."""
        return max(self._pipelines.size, self._state_keys.size, self._batch_keys.size) > KEY_LIMIT

    def _start(self) -> None:
        states, batches = range(self._columns.state_width), range(self._columns.state_width, self._columns.width)
        self._pipelines = PipelineMoments(self.model)
        self._state_keys, self._batch_keys = Vocabulary(), Vocabulary()
        self._state, self._batch = _PriceTable(states), _PriceTable(batches)
        self._context, self._expert_buffer = _Grown(()), _Grown(())

    # --- the public face -------------------------------------------------------------------------------------------

    def total(self, c: Candidates) -> Floats:
        """Bytes the driver would show on the worst rank, per row: all that rejection needs."""
        keys, number = self._keys(c)
        return self.total_of(*keys)[0][number]

    def memory(self, c: Candidates) -> Memory:
        """Every part, on the worst rank at its worst moment."""
        from primus_search.cost.memory.kernels import split

        (pipeline, state, batch), number = self._keys(c)
        total, moment = self.total_of(pipeline, state, batch)
        parts = np.zeros((len(PARTS), len(total)))
        for key, table in ((state, self._state), (batch, self._batch)):
            split(moment, key, self._pipelines.units, table.part, table.unit, table.entries.data, parts)
        distinct = self.complete(parts, total, self._context.data[state], self._expert_buffer.data[batch])
        return Memory(**{f.name: distinct.__getattribute__(f.name)[number] for f in fields(Memory)})

    def complete(self, parts: Floats, total: Floats, context: Floats, expert_buffer: Floats) -> Memory:
        """Add what belongs to the device rather than to a moment; slack is what the total leaves."""
        fixed = np.full_like(total, self.cluster.stack.memory.fixed_bytes)
        named = dict(zip(PARTS, parts, strict=True))
        named["workspace"] = named["workspace"] + fixed
        slack = total - in_order(parts) - fixed - expert_buffer - context
        return Memory(
            **named, expert_buffers=expert_buffer, context=context, allocator_slack=np.maximum(slack, 0.0)
        )  # fmt: skip

    @property
    def full_bytes(self) -> float:
        """Up to here the allocator may keep what it has cached."""
        return self.cluster.accelerator.hbm_bytes * (1.0 - ROUNDING)

    def shown(self, tight: Floats, loose: Floats) -> Floats:
        """What the driver shows: loose while the device has room; tight where it must, for torch frees what is cached.

        Source: PyTorch notes on CUDA memory management: cached blocks are released and the allocation is retried
        before an out-of-memory error.
        """
        bytes_shown: Floats = np.maximum(tight, np.minimum(loose, self.full_bytes))
        return bytes_shown

    def slack_factors(self) -> tuple[Floats, Floats]:
        """Reserved over allocated bytes of every part, when memory is short and when it is not."""
        memory = self.cluster.stack.memory
        shares = np.array([memory.static_share if part in STATIC_PARTS else memory.activation_share for part in PARTS])
        return 1.0 + memory.tight_slack * shares, 1.0 + shares

    def share(self, c: Candidates) -> Share:
        """What one device sees of the model and of a micro-batch, per row."""
        return share(self.model, self.workload, self.cluster.stack, c, self.cluster.world)

    # --- keys ------------------------------------------------------------------------------------------------------

    def _keys(self, c: Candidates) -> tuple[tuple[Ints, Ints, Ints], Ints]:
        """Keys of pipeline, state and micro-batch of every combination that occurs, and which one every row has."""
        if self.is_full:
            self.forget()
        keys = (self.pipeline_codes(c), self.state_codes(c), self.batch_codes(c))
        number, first = Vocabulary().encode(keys)
        pipeline, state, batch = (key[first] for key in keys)
        return (pipeline, state, batch), number

    def total_of(self, pipeline: Ints, state: Ints, batch: Ints) -> tuple[Floats, Ints]:
        """Bytes of every combination of keys, and the moment they are needed at."""
        from primus_search.cost.memory.kernels import worst

        rows = len(pipeline)
        tight, loose, moment = np.empty(rows), np.empty(rows), np.empty(rows, dtype=np.int64)
        fixed = self._context.data[state] + self._expert_buffer.data[batch] + self.cluster.stack.memory.fixed_bytes
        worst(
            pipeline, state, batch, self._pipelines.first, self._pipelines.units,
            self._state.per_unit.data, self._batch.per_unit.data, self.full_bytes - fixed, tight, loose, moment,
        )  # fmt: skip
        return self.shown(tight + fixed, loose + fixed), moment

    def pipeline_codes(self, c: Candidates) -> Ints:
        """Number of the pipeline shape of every row."""
        return self._pipelines.codes(c, self._microbatches(c))

    def pipeline(self, c: Candidates, row: int) -> tuple[Pipeline, Relief]:
        """The pipeline of a row, and what it recomputes and offloads."""
        taken = c.take(slice(row, row + 1))
        return pipeline_of(taken, 0, int(self._microbatches(taken)[0])), relief_of(taken)

    def _microbatches(self, c: Candidates) -> Ints:
        batch = self.workload.global_batch_size
        return degrees(c, world=self.cluster.world, global_batch_size=batch).microbatches

    def state_codes(self, c: Candidates) -> Ints:
        """Number of the prices of what stays, per row."""
        columns = [c.tp, c.pp, c.cp, c.ep, c.etp, c.sharding, c.shard_group, c.fp8]
        codes, first = self._state_keys.encode(columns)
        if len(first):
            s = self.share(c.take(first))
            self._state.append(state_prices(self.model, self.cluster.stack, s), self.slack_factors())
            self._context.append(context_bytes(self.cluster.accelerator, self.cluster.stack, s))
        return codes

    def batch_codes(self, c: Candidates) -> Ints:
        """Number of the prices of what comes and goes, per row."""
        gathers = c.sharding >= Sharding.FSDP2
        switches = c.sequence_parallel + 2 * c.deepep + 4 * c.loss_fusion + 8 * (c.pp > 1) + 16 * gathers
        columns = [c.tp, c.cp, c.ep, c.etp, c.micro_batch_size, c.fp8, c.recompute, switches]
        codes, first = self._batch_keys.encode(columns)
        if len(first):
            s = self.share(c.take(first))
            prices = activation_prices(self.model, self.cluster.stack, self.workload, s)
            self._batch.append(prices, self.slack_factors())
            self._expert_buffer.append(buffers.expert_buffer(self.model, self.cluster.stack, s))
        return codes


class _Grown:
    """An array that grows along its first axis."""

    def __init__(self, shape: tuple[int, ...], dtype: type = np.float64) -> None:
        self._data: NDArray[np.float64] = np.zeros((64, *shape), dtype=dtype)
        self.size = 0

    def append(self, rows: NDArray[np.float64] | NDArray[np.int64]) -> None:
        needed = self.size + len(rows)
        if needed > len(self._data):
            grown = np.zeros((max(needed, 2 * len(self._data)), *self._data.shape[1:]), dtype=self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : needed] = rows
        self.size = needed

    @property
    def data(self) -> NDArray[np.float64]:
        return self._data[: self.size]


class _PriceTable:
    """Prices of every key seen: by entry (part and unit), and by unit with the allocator's slack, tight and loose."""

    def __init__(self, units: range) -> None:
        self._units = units
        self.part, self.unit = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.per_unit = _Grown((len(units), 2))
        self.entries = _Grown((0,))

    def append(self, prices: Prices, factors: tuple[Floats, Floats]) -> None:
        if not len(self.part):
            self.part, self.unit = np.array(prices.part), np.array(prices.unit)
            self.entries = _Grown((len(self.part),))
        self.entries.append(prices.array)
        self.per_unit.append(np.stack([prices.per_unit(self._units, factor) for factor in factors], axis=-1))
