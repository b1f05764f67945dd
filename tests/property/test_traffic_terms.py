"""What every communication term promises for any table: rows are independent, finite, and degrees of one are free."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.cost.traffic.comm_table import Comm
from primus_search.cost.traffic.context_parallel import context_parallel
from primus_search.cost.traffic.data_parallel import data_parallel
from primus_search.cost.traffic.expert_parallel import expert_parallel
from primus_search.cost.traffic.sharded_weights import sharded_layer
from primus_search.cost.traffic.tensor_parallel import tensor_parallel
from primus_search.files.hardware_files import load_hardware
from primus_search.values.candidates import Candidates, CpComm, Degrees, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack, with_numbers
from primus_search.values.model import LayerKind, MixtureOfExperts, Model
from primus_search.values.workload import Workload
from tests.support.plain_stack import plain_stack

MODEL = Model(
    name="any",
    num_layers=2,
    hidden=1024,
    ffn_hidden=4096,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    vocab_size=32000,
    moe=MixtureOfExperts(num_experts=64, top_k=4, expert_ffn_hidden=512, shared_ffn_hidden=512),
)
WORKLOAD = Workload(seq_length=4096, global_batch_size=1024)
STACK = plain_stack(
    "flash3",
    tensor_overlap=0.3,
    tensor_async_overlap=0.8,
    expert_overlap=0.5,
    shared_expert_overlap=True,
)
HARDWARE = load_hardware("h100")
NETWORKS = [load_hardware(name).network for name in ("h100", "gb200", "mi355x")]
POWERS = st.sampled_from([1, 2, 4, 8, 16, 64])
COMPUTE_S = 1e-3


def job(network: Network, stack: Stack = STACK) -> Job:
    cluster = Cluster(accelerator=HARDWARE.accelerator, network=network, stack=stack, num_nodes=32)
    return Job(MODEL, cluster, WORKLOAD)


def tensor(network: Network, c: Candidates) -> list[Comm]:
    got = tensor_parallel(
        job(network),
        LayerKind(True, 0),
        c,
        COMPUTE_S,
    )
    return [got.forward, got.backward]


def context(network: Network, c: Candidates, comm: str = "p2p") -> list[Comm]:
    stack = with_numbers(STACK, {"cp_comm": comm})
    got = context_parallel(job(network, stack), c, forward_s=COMPUTE_S, backward_s=2 * COMPUTE_S)
    return [got.forward, got.backward]


def context_all_to_all(network: Network, c: Candidates) -> list[Comm]:
    return context(network, c, "a2a")


def context_ring_of_groups(network: Network, c: Candidates) -> list[Comm]:
    """Rows of several exchanges: the ring of the stack, and all-to-alls of 2 and 4 ranks inside one."""
    ways = np.where(c.etp == 1, int(CpComm.A2A4_P2P), int(CpComm.A2A2_P2P))
    return context(network, replace(c, cp_comm=np.where(c.deepep, int(CpComm.STACK), ways)))


def experts(network: Network, c: Candidates) -> list[Comm]:
    got = expert_parallel(
        job(network),
        c,
        shared_expert_s=COMPUTE_S,
        forward_s=COMPUTE_S,
        backward_s=COMPUTE_S,
    )
    return [got.forward, got.backward]


def as_many_replicas(c: Candidates) -> Degrees:
    """Replicas of every row, of any number: as many as samples of a micro-batch."""
    many = job(NETWORKS[0]).degrees(c)
    many.dp = many.edp = c.micro_batch_size
    return many


def gradients(network: Network, c: Candidates) -> list[Comm]:
    params = 1e9 / c.tp
    got = data_parallel(
        job(network),
        c,
        as_many_replicas(c),
        dense_params=params,
        expert_params=params,
        backward_s=COMPUTE_S,
        forward_s=COMPUTE_S,
    )
    return [got.dense_gradients, got.expert_gradients, got.dense_weights, got.expert_weights]


def shards(network: Network, c: Candidates) -> list[Comm]:
    params = 1e8 / c.tp
    got = sharded_layer(
        job(network),
        c,
        as_many_replicas(c),
        dense_params=params,
        expert_params=params,
        trained_dense=params,
        trained_experts=params,
        forward_s=COMPUTE_S,
        backward_s=COMPUTE_S,
    )
    return [got.forward, got.backward]


Term = Callable[[Network, Candidates], list[Comm]]
TERMS: list[Term] = [tensor, context, context_all_to_all, context_ring_of_groups, experts, gradients, shards]
each_term = pytest.mark.parametrize("term", TERMS)


@st.composite
def tables(draw: st.DrawFn) -> Candidates:
    """Rows of any degrees; the micro-batch column stands in for replicas where a term asks for them."""
    rows = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    return Candidates.table(
        tp=column(POWERS),
        cp=column(POWERS),
        ep=column(POWERS),
        etp=column(st.sampled_from([1, 2])),
        micro_batch_size=column(st.sampled_from([1, 2, 8, 256, 4096])),
        deepep=[bool(x) for x in column(st.integers(0, 1))],
        sharding=column(st.sampled_from([int(s) for s in Sharding])),
        shard_group=column(st.sampled_from([0, 8])),
    )


@pytest.mark.daily(3)
@each_term
@given(network=st.sampled_from(NETWORKS), c=tables())
@settings(max_examples=40)
def test_a_row_sends_the_same_alone_as_in_a_table(term: Term, network: Network, c: Candidates) -> None:
    whole = term(network, c)
    for i in range(len(c)):
        for alone, together in zip(term(network, c.take(slice(i, i + 1))), whole, strict=True):
            assert alone.exposed_s[0] == together.exposed_s[i]
            assert alone.seconds[0] == together.seconds[i]


@pytest.mark.daily(3)
@each_term
@given(network=st.sampled_from(NETWORKS), c=tables())
@settings(max_examples=40)
def test_what_shows_lies_between_nothing_and_everything(term: Term, network: Network, c: Candidates) -> None:
    for sent in term(network, c):
        assert np.isfinite(sent.seconds).all()
        assert (sent.exposed_s >= -1e-15).all()
        assert (sent.exposed_s <= sent.seconds * (1 + 1e-12)).all()
        assert ((sent.seconds > 0) == (sent.count > 0)).all(), "time is spent where something is sent"


@each_term
@given(network=st.sampled_from(NETWORKS), sharding=st.sampled_from([int(s) for s in Sharding]))
@settings(max_examples=20)
def test_one_rank_of_everything_sends_nothing(term: Term, network: Network, sharding: int) -> None:
    for sent in term(network, Candidates.table(sharding=sharding)):
        assert sent.seconds.tolist() == [0.0]
