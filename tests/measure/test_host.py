"""The host as hardware: laws from figures, a file the loader reads, preflight's judgement."""

from dataclasses import replace

import pytest

from primus_search.cost.laws.gemm import gemm_s
from primus_search.files.hardware_files import OF_THE_JOB, SECTIONS, load_hardware, load_stack
from primus_search.measure.device.device_table import to_csv
from primus_search.measure.device.preflight import GEMM, shortfalls
from primus_search.measure.host_calibration import (
    GEMMS,
    MESSAGES,
    accelerator_of,
    fit,
    mean_of,
    network_of,
    rows_of,
    to_yaml,
)
from primus_search.values.machine.cluster import Cluster

RATE = 80e9
FIGURES = {
    "gemm_s": [dict.fromkeys(("forward", "input_grad", "weight_grad"), 2.0 * m * n * k / RATE) for m, n, k in GEMMS],
    "attention_s": [{"forward": 0.002, "backward": 0.008}, {"forward": 0.02, "backward": 0.08}],
    "add_s": 0.001, "swiglu_s": {"forward": 0.003, "backward": 0.01}, "norm_s": {"forward": 0.003, "backward": 0.008},
    "loss_s": 0.02, "copy_s": 0.003, "permute_s": {"forward": 0.001, "backward": 0.003}, "small_kernel_s": 1e-5,
    "experts_s": {"forward": 0.006}, "optimizer_s": 0.004, "baseline_bytes": 3e8,
    "links": {
        name: [1e-4 + size * 1e-9 for size in MESSAGES]
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
    },
}  # fmt: skip


@pytest.fixture
def accelerator():
    return accelerator_of(FIGURES, 8e9)


def test_the_law_returns_the_gemm_seconds_it_was_fitted_to(accelerator):
    for (m, n, k), seconds in zip(GEMMS, FIGURES["gemm_s"], strict=True):
        assert float(gemm_s(accelerator, m, n, k)) == pytest.approx(seconds["forward"], rel=0.02)


def test_a_send_of_the_largest_message_takes_what_was_measured():
    from primus_search.cost.laws.collectives import Group, send_s

    network = network_of(FIGURES["links"], 2)
    # the cost model counts two-byte elements where the host moves four
    assert float(send_s(network, MESSAGES[-1] / 2, Group(2, 1))) == pytest.approx(1e-4 + MESSAGES[-1] * 1e-9, rel=0.01)


def test_what_was_measured_on_the_host_is_what_is_projected_there():
    from primus_search.cost.laws.collectives import Group, all_reduce_s, reduce_scatter_s
    from primus_search.cost.laws.gemm import GemmPass

    slow = FIGURES | {"gemm_s": [{name: 3.0 * s for name, s in t.items()} for t in FIGURES["gemm_s"]]}
    slow["links"] = FIGURES["links"] | {"reduce_scatter": [5.0 * s for s in FIGURES["links"]["reduce_scatter"]]}
    accelerator, network = fit(slow, 2)
    m, n, k = GEMMS[2]
    assert float(gemm_s(accelerator, m, n, k)) == pytest.approx(slow["gemm_s"][2]["forward"])
    gradients = gemm_s(accelerator, m, k, n, gemm_pass=GemmPass.INPUT_GRAD)
    gradients = gradients + gemm_s(accelerator, n, k, m, gemm_pass=GemmPass.WEIGHT_GRAD)
    assert float(gradients) == pytest.approx(slow["gemm_s"][2]["input_grad"] + slow["gemm_s"][2]["weight_grad"])
    size = MESSAGES[3] / 2
    assert float(all_reduce_s(network, size, Group(2, 1))) == pytest.approx(slow["links"]["all_reduce"][3])
    assert float(reduce_scatter_s(network, size, Group(2, 1))) == pytest.approx(slow["links"]["reduce_scatter"][3])


def test_the_host_file_is_read_back_by_the_loader_of_all_hardware_files(accelerator, tmp_path):
    path = tmp_path / "host.yaml"
    network = network_of(FIGURES["links"], 2)
    source = "measured on a test, 2026-01-01"
    (tmp_path / "host.csv").write_text(to_csv(rows_of(FIGURES, 2, source)))
    path.write_text(to_yaml((accelerator, network), source=source, tables="host.csv"))
    loaded = load_hardware("host", host_file=lambda: path)
    assert loaded.default_stack == "host"
    assert loaded.accelerator.bf16_peak_flops_per_s == pytest.approx(accelerator.bf16_peak_flops_per_s, rel=1e-5)
    assert loaded.network.link_bytes_per_s == pytest.approx(network.link_bytes_per_s, rel=1e-5)
    assert {one.source for one in loaded.sources if not one.inherited_from} == {source}
    assert {one.path.split(".")[0] for one in loaded.sources if one.inherited_from} == SECTIONS.keys() - OF_THE_JOB
    kernels, links = fit(FIGURES, 2)
    assert {table.kind: table.shapes for table in loaded.network.tables} == {t.kind: t.shapes for t in links.tables}
    assert {table.kind for table in loaded.accelerator.tables} == {table.kind for table in kernels.tables}


def test_ranks_are_averaged_number_by_number():
    assert mean_of([{"a": 1.0, "b": [2.0]}, {"a": 3.0, "b": [4.0]}]) == {"a": 2.0, "b": [3.0]}


def test_a_slow_device_is_named_and_a_well_one_is_not(accelerator):
    cluster = Cluster(
        accelerator=accelerator, network=network_of(FIGURES["links"], 2), stack=load_stack("host"), num_nodes=1
    )
    m, n, k = GEMM["cpu"]
    promised = float(gemm_s(accelerator, m, n, k))
    assert shortfalls(cluster, "cpu", {"GEMM": promised, "memory copy": 1.0}) == ()
    assert shortfalls(cluster, "cpu", {"GEMM": 2.0 * promised, "memory copy": 1.0}) == (
        "preflight: GEMM runs at 50% of what the hardware file says; measured times may mislead",
    )
    gpu = replace(cluster, accelerator=replace(accelerator, hbm_bytes_per_s=1e12))
    words = shortfalls(gpu, "cuda", {"GEMM": 1e-9, "memory copy": 1.0})
    assert words == ("preflight: memory copy runs at 0% of what the hardware file says; measured times may mislead",)
