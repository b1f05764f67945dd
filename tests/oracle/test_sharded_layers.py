"""What FSDP2 holds besides activations: the projection against torch's own `fully_shard`, on fake tensors."""

import resource
import time
from dataclasses import replace

import pytest

from primus_search.cost.memory.buffers import gathered_bytes
from primus_search.cost.memory.price import element_scale
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_stack
from primus_search.measure.modules.shard import Shard
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Recompute, Sharding
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import LITE, LLAMA_70B
from tests.oracle.sharded_trace import Sharded, trace_sharded

TITAN = Sharded(ranks=64, expert_ranks=64)
LARGEST = ("llama3.1_405b", "deepseek_v3")


def projected_buffers(model: Model, stack_name: str, params: float, **columns: object) -> float:
    stack = load_stack(stack_name)
    c = Candidates.table(sharding=int(Sharding.FSDP2), **columns)
    s = Share(model, Workload(seq_length=4096, global_batch_size=64), stack, c, 64)
    return float(gathered_bytes(stack, s, params, params, model.num_layers)[0]) * element_scale(stack)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("stack", "shard", "how"),
    [
        ("torchtitan", Shard(micro_batch_size=1, seq_length=4096), TITAN),
        ("torchtitan", Shard(micro_batch_size=2, seq_length=2048, recompute=Recompute.FULL), TITAN),
        ("host", Shard(micro_batch_size=1, seq_length=2048, dtype="float32"), replace(TITAN, ranks=2, expert_ranks=2)),
    ],
)
def test_gathered_layers_and_unreduced_gradients_are_what_torch_holds(stack: str, shard: Shard, how: Sharded) -> None:
    kind = LLAMA_70B.kinds[0]
    params = LLAMA_70B.layer_params(kind)
    traced = trace_sharded(LLAMA_70B, shard, kind, how)
    assert projected_buffers(LLAMA_70B, stack, params) == pytest.approx(traced.buffers_bytes, rel=1e-3)
    assert traced.resident_bytes == pytest.approx(8 * params / how.ranks, rel=1e-3)


@pytest.mark.in_turn
def test_buffers_do_not_grow_with_tokens_and_hardly_with_ranks() -> None:
    kind, few = LLAMA_70B.kinds[0], Shard(micro_batch_size=1, seq_length=1024)
    small = trace_sharded(LLAMA_70B, few, kind, TITAN)
    assert trace_sharded(LLAMA_70B, replace(few, micro_batch_size=4), kind, TITAN) == small
    large = trace_sharded(LLAMA_70B, few, kind, Sharded(ranks=256, expert_ranks=256))
    assert large.buffers_bytes == pytest.approx(small.buffers_bytes, rel=0.01)


@pytest.mark.in_turn
def test_experts_in_a_group_of_their_own_are_not_reduced_beside_the_dense_weights() -> None:
    # The projection counts both as one group: an upper bound.
    shard, kind = Shard(micro_batch_size=1, seq_length=4096, ep=8), LITE.kinds[1]
    traced = trace_sharded(LITE, shard, kind, Sharded(ranks=64, expert_ranks=8))
    params = LITE.layer_params(kind) - LITE.moe.num_experts * LITE.expert_params * 7 / 8
    projected = projected_buffers(LITE, "torchtitan", params, ep=8)
    assert 0.65 * projected < traced.buffers_bytes < 0.8 * projected


PRESETS = [*LARGEST, "kimi_k2", "qwen3_235b_a22b", "gpt_oss_120b", "mixtral_8x22b", "nemotron4_340b"]


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in LARGEST else pytest.mark.full) for n in PRESETS])
def test_a_sharded_layer_traces_at_full_size_in_five_seconds_without_allocating_a_gigabyte(name: str) -> None:
    model = load_model(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for kind in model.kinds:
        ep = 8 if kind.is_moe else 1
        started = time.process_time()
        trace_sharded(
            model, Shard(micro_batch_size=1, seq_length=8192, ep=ep), kind, Sharded(ranks=64, expert_ranks=64 // ep)
        )
        assert time.process_time() - started < 5.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 1e9
