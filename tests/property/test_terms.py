"""Terms are shared between candidates that differ in columns a term ignores: here those columns are changed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from primus_search.candidates import Candidates, Floats, Sharding
from primus_search.cost.memory import MemoryTable, table
from primus_search.cost.pipeline import hop_facts
from primus_search.cost.replicas import replica_terms
from primus_search.cost.stage import COMPUTE_IGNORES, pieces
from primus_search.cost.terms import HOP_READS, LAYER_READS, REPLICA_READS
from primus_search.declare import make_space
from primus_search.space import AXES, Enumerator

MODELS = ("llama3.1_8b", "deepseek_v2_lite", "qwen3_30b_a3b")
ROWS = 40


def candidates(model: str) -> tuple[Enumerator, Candidates]:
    """Some rows of a space in which every axis has several values."""
    axes = {
        "schedule": ["1f1b", "interleaved", "zb-h1", "v-half"],
        "recompute": ["none", "selective", "mlp", {"full": ["all", 1, 2], "method": ["uniform", "block"]}],
        "sharding": ["none", "distributed_optimizer", "zero2", "fsdp2", "hsdp"],
        "shard_group": [2, 4],
        "offload_layers": [0, 1],
        "micro_batch_size": [1, 2],
        "sequence_parallel": [True, False],
    }
    data = {"model": model, "hardware": "h100", "nodes": 4, "space": axes}
    space = make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 256}})
    enumerator = Enumerator(space)
    numbers = np.random.default_rng(0).choice(enumerator.size, ROWS, replace=False)
    return enumerator, enumerator.rows(np.sort(numbers))


def changed(c: Candidates, name: str, enumerator: Enumerator) -> Candidates:
    """Every row with another value of one axis, legal or not."""
    column = c.columns()[name]
    values = enumerator.job.column_values(name)
    other = np.where(column == values[-1], values[0], values[-1]).astype(column.dtype)
    return replace(c, **{name: other})


@pytest.mark.parametrize("model", MODELS)
def test_terms_depend_on_the_columns_they_are_numbered_by(model: str) -> None:
    enumerator, c = candidates(model)
    space = enumerator.job
    parts = (space.model, space.cluster, space.workload)
    # Weights are sharded over the replicas of a job without pipeline: a rule, so that pp need not tell layers apart.
    alone = c.take((c.sharding < Sharding.FSDP2) | (c.pp == 1))

    def layer(rows: Candidates) -> Floats:
        p = pieces(*parts, rows, shares_rows=False)
        return np.concatenate([p.pass_s.ravel(), p.part_s.ravel(), p.recompute_s.ravel()])

    terms: list[tuple[frozenset[str], Candidates, Callable[[Candidates], Floats]]] = [
        (LAYER_READS | {"pp"}, c, layer),
        (LAYER_READS, alone.take(alone.sharding < Sharding.FSDP2), layer),
        (HOP_READS, c, lambda rows: hop_facts(*parts, rows)),
        (REPLICA_READS, c, lambda rows: replica_terms(*parts, rows, None)),
    ]
    for read, rows, term in terms:
        usual = term(rows)
        for name in set(AXES) - read:
            assert np.array_equal(term(changed(rows, name, enumerator)), usual), name


@pytest.mark.parametrize("model", MODELS)
def test_kernels_and_layer_traffic_ignore_what_they_are_shared_across(model: str) -> None:
    enumerator, c = candidates(model)
    parts = (enumerator.job.model, enumerator.job.cluster, enumerator.job.workload)
    shared, alone = pieces(*parts, c), pieces(*parts, c, shares_rows=False)
    for name in ("pass_s", "part_s", "recompute_s"):
        assert np.array_equal(shared.__getattribute__(name), alone.__getattribute__(name)), name
    assert not COMPUTE_IGNORES & {"tp", "cp", "ep", "etp", "micro_batch_size", "fp8"}


@pytest.mark.parametrize("model", MODELS)
def test_memory_keys_depend_on_the_columns_they_are_numbered_by(model: str) -> None:
    enumerator, c = candidates(model)
    job = enumerator.job
    keys = MemoryTable(job.model, job.cluster, job.workload)
    for read, codes in (
        (table.STATE_READS, keys.state_codes),
        (table.BATCH_READS, keys.batch_codes),
        (table.PIPELINE_READS | {"tp", "cp", "micro_batch_size"}, keys.pipeline_codes),
    ):
        usual = codes(c)
        for name in set(AXES) - read:
            assert np.array_equal(codes(changed(c, name, enumerator)), usual), name
