"""Memory of whole tables of candidates: the worst pipeline rank of every row, and one row rank by rank.

A row is a triple of keys: its pipeline shape (units), its parameters' share (prices of what stays), its micro-batch's
share (prices of what comes and goes). Each is computed once per distinct key and kept across chunks; a row then costs
a few products per worst moment. `MemoryTable` is what a search holds on to, the functions are for one-off use.
"""

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Candidates, Floats, Ints, Recompute
from primus_search.cluster import Cluster
from primus_search.cost.factor import Vocabulary
from primus_search.cost.memory import buffers
from primus_search.cost.memory.price import PARTS, Prices, activation_prices, state_prices
from primus_search.cost.memory.ranks import Moments, Pipeline, Units, rank_moments, worst_moments
from primus_search.cost.memory.runtime import context_bytes, slack_shares
from primus_search.cost.memory.share import Share, share
from primus_search.cost.result import Memory
from primus_search.layout import Layout
from primus_search.model import Model
from primus_search.workload import Workload

STATIC_PARTS = ("weights", "gradients", "optimizer")


def project_memory(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Memory:
    """Bytes on the worst pipeline rank of every candidate, by part; `.total` is what the driver would show."""
    return MemoryTable(model, cluster, workload).memory(c)


def memory_by_rank(model: Model, cluster: Cluster, workload: Workload, c: Candidates, row: int = 0) -> Memory:
    """Memory of one candidate on every pipeline rank: columns of length pp, each rank at its own worst moment."""
    table = MemoryTable(model, cluster, workload)
    one = c.take(slice(row, row + 1))
    shared = share(model, workload, cluster.stack, one, cluster.world)
    every = rank_moments(model, table.pipeline(one, 0))
    prices = _sum_prices(
        state_prices(model, cluster.stack, shared), activation_prices(model, cluster.stack, workload, shared)
    )
    totals = every.units @ table.priced(prices)[0]
    best = [int(rows[totals[rows].argmax()]) for rows in _rows_by_rank(every)]
    units = every.units[best]
    parts = {part: units @ prices.parts[part][0] for part in PARTS}
    return table.complete(parts, shared, np.zeros(len(best), dtype=np.int64))


class MemoryTable:
    """Memory of chunks of candidates of one model, cluster and workload; remembers every key it has seen."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload) -> None:
        self.model, self.cluster, self.workload = model, cluster, workload
        self.columns = Units(len(model.kinds))

    def memory(self, c: Candidates) -> Memory:
        """Every part, on the worst rank at its worst moment."""
        shared = share(self.model, self.workload, self.cluster.stack, c, self.cluster.world)
        prices = _sum_prices(
            state_prices(self.model, self.cluster.stack, shared),
            activation_prices(self.model, self.cluster.stack, self.workload, shared),
        )
        priced = self.priced(prices)
        units = np.empty((len(c), self.columns.width))
        for row in range(len(c)):
            worst = worst_moments(self.model, self.pipeline(c, row)).units
            units[row] = worst[(worst @ priced[row]).argmax()]
        parts = {part: np.einsum("ij,ij->i", units, prices.parts[part]) for part in PARTS}
        return self.complete(parts, shared, np.arange(len(c)))

    def total(self, c: Candidates) -> Floats:
        """Bytes the driver would show, per row: all that rejection needs."""
        return self.memory(c).total

    def pipeline(self, c: Candidates, row: int) -> Pipeline:
        """The pipeline shape of one row."""
        tp, cp, pp, vpp = (int(column[row]) for column in (c.tp, c.cp, c.pp, c.vpp))
        dp = max(self.cluster.world // (tp * cp * pp), 1)
        microbatches = max(self.workload.global_batch_size // (int(c.micro_batch_size[row]) * dp), 1)
        is_full = bool(c.recompute[row] & Recompute.FULL)
        return Pipeline(
            schedule=c.schedules[int(c.schedule[row])],
            pp=pp,
            vpp=vpp,
            microbatches=min(microbatches, 4 * pp),
            layout=c.layouts[int(c.pipeline_layout[row])],
            is_full=is_full,
            method=int(c.recompute_method[row]) if is_full else 0,
            num_layers=int(c.recompute_num_layers[row]) if is_full else 0,
            offload=int(c.offload_layers[row]),
        )

    def priced(self, prices: Prices) -> Floats:
        """Bytes per unit with allocator slack: what decides which moment is the worst."""
        comes_and_goes, stays = slack_shares(self.cluster.stack)
        shares = [1.0 + (stays if part in STATIC_PARTS else comes_and_goes) for part in PARTS]
        total: Floats = np.sum([f * prices.parts[part] for f, part in zip(shares, PARTS, strict=True)], axis=0)
        return total

    def complete(self, parts: dict[str, Floats], s: Share, rows: Ints) -> Memory:
        """Add what belongs to the device rather than to a moment: DeepEP buffers, workspaces, context, slack."""
        stack, accelerator = self.cluster.stack, self.cluster.accelerator
        expert = buffers.expert_buffer(self.model, stack, s)[rows]
        comes_and_goes, stays = slack_shares(stack)
        static = np.sum([parts[part] for part in STATIC_PARTS], axis=0)
        moving = np.sum([parts[part] for part in PARTS if part not in STATIC_PARTS], axis=0)
        return Memory(
            **{part: parts[part] for part in PARTS if part != "workspace"},
            workspace=parts["workspace"] + stack.memory.fixed_bytes,
            expert_buffers=expert,
            context=context_bytes(accelerator, s)[rows],
            allocator_slack=comes_and_goes * moving + stays * static,
        )


def _sum_prices(a: Prices, b: Prices) -> Prices:
    return Prices(parts={part: a.parts[part] + b.parts[part] for part in PARTS})


def _rows_by_rank(every: Moments) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(every.rank == rank) for rank in range(int(every.rank.max()) + 1)]
