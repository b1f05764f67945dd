"""Goodput of long runs: closed forms, terms that zero switches off, and the published effective time of Llama 3."""

import math

import numpy as np
import pytest

from primus_search import load_cluster, load_model
from primus_search.exploration.goodput import checkpoint_bytes, goodput
from primus_search.files.hardware_files import load_hardware
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Reliability
from primus_search.values.workload import Workload

TYPICAL = Reliability(node_mtbf_hours=5000.0, restart_minutes=10.0, checkpoint_bytes_per_s=2e9)


def test_the_interval_is_the_best_of_all_intervals() -> None:
    nodes, size = 500, 4e12
    found = goodput(TYPICAL, nodes, size)
    writing_s, mtbf_s = size / (nodes * 2e9), 5000.0 * 3600.0 / nodes

    def lost(interval_s: float) -> float:
        return writing_s / interval_s + interval_s / 2.0 / mtbf_s

    assert found.checkpoint_interval_s == pytest.approx(math.sqrt(2.0 * writing_s * mtbf_s))
    assert found.checkpoint_share + found.redone_share == pytest.approx(lost(found.checkpoint_interval_s))
    assert all(
        lost(found.checkpoint_interval_s * factor) > lost(found.checkpoint_interval_s)
        for factor in (0.5, 0.9, 1.1, 2.0)
    )
    assert found.restart_share == pytest.approx(600.0 / mtbf_s)


@pytest.mark.parametrize(
    ("given", "zeros"),
    [
        (Reliability(), ("checkpoint_share", "redone_share", "restart_share")),
        (Reliability(node_mtbf_hours=5000.0, restart_minutes=10.0), ("checkpoint_share", "redone_share")),
        (Reliability(node_mtbf_hours=5000.0, checkpoint_bytes_per_s=2e9), ("restart_share",)),
    ],
)
def test_a_zero_switches_its_term_off(given: Reliability, zeros: tuple[str, ...]) -> None:
    found = goodput(given, 64, 1e12)
    for name in ("checkpoint_share", "redone_share", "restart_share"):
        assert (getattr(found, name) == 0.0) is (name in zeros)
    assert found.share == pytest.approx(1.0 - found.checkpoint_share - found.redone_share - found.restart_share)
    assert goodput(Reliability(node_mtbf_hours=1.0, restart_minutes=60.0), 1000, 1e12).share == 0.0


def test_llama_3_405b_trained_about_nine_tenths_of_its_time() -> None:
    """arXiv:2407.21783: higher than 90 % effective training time on 16,384 H100, checkpoints of at most 4 GB a GPU."""
    hardware = load_hardware("h100")
    job = Job(
        load_model("llama3.1_405b"), load_cluster("h100", 2048), Workload(seq_length=8192, global_batch_size=2048)
    )
    one = Candidates.from_words({"tp": 8, "pp": 16})
    size = checkpoint_bytes(job, one)
    assert 10.0 < size / job.model.total_params < 18.0 and size / job.cluster.world < 4e9
    assert goodput(hardware.reliability, 2048, size).share == pytest.approx(0.90, abs=0.03)


def test_spare_nodes_cover_the_nodes_in_repair_and_zero_switches_them_off() -> None:
    """With 48 h of repair and 5,000 h between failures of a node, 4.8 of 500 nodes are in repair on average."""
    repaired = Reliability(node_mtbf_hours=5000.0, node_repair_hours=48.0)
    in_repair = np.random.default_rng(0).poisson(500 * 48.0 / 5000.0, 200_000)
    spares = goodput(repaired, 500, 1e12).spare_nodes
    assert np.mean(in_repair <= spares) >= 0.99 > np.mean(in_repair <= spares - 1)
    assert goodput(TYPICAL, 500, 1e12).spare_nodes == 0
    assert goodput(Reliability(node_repair_hours=48.0), 500, 1e12).spare_nodes == 0
    assert goodput(repaired, 500, 1e12).share == goodput(Reliability(node_mtbf_hours=5000.0), 500, 1e12).share
