"""Memory of a table of candidates, and of one candidate rank by rank."""

import numpy as np

from primus_search.candidates import Candidates
from primus_search.cost.memory import buffers
from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.cost.memory.price import PARTS, activation_prices, state_prices
from primus_search.cost.memory.rank_moments import rank_moments
from primus_search.cost.memory.runtime import context_bytes
from primus_search.cost.projection import Memory
from primus_search.job import Job


def project_memory(job: Job, c: Candidates) -> Memory:
    """Bytes on the worst pipeline rank of every candidate, by part; `.total` is what the driver would show.

    A search that comes back with chunk after chunk keeps a `MemoryTable` instead.
    """
    return MemoryTable(job).memory(c)


def memory_by_rank(job: Job, c: Candidates, row: int = 0) -> Memory:
    """Memory of one candidate on every pipeline rank: columns of length pp, each rank at its own worst moment."""
    model, cluster = job.model, job.cluster
    table = MemoryTable(job)
    one = c.take(slice(row, row + 1))
    s = table.share(one)
    every = rank_moments(model, *table.pipeline(one, 0))
    both = (state_prices(model, cluster.stack, s), activation_prices(model, cluster.stack, job.workload, s))
    bytes_of = np.zeros((len(PARTS), len(every.rank)))
    for prices in both:
        np.add.at(bytes_of, prices.part, (every.units[:, prices.unit] * prices.array[0]).T)
    tight, loose = (factors @ bytes_of for factors in table.slack_factors())
    context, expert = (
        context_bytes(cluster.accelerator, cluster.stack, s)[0],
        buffers.expert_buffer(model, cluster.stack, s)[0],
    )
    fixed = context + expert + cluster.stack.memory.fixed_bytes
    worst, totals = [], []
    for rank in range(int(one.pp[0])):
        rows = np.flatnonzero(every.rank == rank)
        judged = loose if loose[rows].max() + fixed <= table.full_bytes else tight
        worst.append(int(rows[judged[rows].argmax()]))
        totals.append(table.shown(tight[rows].max() + fixed, loose[rows].max() + fixed))
    column = np.ones(len(worst))
    return table.complete(bytes_of[:, worst], np.array(totals), context * column, expert * column)
