"""Fits of collectives: they find the figures that made the data, and refuse what the data cannot tell."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.files.hardware_files import load_hardware
from tests.support.network_fit import fit_network, left_out_errors, predict_s, relative_errors
from tools.fit.write_ranges import POINT, Points, read_links

H100 = load_hardware("h100").network
TRUTH = replace(H100, ring_efficiency=0.7, link_latency_s=8e-6, link_half_speed_bytes=3e6)
NAMES = ("ring_efficiency", "link_latency_s", "link_half_speed_bytes")


def gathers(noise: float = 0.0) -> Points:
    size = np.tile(2.0 ** np.arange(12, 31), 2)
    members = np.repeat([4, 8], 19)
    points = np.zeros(len(size), POINT).view(np.recarray)
    points.op, points.members, points.nodes, points.message_bytes = "allgather", members, 1, size
    points.seconds = predict_s(TRUTH, points) * np.exp(noise * np.random.default_rng(0).standard_normal(len(size)))
    return points


def test_a_fit_finds_the_figures_behind_exact_data() -> None:
    fitted = fit_network(H100, gathers(), NAMES)
    for name in NAMES:
        assert fitted.__getattribute__(name) == pytest.approx(TRUTH.__getattribute__(name), rel=1e-3)


def test_left_out_errors_are_as_large_as_the_noise() -> None:
    noisy = gathers(noise=0.05)
    errors = left_out_errors(H100, noisy, NAMES)
    assert 0.03 < np.sqrt(np.mean(errors**2)) < 0.08
    assert np.abs(relative_errors(H100, noisy)).mean() > 3 * np.abs(errors).mean()


def test_fields_the_points_cannot_tell_are_refused() -> None:
    with pytest.raises(ValueError) as caught:
        fit_network(H100, gathers(), (*NAMES, "all_to_all_efficiency"))
    assert str(caught.value) == "these points cannot tell all_to_all_efficiency; leave it out of the fit"


def test_bus_and_logical_bandwidth_become_seconds(tmp_path: Path) -> None:
    header = "kind,gpu,dtype,op,m,k,message_bytes,num_gpus,nodes,value,unit,source,notes"
    rows = [
        "collective,X,,allreduce,,,1000000000,8,1,350,GB/s busbw,a,",
        "collective,X,,allgather,,,1000000000,8,1,350,GB/s busbw,a,",
        "dispatch_combine,X,bf16,combine_normal,1000,1000,,8,1,500,us,b,trust=A; 24 SMs",
        "dispatch_combine,X,bf16,combine_normal,1000,1000,,8,1,900,us,b,trust=A; 8 SMs",
        "collective,X,,allreduce,,,1024,8,1,0.04,GB/s busbw,a,single process (-g 8)",
        "collective,Y,,allgather,,,1000000000,8,1,350,GB/s busbw,a,",
    ]
    path = tmp_path / "points.csv"
    path.write_text("\n".join([header, *rows]))
    points = read_links(path, "X")
    assert points.op.tolist() == ["allreduce", "allgather", "combine", "allreduce"]
    assert points.seconds == pytest.approx([5e-3, 2.5e-3, 5e-4, 4.48e-5])
    assert points.launch_s == pytest.approx([0.0, 0.0, 0.0, 5e-5])
    assert predict_s(H100, points)[3] == pytest.approx(5e-5)
    assert points.message_bytes[2] == 2e6
