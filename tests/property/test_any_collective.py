"""What every collective promises on every network: rows are independent, bytes never help, a group of one is free."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_search.cost.laws.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    reduce_scatter_s,
    send_s,
)
from primus_search.cost.traffic.expert_parallel import distinct_destinations
from primus_search.files.hardware_files import load_hardware
from primus_search.values.candidates import Floats
from primus_search.values.machine.network import Network


def dispatch_256_s(network: Network, message_bytes: Floats, group: Group) -> Floats:
    return dispatch_s(network, message_bytes, group, destinations=lambda parts: distinct_destinations(256, 8, parts))


Collective = Callable[[Network, Floats, Group], Floats]
NETWORKS = [load_hardware(name).network for name in ("h100", "gb200", "mi355x")]
COLLECTIVES = [all_reduce_s, all_gather_s, reduce_scatter_s, all_to_all_s, send_s, dispatch_256_s]
each_collective = pytest.mark.parametrize("collective", COLLECTIVES)
networks = st.sampled_from(NETWORKS)
bytes_ = st.floats(0.0, 1e12)
sizes = st.integers(1, 100_000)
strides = st.sampled_from([1, 2, 4, 8, 16, 48, 64, 128, 1024])


@pytest.mark.daily(2)
@each_collective
@given(network=networks, rows=st.lists(st.tuples(bytes_, sizes, strides), min_size=1, max_size=6))
def test_a_row_costs_the_same_alone_as_in_a_table(
    collective: Collective, network: Network, rows: list[tuple[float, int, int]]
) -> None:
    message, size, stride = (np.array(column) for column in zip(*rows, strict=True))
    whole = collective(network, message, Group(size, stride))
    alone = [
        collective(network, message[i : i + 1], Group(size[i : i + 1], stride[i : i + 1]))[0] for i in range(len(rows))
    ]
    assert whole.tolist() == alone


@pytest.mark.daily(2)
@each_collective
@given(network=networks, small=bytes_, more=bytes_, size=sizes, stride=strides)
def test_more_bytes_never_take_less_time(
    collective: Collective, network: Network, small: float, more: float, size: int, stride: int
) -> None:
    less, longer = collective(network, np.array([small, small + more]), Group(size, stride))
    assert less <= longer * (1 + 1e-12)


@pytest.mark.daily(2)
@each_collective
@given(network=networks, message=bytes_, stride=strides)
def test_a_group_of_one_is_free(collective: Collective, network: Network, message: float, stride: int) -> None:
    assert collective(network, np.array([message]), Group(1, stride)) == 0.0


@pytest.mark.daily(2)
@each_collective
@given(network=networks, message=bytes_, size=st.integers(2, 100_000), stride=strides)
def test_every_scale_is_finite_and_takes_time(
    collective: Collective, network: Network, message: float, size: int, stride: int
) -> None:
    seconds = collective(network, np.array([message]), Group(size, stride))
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()


@given(network=networks, message=st.floats(1e3, 1e11), size=st.integers(2, 4096), stride=strides)
def test_an_all_reduce_costs_about_a_scatter_and_a_gather_at_most(
    network: Network, message: float, size: int, stride: int
) -> None:
    """An all-reduce can always be run as a reduce-scatter and an all-gather, less the second start."""
    both = all_gather_s(network, message, Group(size, stride)) + reduce_scatter_s(network, message, Group(size, stride))
    assert all_reduce_s(network, message, Group(size, stride)) <= 1.25 * both


@given(experts=st.sampled_from([8, 64, 256]), top_k=st.integers(1, 8), parts=st.sampled_from([1, 2, 4, 8]))
def test_a_token_needs_no_more_destinations_than_experts_or_parts(experts: int, top_k: int, parts: int) -> None:
    needed = float(distinct_destinations(experts, top_k, np.array(parts)))
    assert min(1.0, needed) == 1.0
    assert needed <= min(top_k, parts) + 1e-9
