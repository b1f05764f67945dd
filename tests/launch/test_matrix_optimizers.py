"""Jobs of today's Megatron whose matrices have an optimizer of their own: Muon, adaptive Muon, Lion."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.cli.project import of_file
from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.project import Projector
from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from primus_search.space import Enumerator
from primus_search.values.candidates import Recompute
from primus_search.values.job import Job
from tests.support.judge.checkouts import needs
from tests.support.launched import ROOT

UNEVEN = "--decoder-first-pipeline-num-layers 8 --decoder-last-pipeline-num-layers 5 "
KIMI_K2 = (
    "torchrun --nproc_per_node 8 --nnodes 32 pretrain_gpt.py --num-layers 61 --hidden-size 7168 --ffn-hidden-size "
    "18432 --num-attention-heads 64 --kv-channels 128 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 "
    "--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --qk-layernorm "
    "--num-experts 384 "
    "--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-layer-freq '([0]*1+[1]*60)' --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 163840 --micro-batch-size 1 --global-batch-size 2048 --bf16 --pipeline-model-parallel-size 8 "
    f"--expert-model-parallel-size 32 --expert-tensor-parallel-size 1 {UNEVEN}"
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --overlap-grad-reduce "
)
MOMENTS = {
    "muon --use-distributed-optimizer": 1,
    "dist_muon": 1,
    "dist_muon --use-distributed-optimizer": 1,
    "lion --use-distributed-optimizer": 1,
    "adaptive_muon --use-distributed-optimizer": 2,
}
"""Moments per parameter of a matrix: megatron/core/optimizer/emerging_optimizers.py of core 0.20."""


def script(folder: Path, optimizer: str, more: str = "") -> Path:
    path = folder / "kimi_k2.sh"
    path.write_text(f"{KIMI_K2} --optimizer {optimizer} {more}")
    return path


@pytest.mark.parametrize("optimizer", MOMENTS)
def test_kimi_k2_under_an_optimizer_of_matrices_is_legal_and_sharded(optimizer: str, tmp_path: Path) -> None:
    """The first of 8 stages is the fullest: a dense layer, 7 with experts, 384 / 32 of them on one replica alone.

    With the distributed optimizer one replica of 32 has the gate and up matrix of the dense layer, the largest, and as
    much room is in the shard of each: core 0.20 has 26.7 GB of weights and 53.3 of gradients, and before 12.8 and 25.6.
    """
    space = space_of(start(script(tmp_path, optimizer), "h200", 0), [], None, "")
    enumerator = Enumerator(space)
    (row,) = [enumerator.chunk(0, enumerator.size).candidates]
    job = Job(model=space.model, cluster=space.clusters[0].cluster, workload=space.workload, launcher="megatron")
    experts = 7 * 12 * 3 * 7168 * 2048.0
    attention = 7168 * 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 * 64 * 256 + 64 * 128 * 7168
    dense = 8 * attention + 3 * 7168 * 18432 + 7 * (3 * 7168 * 2048 + 7168 * 384)
    largest = 2 * 18432 * 7168
    expected = (4 + 4 * MOMENTS[optimizer]) * (experts + max(dense / 32, largest)) + 12 * 7168 * 163840 / 32
    memory = Projector(job).memory(row)
    assert memory.optimizer[0] == pytest.approx(expected, rel=0.005)
    assert memory.weights[0] == pytest.approx(26.66e9, rel=0.03)
    assert memory.gradients[0] == pytest.approx(2 * memory.weights[0], rel=1e-6)


@needs("megatron@core_0.20")
@pytest.mark.slow
@pytest.mark.parametrize("changed", [
    {},
    {UNEVEN: "--pipeline-model-parallel-layout 'Ettt|(tttt|)*14ttL' "},
    {UNEVEN: "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 1 ",
     "parallel-size 8 ": "parallel-size 16 ", "parallel-size 32": "parallel-size 8"},
])  # fmt: skip
def test_kimi_k2_under_muon_holds_on_every_rank_what_megatrons_classes_allocate(
    changed: dict[str, str], tmp_path: Path
) -> None:
    """Weights, gradients and optimizer of 8 and 16 pipeline ranks; buffers of the first are half padding, each chunk's
    own, in several buckets; the last of 16 has one layer."""
    path = script(tmp_path, "muon --use-distributed-optimizer")
    for words, others in changed.items():
        assert words in path.read_text()
        path.write_text(path.read_text().replace(words, others))
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.megatron_bytes", "megatron@core_0.20", str(path)]
    built = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    space = space_of(start(path, "h200", 0), [], None, "")
    enumerator = Enumerator(space)
    memory = memory_by_rank(space.job_on(space.clusters[0]), enumerator.chunk(0, enumerator.size).candidates)
    ours = memory.weights + memory.gradients + memory.optimizer
    parts = zip(built["weights"], built["gradients"], built["optimizer"], strict=True)
    assert ours.tolist() == pytest.approx([sum(rank) for rank in parts], rel=0.01)


def test_a_chunk_is_one_bucket_where_no_gradient_is_reduced_beside_backward(tmp_path: Path) -> None:
    """Bytes that Megatron's classes allocate at d98e8a64 (tests.support.megatron_bytes), padding among them."""
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 32 "
        "--num-query-groups 8 --ffn-hidden-size 8192 --micro-batch-size 1 --global-batch-size 128 --seq-length 32768 "
        "--max-position-embeddings 32768 --bf16 --use-distributed-optimizer --swiglu --disable-bias-linear --untie-"
        "embeddings-and-output-weights --normalization RMSNorm --group-query-attention --vocab-size 151936 --mock-data "
        "--optimizer muon --ddp-bucket-size 10000000 --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 10\n"
    )
    space, one = of_file(path, "h100")
    memory = memory_by_rank(space.job, one)
    assert float(memory.weights[0]) == pytest.approx(3_358_851_072, abs=2 * 16_840_704)
    assert float(memory.gradients[0]) == pytest.approx(6_717_702_144, abs=4 * 16_840_704)


def test_preconditioners_of_soap_are_named_with_what_they_cost(tmp_path: Path) -> None:
    notes = start(script(tmp_path, "soap --use-distributed-optimizer"), "h200", 0).experiment.not_modelled
    assert [note for note in notes if "more memory, slower: preconditioners of each matrix" in note]


def test_hyper_connections_are_read_where_megatron_starts_them(tmp_path: Path) -> None:
    """Two mappings a layer with 3 scales each: megatron/core/transformer/hyper_connection.py of core 0.20.

    Megatron joins the streams by their mean; the model of it has DeepSeek-V4's join, n (n H + 1) + 1 parameters.
    """
    job, n = "--enable-mhc-connections --mhc-num-residual-streams 2", 2
    with pytest.raises(InputError, match=r"do not go with full recompute; .*mhc(?s:.*)do not go with a pipeline"):
        space_of(start(script(tmp_path, "adam", job), "h200", 0), [], None, "")
    path = script(tmp_path, "adam", job)
    text = path.read_text().replace("--recompute-granularity full", "--recompute-granularity selective")
    for key in (
        "pipeline-model-parallel-size",
        "recompute-method",
        "recompute-num-layers",
        "decoder-\\w+-pipeline-num-layers",
    ):
        text = re.sub(rf"--{key} \w+", "", text)
    path.write_text(text)
    joined = start(path, "h200", 0).experiment.model
    path.write_text(text.replace(job, ""))
    plain = start(path, "h200", 0).experiment.model
    assert plain is not None and joined is not None and joined.hyper_streams == n
    mapping = (2 * n + n * n) * (n * 7168 + 1) + 3
    join = n * (n * 7168 + 1) + 1
    assert joined.total_params - plain.total_params == 61 * 2 * mapping + join


def test_weights_over_further_ranks_are_named_with_what_they_do(tmp_path: Path) -> None:
    job = start(script(tmp_path, "adam", "--gtp-weight-remat-size 4"), "h200", 0).experiment
    assert [note for note in job.not_modelled if "less memory, slower: weights dealt over further ranks" in note]


def test_fsdp_takes_no_optimizer_of_whole_matrices(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="muon does not go with FSDP"):
        space_of(start(script(tmp_path, "muon --use-megatron-fsdp"), "h200", 0), [], None, "")


def test_a_graph_of_the_whole_iteration_has_its_newer_name(tmp_path: Path) -> None:
    begun = start(script(tmp_path, "adam", "--cuda-graph-impl full_iteration"), "b200", 0)
    assert begun.experiment.row["cuda_graph"] == "full"


def test_recomputed_hyper_connections_keep_the_streams_into_a_stage() -> None:
    """Of a DeepSeek-V4 recipe with 11, 11, 11 and 10 layers a rank: the 4 streams before each of two blocks of a layer
    are dropped but for those into the stage; in backward those of all its layers come back together."""
    begun = start(Path("deepseek_v4_flash_pretrain_32gpu_h100_bf16_config"), "", 0)
    space = space_of(begun, [], None, "")
    job, c = space.job_on(space.clusters[0]), begun.experiment.candidate
    plain = c.with_columns({"recompute": c.recompute & ~int(Recompute.HYPER_CONNECTIONS)})
    with_streams, without = (memory_by_rank(job, one) for one in (plain, c))
    stream = 4 * 2 * 4096.0 * job.model.hidden
    dropped, back = (with_streams.activations - without.activations) / stream, job.model.num_layers / 4 * 2
    assert dropped[:3].tolist() == pytest.approx([4 * 21, 3 * 21, 2 * 21], rel=0.01)  # 4 to 2 micro-batches wait
    assert (without.recompute_workspace - with_streams.recompute_workspace)[0] == pytest.approx(back * stream)
