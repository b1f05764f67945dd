"""Buffers of software whose shapes are fixed ahead, and what an order of sums costs: MaxText, composable kernels."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from primus_search.cost.confidence.fit import room_to_fit_bytes
from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_cluster, load_stack
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.knobs import CudaGraph
from primus_search.values.machine.stack import Stack
from primus_search.values.workload import Workload

MODEL, JAX = load_model("deepseek_v3"), load_stack("maxtext")
assert MODEL.moe is not None
TABLE = Candidates.table(ep=[1, 8, 8, 32], deepep=[False, False, True, False])
DROPLESS = Workload(seq_length=4096, global_batch_size=64)
PADDED = replace(DROPLESS, routing_imbalance=1.25, pads_to_capacity=True)
ROWS = 4096.0 * MODEL.moe.top_k


def working(stack: Stack, workload: Workload, table: Candidates = TABLE) -> Floats:
    """Bytes that one layer of experts makes again and works with."""
    share = Share(MODEL, workload, stack, table, 64)
    kind = next(kind for kind in MODEL.kinds if kind.is_moe)
    found = layer_activations(MODEL, stack, kind, share, workload.seq_length)
    return np.asarray(found.kept + found.recomputed + found.backward)


def test_dropless_rows_have_room_for_a_whole_group_by_either_dispatcher_and_a_single_rank_for_its_own() -> None:
    memory = JAX.memory
    factors = [1.0, 8 * memory.room_copies, 8 * memory.deepep_room_copies, 32 * memory.room_copies]
    assert Share(MODEL, DROPLESS, JAX, TABLE, 64).routed_rows == pytest.approx(ROWS * np.array(factors))
    assert Share(MODEL, PADDED, JAX, TABLE, 64).routed_rows == pytest.approx(ROWS * np.array([1.0, 1.25, 1.25, 1.25]))


@pytest.mark.parametrize("times", [2, 4])
def test_masks_of_padded_experts_grow_with_tokens_times_the_places_of_a_sequence(times: int) -> None:
    unmasked = replace(JAX, memory=replace(JAX.memory, capacity_mask_bytes=0.0, expert_copies=0.0))
    longer = replace(PADDED, seq_length=times * PADDED.seq_length)
    own, of_longer = (working(JAX, one) - working(unmasked, one) for one in (PADDED, longer))
    assert own == pytest.approx(6.0 * 1.25 * ROWS * 4096)
    assert of_longer == pytest.approx(times**2 * own)
    assert working(JAX, DROPLESS) == pytest.approx(
        working(replace(JAX, memory=replace(JAX.memory, capacity_mask_bytes=0.0)), DROPLESS)
    )


def test_query_gradients_added_in_order_lie_apart_per_128_keys() -> None:
    """Llama-2-70B at 11 sequences: 42.6 GiB more by its publisher (AMD-AGI/maxtext-slurm)."""
    model = load_model("llama2_70b")
    table = Candidates.table(micro_batch_size=[11])
    ordered = replace(JAX, memory=replace(JAX.memory, query_split_keys=128.0))
    share = Share(model, DROPLESS, JAX, table, 8)
    whole, apart = (layer_activations(model, one, model.kinds[0], share, 4096).backward for one in (JAX, ordered))
    assert (apart - whole) / 2**30 == pytest.approx(42.6, rel=0.04)


def test_a_grouped_product_of_masked_rows_holds_them_once_for_every_expert_of_the_rank() -> None:
    masked = replace(JAX, memory=replace(JAX.memory, masks_expert_rows=True))
    rows = Share(MODEL, DROPLESS, JAX, TABLE, 64)
    more = JAX.memory.masked_copies * rows.local_experts * rows.routed_rows * MODEL.hidden * 2.0
    assert working(masked, DROPLESS) - working(JAX, DROPLESS) == pytest.approx(more)


@pytest.mark.parametrize(
    ("model", "stack", "more"),
    [
        ("deepseek_v3", "megatron_core_2026", 0.17),
        ("llama3_8b", "megatron_core_2026", 0.0),
        ("deepseek_v3", "maxtext", 0.0),
    ],
)
def test_a_graph_of_the_whole_iteration_of_experts_fits_with_more_room_than_other_runs(
    model: str, stack: str, more: float
) -> None:
    job = Job(model=load_model(model), cluster=load_cluster("b200", 8, stack), workload=DROPLESS)
    table = Candidates.table(cuda_graph=[CudaGraph.NONE, CudaGraph.PARTIAL, CudaGraph.FULL])
    eager, partial, whole = -np.log(room_to_fit_bytes(job, table) / job.accelerator.hbm_bytes)
    assert partial == pytest.approx(eager)
    assert whole == pytest.approx(np.hypot(eager, NormalDist().inv_cdf(0.9) * more))
