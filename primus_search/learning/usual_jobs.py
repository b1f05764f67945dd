"""Usual jobs on a cluster's devices, and legal neighbours of runs: where a stack is compared with the mixture."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from primus_search.learning.inference.projected_runs import Reference, reference_of
from primus_search.learning.logs import table
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Recompute, degrees, joined
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.measured_run import MeasuredRun
from primus_search.values.workload import Workload

MOST_JOBS = 3
MOST_NEIGHBOURS = 24
TENSOR_SIZES = (1, 2, 8)
EXPERT_SIZES = (1, 2, 8)
BATCH_FACTORS = (1, 4)
LENGTH_FACTORS = (1, 4)
RECOMPUTES = (Recompute.NONE, Recompute.FULL)


def usual(cluster: Cluster) -> list[Reference]:
    """Usual jobs on the devices of a cluster, those that divide there."""
    found = []
    for one in table("software")["usual"]:
        workload = Workload(seq_length=one["seq_length"], global_batch_size=one["global_batch_size"])
        nodes = max(one["gpus"] // cluster.network.gpus_per_node, 1)
        job = Job(load_model(one["model"]), replace(cluster, num_nodes=nodes), workload)
        rows = joined([Candidates.from_words(row) for row in one["rows"]])
        whole = degrees(rows, world=job.cluster.world, global_batch_size=job.workload.global_batch_size)
        rows = rows.take(np.flatnonzero(whole.is_whole & (rows.tp <= job.network.gpus_per_node)))
        if len(rows):
            found.append(Reference(job=job, table=rows))
    return found


def references(runs: Sequence[MeasuredRun]) -> list[Reference]:
    """The runs' own configurations, and for some of their jobs legal neighbours in tensor size, batch, recompute."""
    own = [reference_of(run) for run in runs]
    jobs = list({(one.job.model, one.job.workload, one.job.cluster.num_nodes): one for one in own}.values())
    return own + [near for one in jobs[:MOST_JOBS] for near in _neighbours(one)]


def _neighbours(one: Reference) -> Iterator[Reference]:
    """Legal neighbours of a run, one reference per length: spread evenly where there are many."""
    row, job = one.table.row(0), one.job
    experts = [n for n in EXPERT_SIZES if job.model.moe.num_experts % n == 0] if job.model.moe else [1]
    for length in LENGTH_FACTORS:
        tables = []
        for tp, ep, factor, recompute in product(TENSOR_SIZES, experts, BATCH_FACTORS, RECOMPUTES):
            if job.model.num_kv_heads % tp or tp > job.network.gpus_per_node:
                continue
            changed = row | {"tp": tp, "ep": ep, "micro_batch_size": row["micro_batch_size"] * factor}
            changed |= {"sequence_parallel": tp > 1}
            changed |= {"recompute": "none" if recompute is Recompute.NONE else "full", "recompute_num_layers": 0}
            table = Candidates.from_words(changed)
            whole = degrees(table, world=job.cluster.world, global_batch_size=job.workload.global_batch_size)
            if bool(np.all(whole.is_whole)):
                tables.append(table)
        if tables:
            kept = np.unique(
                np.linspace(0, len(tables) - 1, MOST_NEIGHBOURS // len(LENGTH_FACTORS)).round().astype(int)
            )
            workload = replace(job.workload, seq_length=job.workload.seq_length * length)
            yield replace(one, job=replace(job, workload=workload), table=joined([tables[i] for i in kept.tolist()]))
