"""What memory must do whatever the candidate: knobs that save memory never cost any, parts add up, rows are alone."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.cost.memory.chunk_memory import MemoryTable, memory_by_rank
from primus_search.cost.memory.held_microbatches import held_microbatches, telling_microbatches
from primus_search.values.candidates import Candidates, Fp8, PipelineOrder, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, Knob
from primus_search.values.layout import BALANCED
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import FLASH, LITE, LLAMA_70B, cluster

STACK = replace(FLASH, memory=replace(FLASH.memory, activation_share=0.2, caches_dummy_gradients=True))
CLUSTER = cluster(16, STACK)
WORK = Workload(seq_length=4096, global_batch_size=512)
MODELS = {"llama": LLAMA_70B, "lite": LITE}


@st.composite
def candidates(draw: st.DrawFn) -> dict[str, object]:
    """One legal row on 128 devices, as columns."""
    tp, cp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2]))
    pp = draw(st.sampled_from([1, 2, 4]))
    schedule, vpp = draw(st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("v-half", 2), ("zb-h1", 1)]))
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "vpp": vpp if pp > 1 else 1,
        "schedules": (schedule if pp > 1 else "1f1b",),
        "ep": draw(st.sampled_from([1, 4, 8])),
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "sequence_parallel": tp > 1,
        "deepep": draw(st.booleans()),
        "fp8": draw(st.sampled_from([int(Fp8.NONE), int(Fp8.HYBRID)])),
        "recompute": draw(st.sampled_from([0, int(Recompute.CORE_ATTENTION), int(Recompute.FULL)])),
        "sharding": draw(st.sampled_from([int(s) for s in (Sharding.NONE, Sharding.DISTRIBUTED_OPTIMIZER)])),
        "loss_fusion": draw(st.booleans()),
        "layouts": (BALANCED,),
    }


def total(model_name: str, row: dict[str, object], **changed: object) -> np.ndarray:
    return MemoryTable(Job(MODELS[model_name], CLUSTER, WORK)).memory(Candidates.table(**{**row, **changed})).total


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_each_stage_of_zero_needs_no_more_state(model: str, row: dict[str, object]) -> None:
    stages = [int(Sharding.NONE), int(Sharding.DISTRIBUTED_OPTIMIZER), int(Sharding.ZERO2), int(Sharding.FSDP2)]
    m = MemoryTable(Job(MODELS[model], CLUSTER, WORK)).memory(Candidates.table(**{**row, "sharding": stages}))
    # torch FSDP2 deals whole layers to replicas; whole experts have tp times as many of these under the other stages
    is_apart = MODELS[model].moe is not None and row["tp"] != 1
    same = len(stages) - (is_apart or row["pp"] != 1)
    state = m.weights + m.gradients + m.optimizer
    assert (np.diff(state[:same]) <= 1e-3).all()
    # under a pipeline weights stay gathered, gradients whole until the last micro-batch
    assert row["pp"] == 1 or is_apart or state[3] == state[1]
    assert (np.diff(m.total[:3]) <= 1e-3).all()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_more_recompute_needs_no_more_memory(model: str, row: dict[str, object]) -> None:
    levels = [int(Recompute.FULL), int(Recompute.CORE_ATTENTION), int(Recompute.NONE)]
    assert (np.diff(total(model, row, recompute=levels)) >= -1e-3).all()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_more_tensor_parallelism_never_needs_more(model: str, row: dict[str, object]) -> None:
    # Without a sharded optimizer, whose shards grow back as the replicas become fewer.
    by_tp = total(model, row, tp=[2, 4, 8], sequence_parallel=True, sharding=int(Sharding.NONE))
    assert (np.diff(by_tp) <= 1e-3).all()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_a_larger_micro_batch_or_an_unfused_loss_never_needs_less(model: str, row: dict[str, object]) -> None:
    assert (np.diff(total(model, row, loss_fusion=[True, False])) >= -1e-3).all()
    if row["pp"] == 1:
        assert (np.diff(total(model, row, micro_batch_size=[1, 2, 4])) >= -1e-3).all()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_parts_add_up_and_the_worst_rank_is_the_worst_rank(model: str, row: dict[str, object]) -> None:
    c = Candidates.table(**row)
    m = MemoryTable(Job(MODELS[model], CLUSTER, WORK)).memory(c)
    parts = [m.__getattribute__(f.name) for f in fields(m)]
    assert all((part >= 0).all() for part in parts)
    assert np.sum(parts) == pytest.approx(m.total[0], rel=1e-12)
    ranks = memory_by_rank(Job(MODELS[model], CLUSTER, WORK), c)
    assert len(ranks.total) == row["pp"]
    assert ranks.total.max() == pytest.approx(m.total[0], rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(candidates(), min_size=2, max_size=6))
def test_a_row_needs_the_same_alone_as_in_a_table(model: str, rows: list[dict[str, object]]) -> None:
    names = sorted({name for row in rows for name in row["schedules"]})
    shared = MemoryTable(Job(MODELS[model], CLUSTER, WORK))
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("schedules", "layouts")}
    columns["schedule"] = [names.index(row["schedules"][0]) for row in rows]
    whole = Candidates.table(schedules=tuple(names), layouts=(BALANCED,), **columns)
    together = shared.total(whole)
    again = shared.total(whole)
    parts = shared.memory(whole).total
    alone = [MemoryTable(Job(MODELS[model], CLUSTER, WORK)).total(Candidates.table(**row))[0] for row in rows]
    assert together.tolist() == again.tolist() == alone
    assert parts == pytest.approx(together, rel=1e-12)


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.memory_from], ids=lambda knob: knob.name)
@settings(max_examples=25, deadline=None)
@given(row=candidates())
def test_memory_is_the_same_on_one_side_of_a_knobs_edge(knob: Knob, row: dict[str, object]) -> None:
    assert knob.most is not None
    values = np.arange(knob.least, knob.most + 1)
    needed = total("lite", row, **{knob.name: values})
    for side in (needed[values < knob.memory_from], needed[values >= knob.memory_from]):
        assert (side == side[0]).all()


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(
        [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1), ("zbv", 2)]
    ),
    pp=st.sampled_from([2, 4, 8]),
    rounds=st.integers(min_value=1, max_value=12),
    groups=st.integers(min_value=0, max_value=3),
)
def test_fewer_micro_batches_with_the_same_peaks_are_really_the_same(
    schedule: tuple[str, int], pp: int, rounds: int, groups: int
) -> None:
    name, vpp = schedule
    group = min(groups, rounds) * pp if name == "interleaved" else 0
    order = PipelineOrder(name, pp, vpp, group)
    few = telling_microbatches(order, rounds * pp)
    most = [
        np.maximum.reduceat((moments.live + moments.waiting).sum(axis=1), moments.first[:-1])
        for moments in (held_microbatches(order, few), held_microbatches(order, rounds * pp))
    ]
    assert most[0].tolist() == most[1].tolist()
