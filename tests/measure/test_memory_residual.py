"""What a device showed of one layer, taken apart and put to a candidate."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.confidence.fit import fit_verdict
from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.measure.device.timing import PieceMeasurement
from primus_search.measure.memory_residual import (
    Residual,
    fit_probability_of,
    residual_of,
    upper_bytes,
    with_residual,
)
from primus_search.measure.traced_layer import TracedLayer
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import LLAMA_70B, cluster

WORK = Workload(seq_length=4096, global_batch_size=64)
TRACED = TracedLayer(activation_bytes=100e6, forward_peak_bytes=120e6, backward_peak_bytes=150e6)


def measurement(**peaks: float) -> PieceMeasurement:
    return PieceMeasurement(
        kernel="layer", shape="", dtype="bfloat16", seconds={}, spreads_s={}, device="", versions="", date="",
        memory_bytes=104e6, peaks_bytes=peaks,
    )  # fmt: skip


def test_a_peak_is_resident_plus_explained_plus_live_excess_plus_running_excess() -> None:
    # Two layers: 2 x 104 kept, 50 of workspace, 20 of a new gradient, 7 that nothing explains.
    found = residual_of(
        measurement(modules=2.0, resident=300e6, gradient=20e6, allocated=585e6, reserved=642e6, driver=1100e6), TRACED
    )
    assert found.live_share == pytest.approx(0.04)
    assert found.running_bytes == pytest.approx(7e6)
    assert found.slack_share == pytest.approx(0.2)
    assert found.context_bytes == pytest.approx(458e6)


def test_without_peaks_only_the_tensors_kept_are_known() -> None:
    assert residual_of(measurement(), TRACED) == Residual(
        live_share=pytest.approx(0.04), running_bytes=0.0, slack_share=0.0, context_bytes=0.0
    )


ROOM = 1e15
FOUND = Residual(live_share=0.05, running_bytes=2e8, slack_share=0.1, context_bytes=2e9)


def test_the_point_estimate_grows_with_the_candidate_s_activations_and_once_per_device() -> None:
    here = cluster(1)
    before = MemoryTable(Job(LLAMA_70B, here, WORK)).memory(Candidates.table(tp=[8, 4], layouts=(BALANCED,)))
    after = with_residual(before, 1, FOUND, here, ROOM)
    own = here.accelerator.footprint.context_bytes
    assert after.total[0] == before.total[0]
    assert after.activations[1] == pytest.approx(1.05 * before.activations[1])
    grown = 0.05 * before.activations[1] + 2e8 + 2e9 - own
    needed = after.allocated[1] + after.context[1]
    assert needed - before.allocated[1] - before.context[1] == pytest.approx(grown)
    comes = after.allocated[1] - after.weights[1] - after.gradients[1] - after.optimizer[1]
    assert after.allocator_slack[1] == pytest.approx(0.1 * comes)
    tight = with_residual(before, 1, FOUND, here, float(needed) + 1e6)
    assert tight.allocator_slack[1] == pytest.approx(1e6), "cached blocks are given back before there is no room"


@pytest.mark.parametrize(("point", "bound", "room"), [(70.0, 80.0, 80.0), (70.0, 80.0, 70.0), (70.0, 70.0, 60.0)])
def test_nine_of_ten_fit_where_the_bound_does_and_half_where_the_point_does(
    point: float, bound: float, room: float
) -> None:
    wanted = {80.0: 0.9, 70.0: 0.5, 60.0: 0.0}
    assert fit_probability_of(point, bound, room) == pytest.approx(wanted[room], abs=1e-4)


def test_the_upper_bound_keeps_cached_blocks_and_errs_on_what_was_not_measured() -> None:
    here = cluster(1)
    memory = with_residual(MemoryTable(Job(LLAMA_70B, here, WORK)).memory(Candidates.table(tp=8)), 0, FOUND, here, ROOM)
    point = float(memory.allocated[0] + memory.context[0])
    comes = float((memory.allocated - memory.weights - memory.gradients - memory.optimizer)[0])
    exact = replace(
        here, accelerator=replace(here.accelerator, footprint=replace(here.accelerator.footprint, spread=0.0))
    )
    assert upper_bytes(memory, 0, FOUND, exact) == pytest.approx(point + 0.1 * comes)
    assert upper_bytes(memory, 0, FOUND, here) > upper_bytes(memory, 0, FOUND, exact)
    assert upper_bytes(memory, 0, replace(FOUND, slack_share=0.0), exact) == pytest.approx(point)


@pytest.mark.parametrize(
    ("point", "bound", "verdict"), [(70.0, 80.0, "FITS"), (70.0, 80.1, "AT RISK"), (80.1, 90.0, "OOM")]
)
@pytest.mark.parametrize("is_seen", [True, False])
def test_the_verdict_is_that_of_bound_and_point(point: float, bound: float, verdict: str, is_seen: bool) -> None:
    here = cluster(1)
    stack = replace(here.stack, memory=replace(here.stack.memory, peaks_seen=1.0 * is_seen))
    fits = np.array([fit_probability_of(point, bound, 80.0)])
    (found,) = fit_verdict(Job(LLAMA_70B, replace(here, stack=stack), WORK), fits, np.array([80.0 - point]))
    assert found == (verdict if is_seen or point < 80.0 else "AT RISK"), "of doubtful software hardly over is no OOM"
