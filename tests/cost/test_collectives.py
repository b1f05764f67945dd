"""Collectives against closed forms, and against the faults of other tools that price traffic."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.laws.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    link_share,
    reduce_scatter_s,
    send_s,
)
from primus_search.cost.traffic.expert_parallel import distinct_destinations
from primus_search.files.hardware_files import load_hardware, on_gpus
from primus_search.values.machine.network import Network

H100 = load_hardware("h100").network
MI355X = load_hardware("mi355x").network
GB200 = load_hardware("gb200").network
MESSAGE = 64e6


def without_ramp(network: Network) -> Network:
    return replace(network, link_half_speed_bytes=0.0, nic_half_speed_bytes=0.0, pair_loss=0.0)


def test_all_gather_in_a_node_is_the_ring_formula() -> None:
    n = without_ramp(H100)
    ring = n.link_latency_s + 7 * n.link_hop_latency_s + MESSAGE * 7 / 8 / (n.link_bytes_per_s * n.ring_efficiency)
    assert all_gather_s(n, MESSAGE, Group(8, 1)) == pytest.approx(ring)


def test_reduce_scatter_costs_what_an_all_gather_costs() -> None:
    group = Group(np.array([2, 16, 512]), np.array([1, 1, 8]))
    assert np.array_equal(reduce_scatter_s(H100, MESSAGE, group), all_gather_s(H100, MESSAGE, group))


def test_an_all_gather_over_nodes_uses_one_nic_per_local_member() -> None:
    n = replace(without_ramp(H100), scale_loss=0.0)
    rate = 8 * n.nic_bytes_per_s * n.nic_efficiency
    flow = all_gather_s(n, 16e9, Group(16, 1)) - all_gather_s(n, 0.0, Group(16, 1))
    assert flow == pytest.approx(16e9 * 15 / 16 / rate)
    alone = all_gather_s(n, 16e9, Group(2, 8)) - all_gather_s(n, 0.0, Group(2, 8))
    assert alone == pytest.approx(16e9 / 2 / (n.nic_bytes_per_s * n.nic_efficiency))


def test_the_switch_reduces_large_tensors_faster_than_a_ring() -> None:
    no_switch = replace(H100, in_network_efficiency=0.0)
    group = Group(8, 1)
    assert all_reduce_s(H100, 4e9, group) < all_reduce_s(no_switch, 4e9, group)
    assert all_gather_s(H100, 4e9, group) == all_gather_s(no_switch, 4e9, group)


def test_small_all_reduces_over_many_nodes_climb_a_tree() -> None:
    """Hops of a ring over 4,096 ranks would take milliseconds; a tree has ten levels."""
    hops = 2 * 4096 * H100.link_hop_latency_s
    assert all_reduce_s(H100, 1024.0, Group(4096, 1)) < hops / 10


def test_links_of_a_mesh_follow_the_size_of_the_group_itself() -> None:
    """[W20] The group decides how many xGMI links it has, whatever the tensor-parallel degree is."""
    assert link_share(MI355X, np.array([2.0, 4.0, 8.0])) == pytest.approx(np.array([1, 3, 7]) / 7)
    assert link_share(H100, np.array([2.0, 4.0, 8.0])) == pytest.approx(1.0)
    n = without_ramp(MI355X)
    pair, full = all_to_all_s(n, 2e9, Group(2, 1)), all_to_all_s(n, 8e9, Group(8, 1))
    latency = 6 * n.link_hop_latency_s
    assert full - latency == pytest.approx(pair), "every pair moves 1 GB over its own link in both"


@pytest.mark.parametrize("field", ["link_bytes_per_s", "nic_bytes_per_s"])
def test_links_come_from_the_hardware_file(field: str) -> None:
    """[W14] Every collective follows the rates of the network it is given; nothing has its own default."""
    group = Group(8, 1) if field == "link_bytes_per_s" else Group(8, 8)
    faster = replace(H100, **{field: 4.0 * H100.__getattribute__(field), "pod_bytes_per_s": 4.0 * H100.pod_bytes_per_s})
    for collective in (all_reduce_s, all_gather_s, reduce_scatter_s, all_to_all_s, send_s):
        assert collective(faster, 1e9, group) < 0.5 * collective(H100, 1e9, group)


def test_a_pipeline_hop_is_not_free() -> None:
    """[W17] Sending an activation takes the time of the link it crosses, and more between nodes than inside one."""
    inside, between = send_s(H100, MESSAGE, Group(2, 1)), send_s(H100, MESSAGE, Group(2, 8))
    assert MESSAGE / H100.link_bytes_per_s < inside < between
    assert between > MESSAGE / H100.nic_bytes_per_s


def test_a_ring_between_nodes_has_no_ceiling_on_its_volume() -> None:
    """[W19] Volume per rank is (g-1)/g of the bytes at any g; a cap of one half would halve it for large groups."""
    n = replace(without_ramp(H100), scale_loss=0.0)
    flow = [all_gather_s(n, 1e9, Group(g, 8)) - all_gather_s(n, 0.0, Group(g, 8)) for g in (2, 64)]
    assert flow[1] / flow[0] == pytest.approx((63 / 64) / (1 / 2))


def test_all_to_all_is_finite_over_any_number_of_nodes() -> None:
    """[W21] A slow-down that grows linearly with nodes reaches zero bandwidth at 26 of them; ours only grows in log."""
    size = np.array([2, 8, 26, 64, 256, 4096, 131072])
    seconds = all_to_all_s(H100, MESSAGE, Group(size, 8))
    assert np.isfinite(seconds).all()
    assert (np.diff(seconds) > 0).all()


def test_experts_in_one_node_exchange_faster_than_in_two() -> None:
    one, two = all_to_all_s(MI355X, MESSAGE, Group(np.array([8, 16]), 1))
    assert two > 2.0 * one


def test_an_nvl72_rack_keeps_64_ranks_on_nvlink() -> None:
    assert all_to_all_s(GB200, MESSAGE, Group(64, 1)) < 0.2 * all_to_all_s(H100, MESSAGE, Group(64, 1))
    assert all_to_all_s(GB200, MESSAGE, Group(8, 8)) < 0.2 * all_to_all_s(H100, MESSAGE, Group(8, 8))


@pytest.mark.parametrize("exchange", ["all-to-all", "dispatch"])
def test_an_exchange_between_nodes_uses_one_port_of_a_nic(exchange: str) -> None:
    """Two ports of 50 GB/s are worth as much as one such NIC; inside a domain they do not matter."""

    def seconds(ranks: int, **numbers: float) -> float:
        network = replace(H100, **numbers)  # type: ignore[arg-type]
        if exchange == "all-to-all":
            return float(all_to_all_s(network, 4e8, Group(ranks, 1)))
        return float(dispatch_s(network, 4e8, Group(ranks, 1), destinations=lambda parts: np.minimum(parts, 8.0)))

    ports = {"nic_bytes_per_s": 1e11, "nic_port_bytes_per_s": 5e10}
    assert seconds(32, **ports) == seconds(32, nic_bytes_per_s=5e10)
    assert seconds(32, **ports) > 1.3 * seconds(32, nic_bytes_per_s=1e11)
    assert seconds(8, **ports) == seconds(8)


def test_a_fused_dispatch_sends_a_token_once_per_node() -> None:
    """[W15] Fused dispatch changes the volume: 8 experts of a token on 2 nodes are 2 copies between nodes, not 8."""

    def sent(parts: np.ndarray) -> np.ndarray:
        return distinct_destinations(256, 8, parts)

    tokens = 4096 * 7168 * 2.0
    fused = dispatch_s(H100, tokens, Group(16, 1), destinations=sent)
    assert fused < 0.5 * all_to_all_s(H100, 8 * tokens, Group(16, 1))


def test_distinct_destinations_agree_with_drawing_experts() -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([len(set(rng.choice(64, 6, replace=False) // 8)) for _ in range(20000)])
    assert distinct_destinations(64, 6, np.array(8)) == pytest.approx(drawn.mean(), rel=0.01)
    assert distinct_destinations(64, 6, np.array([1, 64])) == pytest.approx([1.0, 6.0])


def test_an_oversubscribed_pod_slows_only_groups_that_leave_it() -> None:
    slow = replace(H100, pod_size=64, pod_bytes_per_s=H100.nic_bytes_per_s / 4)
    inside, beyond = Group(8, 8), Group(16, 8)
    assert all_gather_s(slow, 1e9, inside) == all_gather_s(H100, 1e9, inside)
    assert all_gather_s(slow, 1e9, beyond) > 3 * all_gather_s(H100, 1e9, beyond)


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_mesh_of_which_part_is_used_keeps_only_the_links_between_the_part(gpus: int) -> None:
    part = on_gpus(MI355X, gpus)
    group = Group(gpus, 1)
    assert all_gather_s(part, 1e9, group) == pytest.approx(all_gather_s(MI355X, 1e9, group))
    assert send_s(part, 1e9, Group(2, 1)) == pytest.approx(send_s(MI355X, 1e9, Group(2, 1)))


def test_an_exchange_between_nodes_keeps_to_one_port_of_a_nic_and_to_its_rail() -> None:
    two_ports = replace(H100, nic_bytes_per_s=2.0 * H100.nic_bytes_per_s, nic_port_bytes_per_s=H100.nic_bytes_per_s)
    group = Group(64, 1)
    assert all_to_all_s(two_ports, MESSAGE, group) == pytest.approx(all_to_all_s(H100, MESSAGE, group))
    assert all_gather_s(two_ports, MESSAGE, group) < all_gather_s(H100, MESSAGE, group)
    crowded = replace(H100, scale_loss=10.0 * H100.scale_loss)
    assert all_to_all_s(crowded, MESSAGE, group) == all_to_all_s(H100, MESSAGE, group)
