"""Regimes of runs that the fits of a device have seen: how weights are sharded, forwards repeated, gradients summed."""

import numpy as np

from primus_search.values.candidates import Bools, Candidates, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.ranges import Ranges

_SHARDS = {int(Sharding.FSDP2): "FSDP", int(Sharding.HSDP): "FSDP", int(Sharding.MEGATRON_FSDP): "Megatron-FSDP"}
"""What shards weights; everything else keeps replicas of them."""


def regimes_of(job: Job, table: Candidates) -> list[str]:
    """How every row shards weights, repeats forwards and accumulates gradients: the kind of its range."""
    columns = (table.sharding, table.recompute & int(Recompute.FULL), job.degrees(table).microbatches)
    return [
        f"regime/{job.model.family}/{_SHARDS.get(sharding, 'replicas')}, {'' if full else 'no '}full recompute, "
        f"{'one micro-batch' if batches == 1 else 'micro-batches'} a step"
        for sharding, full, batches in zip(*(column.tolist() for column in columns), strict=True)
    ]


def had_regime(job: Job, table: Candidates, ranges: Ranges) -> Bools:
    """Rows whose regime a run of such a model on the device had."""
    known = ranges.get(job.accelerator.name, {})
    return np.array([regime in known for regime in regimes_of(job, table)], dtype=np.bool_)
