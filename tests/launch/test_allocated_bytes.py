"""Scripts whose weights, gradients and optimizer are the bytes that Megatron's classes allocate, to the last one.

The figures are those of `python -m tests.support.megatron_bytes megatron@core_0.20 SCRIPT` at d98e8a64.
"""

from pathlib import Path

import pytest

from primus_search.cli.project import of_file
from primus_search.cost.memory.chunk_memory import memory_by_rank

TRAINED = (
    "--micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer --swiglu --normalization RMSNorm "
    "--group-query-attention --num-query-groups 8 --num-attention-heads 32 --mock-data --tokenizer-type NullTokenizer "
    "--lr 1e-4 --train-iters 10"
)
MUON = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --seq-length 32768 --max-position-embeddings 32768 "
    "--vocab-size 151936 --optimizer muon"
)
LATENT_EXPERTS = (
    "--num-layers 8 --hidden-size 4096 --ffn-hidden-size 14336 --num-experts 16 --moe-router-topk 2 --moe-grouped-gemm "
    "--moe-latent-size 1024 --moe-ffn-hidden-size 4096 --moe-token-dispatcher-type alltoall --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --vocab-size 128000 --overlap-grad-reduce "
    "--disable-bias-linear --untie-embeddings-and-output-weights --tensor-model-parallel-size 4 --sequence-parallel "
    "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1"
)

GATED = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --seq-length 4096 --max-position-embeddings 4096 "
    "--position-embedding-type rope --vocab-size 128000 --attention-output-gate --qk-layernorm --disable-bias-linear "
    "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
)


@pytest.mark.parametrize(("nodes", "job", "allocated"), [
    # Positions that are learned are one of the matrices; without overlap a chunk is one bucket.
    (1, f"{MUON} --disable-bias-linear", (2_736_394_240, 5_472_788_480, 1_523_813_376)),
    (1, MUON, (2_737_147_904, 5_474_295_808, 1_524_378_624)),  # biases are no matrices
    (1, f"{MUON} --ddp-num-buckets 8 --overlap-grad-reduce", (3_307_573_248, 6_615_146_496, 1_759_259_648)),
    (2, LATENT_EXPERTS, (1_632_772_096, 3_265_544_192, 2_449_158_144)),  # duplicated projections into the latent space
    (1, GATED, (782_305_280, 1_564_610_560, 2_346_915_840)),  # queries with a gate of their size
])  # fmt: skip
def test_a_script_holds_what_megatron_allocates(
    nodes: int, job: str, allocated: tuple[int, ...], tmp_path: Path
) -> None:
    start = f"torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py"
    path = tmp_path / "run.sh"
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{start} {TRAINED} {job}\n")
    space, one = of_file(path, "h100")
    memory = memory_by_rank(space.job, one)
    assert tuple(memory.__getattribute__(part)[0] for part in ("weights", "gradients", "optimizer")) == allocated
