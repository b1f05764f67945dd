"""Memory of chunks of candidates, fast: every key once, then a few products per row.

A row needs three keys. Its pipeline (schedule, stages, layout, recompute of whole layers, micro-batches) decides the
moments and their units. Its state (degrees and sharding) decides the prices of what stays, its micro-batch (tokens,
precision, recompute of modules) the prices of what comes and goes. Each is a memo; a search over a grid keeps their
codes per pair of outer cell and inner combination and calls `total_of` alone.

`memory_by_rank` is that of one candidate, rank by rank.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from primus_search.cost.memory import buffers
from primus_search.cost.memory.activations import restores_stages
from primus_search.cost.memory.device_context import context_bytes
from primus_search.cost.memory.pipeline_moments import PipelineMoments, moment_columns, pipeline_of, relief_of
from primus_search.cost.memory.price import PARTS, STATIC_PARTS, Prices, activation_prices, state_prices
from primus_search.cost.memory.rank_moments import Pipeline, Relief, Units, memory_kinds, rank_moments
from primus_search.cost.memory.share import Share
from primus_search.cost.memory.whole_matrices import dealt_columns
from primus_search.cost.projection import Memory
from primus_search.space.memo import Rows, WordNumbers, by_columns, distinct, in_order
from primus_search.values.candidates import Candidates, Floats, Ints
from primus_search.values.job import Job
from primus_search.values.knobs import Enters, reading

ROUNDING = 1e-9
"""A full device is this much short of full, so that its parts, added in another order, do not overflow it."""

KEY_LIMIT = 200_000
"""Keys of one kind kept before a table starts afresh (about 100 MB)."""

STATE_READS, BATCH_READS = reading(Enters.STATE), reading(Enters.BATCH)
MOMENT_READS = reading(Enters.MOMENTS) | {"microbatches"}
"""Columns that each term depends on."""


class MemoryKeys(NamedTuple):
    """Numbers of the terms of memory, one of each per row."""

    pipeline: Ints
    state: Ints
    batch: Ints


NewPrices = tuple[Prices, tuple[Floats, Floats]]
"""Prices, and reserved over allocated bytes of every part when memory is short and when it is not."""


class MemoryTable:
    """Memory of the candidates of one job; keeps every term it has computed.

    moments  the worst moments of a pipeline, in `pipelines`
    states   of what stays: bytes by entry and by unit, context
    batches  of what comes and goes: bytes by entry and by unit, expert buffers
    """

    def __init__(self, job: Job, margin: float = 0.0) -> None:
        self.job, self.margin, words = job, margin, WordNumbers()
        units = Units(len(memory_kinds(job.model)))
        self.pipelines = PipelineMoments(job)
        self._state, self._batch = (
            PriceTable(range(units.state_width)), PriceTable(range(units.state_width, units.width))
        )  # fmt: skip
        self._context, self._expert_buffer = Rows(), Rows()
        memo = partial(by_columns, limit=KEY_LIMIT)
        self.moments = memo(
            reads=MOMENT_READS,
            canonical=lambda c: moment_columns(c, job.degrees(c).microbatches, words),
            compute=lambda c: (self.pipelines.added(c, job.degrees(c).microbatches),),
            tables=(self.pipelines,),
        )
        self.states = memo(
            reads=STATE_READS,
            canonical=lambda c: dealt_columns(job.stack, c, words.layouts(c)),
            compute=self._states,
            tables=(self._state, self._context),
        )
        self.batches = memo(
            reads=BATCH_READS,
            canonical=lambda c: {
                "pp": np.where(restores_stages(c), c.pp, c.pp > 1),
                "vpp": restores_stages(c) * c.vpp,
                "sharding": job.gathers_weights(c),
            },
            compute=self._batches,
            tables=(self._batch, self._expert_buffer),
        )

    def refresh(self) -> None:
        """Start afresh with what has grown too large."""
        for memo in (self.moments, self.states, self.batches):
            memo.refresh()

    # --- the public face -------------------------------------------------------------------------------------------

    def total(self, c: Candidates) -> Floats:
        """Bytes the driver would show on the worst rank, per row: all that rejection needs."""
        keys, number = self._keys(c)
        return self.total_of(keys)[0][number]

    def memory(self, c: Candidates) -> Memory:
        """Every part, on the worst rank at its worst moment."""
        from primus_search.cost.memory.memory_kernels import split

        keys, number = self._keys(c)
        total, moment = self.total_of(keys)
        parts = np.zeros((len(PARTS), len(total)))
        for key, table in ((keys.state, self._state), (keys.batch, self._batch)):
            split(moment, key, self.pipelines.units, table.part, table.unit, table.entries.data, parts)
        context, expert_buffer = self._context.data[keys.state], self._expert_buffer.data[keys.batch]
        return self.complete(parts, total, context, expert_buffer).take(number)

    def complete(self, parts: Floats, total: Floats, context: Floats, expert_buffer: Floats) -> Memory:
        """Add what belongs to the device rather than to a moment; slack is what the total leaves."""
        fixed = np.full_like(total, self.job.stack.memory.fixed_bytes)
        named = dict(zip(PARTS, parts, strict=True))
        named["workspace"] = named["workspace"] + fixed
        slack = total - in_order(parts) - fixed - expert_buffer - context
        return Memory(
            **named, expert_buffers=expert_buffer, context=context, allocator_slack=np.maximum(slack, 0.0)
        )  # fmt: skip

    @property
    def full_bytes(self) -> float:
        """Up to here the allocator may keep what it has cached; a margin is kept free of cached blocks, too."""
        return self.job.room_bytes(self.margin + ROUNDING)

    def shown(self, tight: Floats, loose: Floats) -> Floats:
        """What the driver shows: loose while the device has room; tight where it must, for torch frees what is cached.

        Source: PyTorch notes on CUDA memory management: cached blocks are released and the allocation is retried
        before an out-of-memory error.
        """
        return np.maximum(tight, np.minimum(loose, self.full_bytes))

    def slack_factors(self) -> tuple[Floats, Floats]:
        """Reserved over allocated bytes of every part, when memory is short and when it is not."""
        memory = self.job.stack.memory
        shares = np.array([0.0 if part in STATIC_PARTS else memory.activation_share for part in PARTS])
        return 1.0 + memory.tight_slack * shares, 1.0 + shares

    def share(self, c: Candidates) -> Share:
        """What one device sees of the model and of a micro-batch, per row."""
        return Share.of(self.job, c)

    # --- keys ------------------------------------------------------------------------------------------------------

    def _keys(self, c: Candidates) -> tuple[MemoryKeys, Ints]:
        """Keys of every combination that occurs, and which one every row has."""
        self.refresh()
        keys = MemoryKeys(self.moments.codes(c), self.states.codes(c), self.batches.codes(c))
        number, first = distinct(keys)
        return MemoryKeys(*(key[first] for key in keys)), number

    def total_of(self, keys: MemoryKeys) -> tuple[Floats, Ints]:
        """Bytes of every combination of keys, and the moment they are needed at."""
        from primus_search.cost.memory.memory_kernels import worst

        fixed = self._context.data[keys.state] + self._expert_buffer.data[keys.batch]
        fixed = fixed + self.job.stack.memory.fixed_bytes
        pipelines = MemoryKeys(self.pipelines.number.data[keys.pipeline], keys.state, keys.batch)
        tight, loose, moment = worst(
            pipelines, self.pipelines.first, self.pipelines.units,
            self._state.per_unit.data, self._batch.per_unit.data, self.full_bytes - fixed,
        )  # fmt: skip
        return self.shown(tight + fixed, loose + fixed), moment

    def pipeline(self, c: Candidates, row: int) -> tuple[Pipeline, Relief]:
        """The pipeline of a row, and what it recomputes and offloads."""
        taken = c.take(slice(row, row + 1))
        return pipeline_of(self.job, taken, 0, int(self.job.degrees(taken).microbatches[0])), relief_of(taken)

    def _states(self, c: Candidates) -> tuple[NewPrices, Floats]:
        s = self.share(c)
        prices = state_prices(self.job.model, self.job.stack, self.job.workload, s)
        return (prices, self.slack_factors()), context_bytes(self.job.accelerator, self.job.stack, s)

    def _batches(self, c: Candidates) -> tuple[NewPrices, Floats]:
        s = self.share(c)
        prices = activation_prices(self.job.model, self.job.stack, self.job.workload, s)
        return (prices, self.slack_factors()), buffers.expert_buffer(self.job.model, self.job.stack, s)


class PriceTable:
    """Prices by number: by entry (part and unit), and by unit with the allocator's slack, tight and loose."""

    def __init__(self, units: range) -> None:
        self._units = units
        self.part, self.unit = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.per_unit, self.entries = Rows(len(units), 2), Rows(0)

    def clear(self) -> None:
        """Drop every price."""
        self.per_unit.clear()
        self.entries.clear()

    def append(self, new: NewPrices) -> None:
        """Add prices."""
        prices, factors = new
        if not len(self.part):
            self.part, self.unit = np.array(prices.part), np.array(prices.unit)
            self.entries = Rows(len(self.part))
        self.entries.append(prices.array)
        self.per_unit.append(np.stack([prices.per_unit(self._units, factor) for factor in factors], axis=-1))


def memory_by_rank(job: Job, c: Candidates) -> Memory:
    """Memory of the first candidate on every pipeline rank: columns of length pp, each at its rank's worst moment."""
    return memories_by_rank(job, c.take(slice(1)))[0]


def memories_by_rank(job: Job, c: Candidates) -> list[Memory]:
    """`memory_by_rank` of every row."""
    model, stack = job.model, job.stack
    table = MemoryTable(job)
    s = table.share(c)
    both = (state_prices(model, stack, job.workload, s), activation_prices(model, stack, job.workload, s))
    context, expert = context_bytes(job.accelerator, stack, s), buffers.expert_buffer(model, stack, s)
    return [_of_ranks(table, c, row, both, float(context[row]), float(expert[row])) for row in range(len(context))]


def _of_ranks(
    table: MemoryTable, c: Candidates, row: int, both: tuple[Prices, Prices], context: float, expert: float
) -> Memory:
    """One row's memory on every rank, from the prices of all rows and its bytes of context and expert buffers."""
    every = rank_moments(table.job.model, *table.pipeline(c, row))
    bytes_of = np.zeros((len(PARTS), len(every.rank)))
    for prices in both:
        np.add.at(bytes_of, prices.part, (every.units[:, prices.unit] * prices.array[row]).T)
    tight, loose = (factors @ bytes_of for factors in table.slack_factors())
    fixed = context + expert + table.job.stack.memory.fixed_bytes
    worst, totals = [], []
    for rank in range(int(c.pp[row])):
        rows = np.flatnonzero(every.rank == rank)
        judged = loose if loose[rows].max() + fixed <= table.full_bytes else tight
        worst.append(int(rows[judged[rows].argmax()]))
        totals.append(table.shown(tight[rows].max() + fixed, loose[rows].max() + fixed))
    column = np.ones(len(worst))
    return table.complete(bytes_of[:, worst], np.array(totals), context * column, expert * column)
