"""Re-validation: measured layers move the ranking, failures do not stop it, foreign devices do not touch it."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.confidence.fit import fit_verdict
from primus_search.cost.project import Projector
from primus_search.cost.stage import MeasuredLayers, PieceSeconds, key_of
from primus_search.files.hardware_files import load_cluster
from primus_search.measure import candidate_bench
from primus_search.measure import revalidate as revalidation
from primus_search.measure.isolate import ProcessVerdict
from primus_search.measure.revalidate import Benchmark, Chooser, revalidate
from primus_search.values.candidates import Candidates, Recompute
from primus_search.values.job import Job
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tests.support.simulated_gpu import run_here

MODEL = Model(
    name="small", num_layers=4, hidden=256, ffn_hidden=512, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=1024
)
WORKLOAD = Workload(seq_length=128, global_batch_size=16)
WORKERS = "tests.support.measure_workers"


@pytest.fixture(scope="module")
def host():
    """A cluster called host without measuring this machine: a GPU's laws do for what is tested here."""
    gpu = load_cluster("mi300x", 1)
    network = replace(gpu.network, gpus_per_node=2, domain_size=2)
    return replace(gpu, accelerator=replace(gpu.accelerator, name="host", arch="host"), network=network)


@pytest.fixture
def apart():
    """Benchmarks run in processes of their own, as tests of how these end need them."""


@pytest.fixture(autouse=True)
def one_rank(monkeypatch, request):
    """One rank per benchmark, called here: what processes and many ranks do is tested with real ones elsewhere."""
    monkeypatch.setattr(candidate_bench, "devices_of_host", lambda: (1, 1))
    if "apart" not in request.fixturenames:
        run_here(monkeypatch)


def ranked(host, **columns):
    c = Candidates.table(**columns)
    projection = Projector(Job(MODEL, host, WORKLOAD)).project(c)
    order = np.argsort(projection.step.total, kind="stable")
    c = c.take(order)
    return c, Projector(Job(MODEL, host, WORKLOAD)).project(c)


def run(host, c, projection, tmp_path, worker="quick", **how):
    setting = Benchmark(mode="cpu", seconds=60.0, folder=tmp_path, worker=f"{WORKERS}:{worker}", **how)
    return revalidate(Job(MODEL, host, WORKLOAD), c, projection, setting)


def test_measured_times_replace_projected_ones_and_the_measured_rows_lead(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=[1, 2, 4, 8])
    found = run(host, c, projection, tmp_path, top_k=2)
    num_measured = found.time_evidence.count("measured")
    assert num_measured >= 2
    assert found.time_evidence == ("measured",) * num_measured + ("projected",) * (4 - num_measured)
    assert (np.diff(found.projection.step.total[:num_measured]) >= 0).all()
    assert sorted(found.order.tolist()) == [0, 1, 2, 3]


def test_a_measured_step_is_its_layers_times_composed_by_the_same_model(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=1)
    found = run(host, c, projection, tmp_path, top_k=1)
    # 8 micro-batches on each of two replicas, four layers, embedding and head each of 33 ms
    compute = 8 * (4 + 1 + 1) * 0.033
    rest = found.projection.step.gradient_comm[0] + found.projection.step.optimizer[0]
    fixed = found.projection.step.overhead[0] + found.projection.step.stragglers[0]
    assert found.projection.step.total[0] - rest - fixed == pytest.approx(compute, rel=0.02)


def test_what_a_device_s_allocator_held_of_a_layer_is_extrapolated_to_the_candidate(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=1)
    traced = run(host, c, projection, tmp_path / "traced", top_k=1)
    found = run(host, c, projection, tmp_path / "measured", worker="holds_a_tenth_more", top_k=1)
    assert (traced.memory_evidence, found.memory_evidence) == (("traced",), ("measured",))
    grown = traced.projection.memory.activations * 1.1
    assert found.projection.memory.activations == pytest.approx(grown)
    more = found.projection.memory.total - traced.projection.memory.total
    assert traced.projection.headroom_bytes - found.projection.headroom_bytes == pytest.approx(more)


def test_what_a_device_held_is_taken_apart_and_the_reader_is_told_the_bound_and_the_verdict(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=1)
    found = run(host, c, projection, tmp_path, worker="says_its_peaks", top_k=1)
    said = found.remarks[0]
    assert said.startswith("memory FITS: needs ")
    assert "layers keep +10.0% beyond their tensors, kernels 0.00 GB, cached 12% of what comes and goes" in said
    assert "context 1.00 GB" in said
    own = host.accelerator.footprint.context_bytes
    assert found.projection.memory.context[0] - projection.memory.context[0] == pytest.approx(1e9 - own)
    assert found.projection.memory.workspace[0] - projection.memory.workspace[0] == pytest.approx(3e6)


def limited(host, needed_bytes):
    """The same cluster with devices of that memory."""
    return replace(host, accelerator=replace(host.accelerator, hbm_bytes=needed_bytes))


@pytest.mark.parametrize(("spare", "verdict"), [(1.5, "FITS"), (1.005, "AT RISK"), (0.99, "OOM")])
def test_the_verdict_of_a_measured_candidate_is_that_of_its_point_and_its_bound(host, tmp_path, spare, verdict):
    c, projection = ranked(host, micro_batch_size=1)
    memory = run(host, c, projection, tmp_path, worker="says_its_peaks", top_k=1).projection.memory
    here = limited(host, spare * float(memory.allocated[0] + memory.context[0]))
    projection = Projector(Job(MODEL, here, WORKLOAD)).project(c)
    found = run(here, c, projection, tmp_path, worker="says_its_peaks", top_k=1)
    assert found.remarks[0].startswith(f"memory {verdict}: ")
    fits = np.array([found.measured_fits[0]])
    assert fit_verdict(Job(MODEL, here, WORKLOAD), fits, found.projection.headroom_bytes).tolist() == [verdict]


@pytest.mark.parametrize(("fitting", "traced"), [(0, [0]), (3, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_rows_behind_the_first_are_traced_until_one_fits_within_a_bound(tmp_path, monkeypatch, fitting, traced):
    monkeypatch.setattr(revalidation.residuals, "activation_ratio", lambda job, c, row: 1.0 if row >= fitting else 1e6)
    monkeypatch.setattr(revalidation, "MOST_FURTHER", 3)
    job = Job(MODEL, load_cluster("mi300x", 1), WORKLOAD)
    c = Candidates.table(micro_batch_size=[1] * 6)
    found = revalidate(job, c, Projector(job).project(c), Benchmark(mode="trace", top_k=1, folder=tmp_path))
    assert [row for row, evidence in enumerate(found.memory_evidence) if evidence == "traced"] == traced
    assert (found.projection.headroom_bytes < 0.0).tolist() == [row in traced and row < fitting for row in range(6)]


def test_a_row_that_is_projected_to_be_at_risk_is_traced_among_the_first_only(tmp_path, monkeypatch):
    monkeypatch.setattr(revalidation.residuals, "activation_ratio", lambda job, c, row: 1e6 if row < 2 else 1.0)
    gpu = load_cluster("mi300x", 1)
    c = Candidates.table(micro_batch_size=[1, 1, 1, 1])
    job = Job(MODEL, gpu, WORKLOAD)
    projection = Projector(job).project(c)
    memory = projection.memory
    tight = memory.activations + np.array([0.0, 0.97, 0.97, 0.0]) * (gpu.accelerator.hbm_bytes - memory.total)
    projection = replace(projection, memory=replace(memory, activations=tight))
    found = revalidate(job, c, projection, Benchmark(mode="trace", top_k=1, folder=tmp_path))
    assert found.memory_evidence == ("traced", "projected", "projected", "traced")


def test_a_second_run_asks_the_cache_and_measures_nothing(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=[1, 2])
    first = run(host, c, projection, tmp_path, top_k=2)
    second = run(host, c, projection, tmp_path, worker="not_finite", top_k=2)
    assert first.num_new > 0
    assert second.num_new == 0
    assert second.failures == ()
    assert (second.projection.step.total == first.projection.step.total).all()


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("worker", "verdict", "limit_s"),
    [("hangs_on_two", ProcessVerdict.HANG, 5.0), ("killed_on_two", ProcessVerdict.OUT_OF_MEMORY, 60.0)],
)
def test_a_benchmark_that_fails_leaves_its_row_projected_and_the_others_measured(
    host, tmp_path, apart, worker, verdict, limit_s
):
    c, projection = ranked(host, micro_batch_size=[1, 2])
    found = run(host, c, projection, tmp_path, worker=worker, top_k=2, limit_s=limit_s)
    assert [failure.verdict for failure in found.failures] == [verdict]
    evidence = {int(c.micro_batch_size[row]): word for row, word in zip(found.order, found.time_evidence, strict=True)}
    assert evidence == {1: "measured", 2: "projected"}


def test_when_nothing_can_be_measured_the_ranking_stays_and_says_so(host, tmp_path):
    c, projection = ranked(host, micro_batch_size=[1, 2])
    found = run(host, c, projection, tmp_path, worker="not_finite", top_k=2)
    assert {failure.verdict for failure in found.failures} == {ProcessVerdict.NOT_FINITE}
    assert found.order.tolist() == [0, 1]
    assert "no candidate could be measured: time stays projected" in found.notes
    assert (found.projection.step.total == projection.step.total).all()


def test_a_foreign_accelerator_is_traced_and_its_order_is_not_touched(tmp_path):
    gpu = load_cluster("mi300x", 1)
    c = Candidates.table(tp=[1, 2], sequence_parallel=[False, True])
    projection = Projector(Job(MODEL, gpu, WORKLOAD)).project(c)
    found = revalidate(Job(MODEL, gpu, WORKLOAD), c, projection, Benchmark(mode="cpu", folder=tmp_path))
    assert found.time_evidence == ("projected", "projected")
    assert found.memory_evidence == ("traced", "traced")
    assert (found.projection.step.total == projection.step.total).all()
    assert all(0.9 < ratio < 1.1 for ratio in found.traced.values())
    assert any("is not a" in note and "time is projected, memory is traced" in note for note in found.notes)


def test_what_may_win_by_projection_is_measured_together_and_choosing_stops_when_the_next_cannot_win():
    c = Candidates.table(micro_batch_size=[1, 2, 4, 8])
    chooser = Chooser(c, np.array([1.0, 1.05, 1.15, 5.0]), top_k=4)
    chooser._wanted = set()
    assert chooser.next() == [0, 1]
    chooser.measured([0, 1], np.array([2.0, 1.2, 1.15, 5.0]))  # the second's luck would let the third win, too
    assert chooser.next() == [2]
    chooser.measured([2], np.array([2.0, 1.2, 1.3, 5.0]))
    assert chooser.next() == []


def test_shapes_of_the_first_rows_are_measured_whatever_their_chance_and_no_more_than_asked():
    c = Candidates.table(micro_batch_size=[1, 1, 2, 4, 8], pp=[1, 2, 1, 1, 1])
    chooser = Chooser(c, np.array([1.0, 1.0, 4.0, 4.1, 4.2]), top_k=3)
    assert chooser.next() == [0, 2]
    few = Chooser(c, np.array([1.0, 1.0, 1.01, 1.02, 1.03]), top_k=2)
    assert few.next() == [0, 2]
    few.failed([2])
    few.measured([0], np.array([3.0, 3.0, 1.0, 1.0, 1.0]))
    assert few.next() == []


def test_rows_that_share_their_layer_shapes_are_measured_together():
    c = Candidates.table(pp=[1, 2, 4], micro_batch_size=[1, 1, 2])
    chooser = Chooser(c, np.array([1.0, 1.1, 1.2]), top_k=1)
    chooser.measured([0], np.array([1.0, 1.1, 1.2]))
    assert chooser.covered().tolist() == [0, 1]


def test_measured_layers_scale_parts_so_that_each_pass_adds_up(host):
    c = Candidates.table(recompute=[0, int(Recompute.FULL)])
    one = PieceSeconds(forward=0.2, input_grad=0.3, weight_grad=0.1)
    again = PieceSeconds(forward=0.2, input_grad=0.3, weight_grad=0.1, recompute=0.15)
    pieces = {key_of(c, 0): (one, None, None), key_of(c, 1): (again, None, None)}
    measured = Projector(Job(MODEL, host, WORKLOAD), measured=MeasuredLayers(pieces=pieces)).step(c)
    layers = 8 * MODEL.num_layers
    compute = measured.attention + measured.mlp + measured.norms
    assert compute[0] == pytest.approx(layers * 0.6, rel=1e-6)
    assert measured.recompute.tolist() == pytest.approx([0.0, layers * 0.15], rel=1e-6)
