"""Random worlds, 1 to 4,096 GPUs on nodes of 1 to 100: as many as were started, in a file, a space and a logged job."""

import random
from pathlib import Path

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.files.hardware_files import load_hardware
from primus_search.launch.experiment_space import space_of
from primus_search.launch.world import World, nodes_of
from primus_search.learning.started_experiment import start
from primus_search.space import Enumerator, Space

PER_NODE = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 100)
SCRIPT = (
    "torchrun --nnodes {nodes} --nproc-per-node {each} pretrain_gpt.py --num-layers 16 --hidden-size 2048 "
    "--ffn-hidden-size 8192 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu "
    "--disable-bias-linear --position-embedding-type rope --bf16 --vocab-size 128256 --micro-batch-size 1 "
    "--global-batch-size {batch} --use-distributed-optimizer"
)


def worlds(count: int) -> list[tuple[int, int]]:
    """Nodes and GPUs per node, small and large worlds alike."""
    rng = random.Random(43)
    each = [rng.choice(PER_NODE) for _ in range(count)]
    return [(max(1, min(int(4096 ** rng.random()), 4096) // one), one) for one in each]


def made(space: Space) -> tuple[int, int, int]:
    """Nodes, GPUs per node and replicas of the first candidate of a space."""
    found = Enumerator(space).rows(np.zeros(1, np.int64))
    cluster = space.cluster
    return cluster.num_nodes, cluster.network.gpus_per_node, int(space.job_on(space.clusters[0]).degrees(found).dp[0])


@pytest.mark.parametrize(("nodes", "each"), worlds(30))
def test_a_world_is_priced_as_it_was_started(nodes: int, each: int, tmp_path: Path) -> None:
    gpus = nodes * each
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(nodes=nodes, each=each, batch=4 * gpus))
    begun = start(path, "h100", 0)  # of `project FILE` and `run --baseline FILE`
    assert (begun.nodes, begun.per_node) == (nodes, each)
    assert made(space_of(begun, [], None, "")) == (nodes, each, gpus)
    space = {"model": "llama3.2_1b", "hardware": "h100", "gpus_per_node": each, "framework": "megatron",
             "workload": {"seq_length": 4096, "global_batch_size": 4 * gpus},
             "space": {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1,
                       "sharding": "distributed_optimizer"}}  # fmt: skip
    assert made(make_space(space, nodes=nodes)) == (nodes, each, gpus)
    assert nodes_of(World(gpus, each), load_hardware("h100").network.gpus_per_node) == (nodes, each)  # of `learn`
