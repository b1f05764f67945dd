"""What holds for any table of candidates, whatever the numbers in the hardware files."""

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.cost.project import Projector
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Fp8, Recompute, Sharding, degrees
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.workload import Workload

MODELS = {name: load_model(name) for name in ("llama3.1_8b", "deepseek_v2_lite", "qwen3_30b_a3b")}
CLUSTERS = {name: load_cluster(name, 4) for name in ("h100", "mi355x")}
WORKLOAD = Workload(seq_length=4096, global_batch_size=256)
ORDERS = (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1))


@st.composite
def candidates(draw: st.DrawFn) -> Candidates:
    rows = draw(st.integers(1, 5))

    def column(values: list[int]) -> list[int]:
        return [draw(st.sampled_from(values)) for _ in range(rows)]

    order = column([0, 1, 2])
    table = Candidates.table(
        tp=column([1, 2, 4]),
        pp=column([2, 4]),
        vpp=[ORDERS[i][1] for i in order],
        schedule=order,
        cp=column([1, 2]),
        ep=column([1, 4, 8]),
        micro_batch_size=column([1, 2]),
        fp8=column([int(Fp8.NONE), int(Fp8.HYBRID)]),
        recompute=column([int(Recompute.NONE), int(Recompute.CORE_ATTENTION), int(Recompute.FULL)]),
        sharding=column([int(s) for s in Sharding]),
        shard_group=8,
        deepep=column([0, 1]),
        loss_fusion=column([0, 1]),
        overlap_grad_reduce=column([0, 1]),
        schedules=tuple(name for name, _ in ORDERS),
        layouts=(BALANCED,),
    )
    return table.take(degrees(table, world=32, global_batch_size=256).is_whole)


@given(candidates(), st.sampled_from(sorted(MODELS)), st.sampled_from(sorted(CLUSTERS)))
@settings(max_examples=25, deadline=None)
def test_rows_do_not_see_each_other_parts_are_not_negative_and_the_bound_holds(
    c: Candidates, model: str, cluster: str
) -> None:
    projector = Projector(Job(MODELS[model], CLUSTERS[cluster], WORKLOAD))
    bound = projector.bound(c)
    step = projector.step(c)
    assert np.all(np.isfinite(step.total))
    assert np.all(bound <= step.total * (1.0 + 1e-9))
    for f in fields(step):
        assert np.all(step.__getattribute__(f.name) >= -1e-9 * step.total), f.name
    for i in range(len(c)):
        alone = Projector(Job(MODELS[model], CLUSTERS[cluster], WORKLOAD)).step(c.take([i]))
        for f in fields(step):
            assert alone.__getattribute__(f.name)[0] == step.__getattribute__(f.name)[i], f.name


@given(candidates(), st.sampled_from(sorted(MODELS)))
@settings(max_examples=15, deadline=None)
def test_a_table_costs_the_same_in_one_piece_and_in_two(c: Candidates, model: str) -> None:
    whole = Projector(Job(MODELS[model], CLUSTERS["h100"], WORKLOAD)).step(c).total
    kept = Projector(Job(MODELS[model], CLUSTERS["h100"], WORKLOAD))
    half = len(c) // 2
    pieces = [kept.step(c.take(slice(0, half))).total, kept.step(c.take(slice(half, len(c)))).total]
    assert np.array_equal(np.concatenate(pieces), whole)


@given(candidates(), st.sampled_from(sorted(MODELS)))
@settings(max_examples=15, deadline=None)
def test_computing_every_row_by_itself_changes_nothing(c: Candidates, model: str) -> None:
    shared = Projector(Job(MODELS[model], CLUSTERS["h100"], WORKLOAD)).step(c).total
    single = Projector(Job(MODELS[model], CLUSTERS["h100"], WORKLOAD), shares_rows=False).step(c).total
    assert np.allclose(shared, single, rtol=1e-12)
