"""Configurations around those of a site's runs, on which hypotheses about its software are compared."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from primus_search.candidates import Candidates, Recompute, degrees, joined
from primus_search.cluster import Cluster
from primus_search.declare.model_files import load_model
from primus_search.job import Job
from primus_search.learn.posterior import Reference, reference_of
from primus_search.measured_run import MeasuredRun
from primus_search.workload import Workload

MOST_JOBS = 3
TENSOR_SIZES = (1, 2, 4, 8)
BATCH_FACTORS = (1, 2)
RECOMPUTES = (Recompute.NONE, Recompute.FULL)

LONG_SEQUENCE, SHORT_SEQUENCE = 32768, 4096
SAMPLES_OF_A_STEP = {LONG_SEQUENCE: 64, SHORT_SEQUENCE: 512}
DISTRIBUTED = {"sharding": "distributed_optimizer"}
USUAL = (
    ("llama3_8b", 1, SHORT_SEQUENCE, ({"micro_batch_size": 2} | DISTRIBUTED,)),
    ("llama3_8b", 1, LONG_SEQUENCE, (DISTRIBUTED, {"sharding": "fsdp2", "recompute": "full"})),
    ("llama2_7b", 32, SHORT_SEQUENCE, (DISTRIBUTED, {"sharding": "fsdp2"})),
    (
        "llama3_70b",
        8,
        SHORT_SEQUENCE,
        ({"tp": 4, "pp": 4, "sequence_parallel": True} | DISTRIBUTED, {"sharding": "fsdp2", "recompute": "full"}),
    ),
    ("qwen3_30b_a3b", 2, SHORT_SEQUENCE, ({"ep": 8, "micro_batch_size": 2} | DISTRIBUTED,)),
    ("mixtral_8x7b", 4, SHORT_SEQUENCE, ({"ep": 8, "pp": 4} | DISTRIBUTED,)),
)
"""Usual jobs: model, nodes, sequence length, candidates. What a few runs tell of one model says less of these."""


def usual(cluster: Cluster) -> list[Reference]:
    """Usual jobs on the devices of a cluster, those that divide there."""
    found = []
    for name, nodes, length, rows in USUAL:
        workload = Workload(seq_length=length, global_batch_size=SAMPLES_OF_A_STEP[length])
        job = Job(load_model(name), replace(cluster, num_nodes=nodes), workload)
        table = joined([Candidates.from_words(row) for row in rows])
        whole = degrees(table, world=job.cluster.world, global_batch_size=job.workload.global_batch_size)
        table = table.take(np.flatnonzero(whole.is_whole & (table.tp <= job.network.gpus_per_node)))
        if len(table):
            found.append(Reference(job=job, table=table))
    return found


def references(runs: Sequence[MeasuredRun]) -> list[Reference]:
    """The runs' own configurations, and for some of their jobs legal neighbours in tensor size, batch, recompute."""
    own = [reference_of(run) for run in runs]
    jobs = list({(one.job.model, one.job.workload, one.job.cluster.num_nodes): one for one in own}.values())
    return own + [replace(one, table=table) for one in jobs[:MOST_JOBS] for table in _neighbours(one)]


def _neighbours(one: Reference) -> Iterator[Candidates]:
    """One table of the legal neighbours of a run, none where it has none."""
    row, model = one.table.row(0), one.job.model
    tables = []
    for tp, factor, recompute in product(TENSOR_SIZES, BATCH_FACTORS, RECOMPUTES):
        if model.num_kv_heads % tp or tp > one.job.network.gpus_per_node:
            continue
        batch = row["micro_batch_size"] * factor
        changed = row | {"tp": tp, "micro_batch_size": batch, "sequence_parallel": tp > 1}
        changed |= {"recompute": "none" if recompute is Recompute.NONE else "full", "recompute_num_layers": 0}
        table = Candidates.from_words(changed)
        whole = degrees(table, world=one.job.cluster.world, global_batch_size=one.job.workload.global_batch_size)
        if bool(np.all(whole.is_whole)):
            tables.append(table)
    if tables:
        yield joined(tables)
