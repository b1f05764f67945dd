"""Memory of a table of candidates, and of one candidate rank by rank."""

import numpy as np

from primus_search.cost.memory import buffers
from primus_search.cost.memory.buffers import context_bytes
from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.cost.memory.price import PARTS, Prices, activation_prices, state_prices
from primus_search.cost.memory.rank_moments import rank_moments
from primus_search.cost.projection import Memory
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job


def memory_by_rank(job: Job, c: Candidates) -> Memory:
    """Memory of the first candidate on every pipeline rank: columns of length pp, each at its rank's worst moment."""
    return memories_by_rank(job, c.take(slice(1)))[0]


def memories_by_rank(job: Job, c: Candidates) -> list[Memory]:
    """`memory_by_rank` of every row."""
    model, stack = job.model, job.stack
    table = MemoryTable(job)
    s = table.share(c)
    both = (state_prices(model, stack, s), activation_prices(model, stack, job.workload, s))
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
