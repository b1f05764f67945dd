"""Memory of a table of candidates, and of one candidate rank by rank."""

import numpy as np

from primus_search.candidates import Candidates
from primus_search.cluster import Cluster
from primus_search.cost.memory import buffers
from primus_search.cost.memory.price import PARTS, activation_prices, state_prices
from primus_search.cost.memory.ranks import rank_moments
from primus_search.cost.memory.runtime import context_bytes
from primus_search.cost.memory.table import MemoryTable
from primus_search.cost.result import Memory
from primus_search.model import Model
from primus_search.workload import Workload


def project_memory(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Memory:
    """Bytes on the worst pipeline rank of every candidate, by part; `.total` is what the driver would show.

    A search that comes back with chunk after chunk keeps a `MemoryTable` instead.
    """
    return MemoryTable(model, cluster, workload).memory(c)


def memory_by_rank(model: Model, cluster: Cluster, workload: Workload, c: Candidates, row: int = 0) -> Memory:
    """Memory of one candidate on every pipeline rank: columns of length pp, each rank at its own worst moment."""
    table = MemoryTable(model, cluster, workload)
    one = c.take(slice(row, row + 1))
    s = table.share(one)
    every = rank_moments(model, table.pipelines(one)[0])
    both = (state_prices(model, cluster.stack, s), activation_prices(model, cluster.stack, workload, s))
    bytes_of = np.zeros((len(PARTS), len(every.rank)))
    for prices in both:
        np.add.at(bytes_of, prices.part, (every.units[:, prices.unit] * prices.array[0]).T)
    totals = table.slack_factors()[0] @ bytes_of
    ranks = range(int(one.pp[0]))
    worst = [max(np.flatnonzero(every.rank == rank).tolist(), key=lambda i: float(totals[i])) for rank in ranks]
    parts = dict(zip(PARTS, bytes_of[:, worst], strict=True))
    context = np.repeat(context_bytes(cluster.accelerator, s), len(worst))
    return table.complete(parts, context, np.repeat(buffers.expert_buffer(model, cluster.stack, s), len(worst)))
