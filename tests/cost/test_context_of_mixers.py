"""Context parallelism over layers that are no plain attention: who runs it, what is exchanged, what it keeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from primus_search.cost.laws.collectives import Group, all_gather_s, all_to_all_s, reduce_scatter_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.cost.project import Projector
from primus_search.cost.traffic.layer_traffic import mixer_context
from primus_search.declare import make_space
from primus_search.files.hardware_files import load_hardware
from primus_search.models.presets import load_preset
from primus_search.space import Enumerator
from primus_search.values.candidates import Candidates, CpComm
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.model import GatedDeltaNet, KimiDeltaAttention, LatentMixer, LayerKind, Mamba2
from primus_search.values.workload import Workload
from tests.support.plain_stack import plain_stack

HARDWARE = load_hardware("h100")
PLAIN = plain_stack("flash3")
SEQ = 8192
DELTA, INDEXED, MAMBA = "qwen3_next_80b_a3b", "deepseek_v3.2", "nemotron_h_8b"
KIMI_DELTA = KimiDeltaAttention(num_heads=32, head_dim=128, gate_rank=128)


def job(model: str, seq_length: int = SEQ) -> Job:
    cluster = Cluster(accelerator=HARDWARE.accelerator, network=HARDWARE.network, stack=PLAIN, num_nodes=8)
    workload = Workload(seq_length=seq_length, global_batch_size=64)
    return Job(load_preset(model).model, cluster, workload)


def layer(of: Job, mixer: type) -> LayerKind:
    return next(kind for kind in of.model.kinds if isinstance(kind.mixer, mixer))


def traffic(of: Job, mixer: type | LayerKind, **row: Any):
    nothing, kind = np.zeros(1), mixer if isinstance(mixer, LayerKind) else layer(of, mixer)
    return mixer_context(of, kind, Candidates.table(**row), forward_s=nothing, backward_s=nothing)


def copied_s(size: float) -> float:
    return size / bandwidth_bytes_per_s(HARDWARE.accelerator, Stream.ELEMENTWISE)


def test_a_delta_net_exchanges_its_joint_projection_and_its_output() -> None:
    """Megatron-LM d98e8a64 core/ssm/gated_delta_net/gdn.py: one all-to-all each of q, k, v, gate, beta and alpha
    together, and of the output. Qwen3-Next: 16 key heads and 32 value heads of 128; 8192 tokens, tp 2, cp 4."""
    got = traffic(job(DELTA), GatedDeltaNet, cp=4, tp=2)
    joint = 2 * 16 * 128 + 2 * 32 * 128 + 2 * 32
    sizes = [8192 / 4 * width / 2 * 2.0 for width in (joint, 32 * 128)]
    assert sizes == [25_296_896.0, 8_388_608.0]
    sent = sum(all_to_all_s(HARDWARE.network, size, Group(4, 2)) for size in sizes)
    copies = copied_s(6 * sizes[0] + 4 * sizes[1])
    for way in (got.forward, got.backward):
        assert way.count == 2 and way.count * way.message_bytes == sum(sizes)
        assert way.seconds == way.exposed_s == pytest.approx(float(sent + copies))


def test_mamba_exchanges_five_parts_and_copies_groups_that_ranks_share() -> None:
    """Megatron-LM core/ssm/mamba_context_parallel.py pre_conv_ssm: z, x, B, C, dt and the output; with fewer groups
    than ranks B and C are repeated. Nemotron-H 8B: 128 heads of 64, 8 groups of 128; tp 4 leaves two to 4 ranks."""
    got = traffic(job(MAMBA), Mamba2, cp=4, tp=4).forward
    inner, heads, repeated = 128 * 64, 128, 16 * 128
    assert got.count == 6
    assert got.count * got.message_bytes == SEQ / 4 * (3 * inner + heads + 2 * repeated) / 4 * 2.0
    alone = traffic(job(MAMBA), Mamba2, cp=2, tp=4).forward
    assert alone.count * alone.message_bytes == SEQ / 2 * (3 * inner + heads + 2 * 8 * 128) / 4 * 2.0


def test_selected_keys_are_gathered_as_latents() -> None:
    """Megatron-LM d98e8a64 experimental_attention_variant/dsa.py: latents with their rotated part and the indexer's
    keys, of one head and replicated over tp; their gradients are scattered. DeepSeek-V3.2: 512 + 64, and 128."""
    got = traffic(job(INDEXED), LatentMixer, cp=8, tp=2, cp_comm=int(CpComm.ALL_GATHER))
    sizes, group = [SEQ * (512 + 64) * 2.0, SEQ * 128 * 2.0], Group(8, 2)
    assert got.forward.count * got.forward.message_bytes == sum(sizes) == 11_534_336.0
    assert got.forward.seconds == pytest.approx(sum(float(all_gather_s(HARDWARE.network, one, group)) for one in sizes))
    back = sum(float(reduce_scatter_s(HARDWARE.network, one, group)) for one in sizes)
    assert got.backward.seconds == pytest.approx(back)


def test_states_are_passed_where_no_launcher_exchanges_heads() -> None:
    of = job(DELTA)
    got = traffic(of, replace(layer(of, GatedDeltaNet), mixer=KIMI_DELTA), cp=4).forward
    assert got.count == 3 and got.operation == "states of scans forward"
    split = traffic(of, GatedDeltaNet, cp=[8, 16], tp=2).forward
    assert split.count.tolist() == [2, 15], "16 key heads are not dealt to 32 ranks"


def legal_degrees(
    framework: str, preset: str, hardware: str = "h100", *, is_kimi: bool = False, **axes: Any
) -> set[int]:
    """Degrees of context parallelism that a search over 1 to 32 keeps."""
    rows = {"tp": 2, "pp": 1, "cp": [1, 2, 4, 8, 16, 32], "micro_batch_size": 1, "recompute": "none", **axes}
    data = {"model": preset, "hardware": hardware, "nodes": 8, "framework": framework, "space": rows}
    model = load_preset(preset).model
    if is_kimi:
        mixers = (KIMI_DELTA if isinstance(mixer, GatedDeltaNet) else mixer for mixer in model.mixers)
        model = replace(model, mixers=tuple(mixers))
    data |= {"workload": {"seq_length": 65536, "global_batch_size": 64}}
    enumerator = Enumerator(make_space(data, model=model))
    return {int(cp) for cp in enumerator.chunk(0, enumerator.size).candidates.cp}


@pytest.mark.parametrize(
    ("framework", "model", "comm", "degrees"),
    [
        # 16 key heads over tp 2: TransformerConfig:1502 of d98e8a64; core 0.16 and Primus refuse (:1079 of d3528a21)
        ("megatron", DELTA, "stack", {1, 2, 4, 8}), ("nemo", DELTA, "stack", {1, 2, 4, 8}),
        ("nemo@26.06", DELTA, "stack", {1, 2, 4, 8}), ("nemo@26.04", DELTA, "stack", {1}),
        ("megatron@core_0.16", DELTA, "stack", {1}),
        # all keys gathered: :3164 of d98e8a64; Megatron-Bridge v0.5 pins a core that refuses
        ("megatron", INDEXED, "all_gather", {1, 2, 4, 8, 16, 32}), ("megatron", INDEXED, "stack", {1}),
        ("nemo", INDEXED, "all_gather", {1, 2, 4, 8, 16, 32}), ("nemo@26.06", INDEXED, "all_gather", {1}),
        ("megatron@core_0.16", INDEXED, "all_gather", {1}),
        # 128 heads, 8 groups over tp 2: core/ssm/mamba_context_parallel.py:107-131 of both releases
        ("megatron", MAMBA, "stack", {1, 2, 4, 8, 16, 32}),
        ("megatron@core_0.16", MAMBA, "stack", {1, 2, 4, 8, 16, 32}),
    ],
)  # fmt: skip
def test_degrees_are_those_that_the_launcher_starts(framework: str, model: str, comm: str, degrees: set[int]) -> None:
    assert legal_degrees(framework, model, cp_comm=comm) == degrees


@pytest.mark.parametrize(("model", "comm"), [(DELTA, "stack"), (INDEXED, "all_gather")])
def test_primus_refuses_what_its_core_refuses(model: str, comm: str) -> None:
    assert legal_degrees("primus", model, "mi300x", cp_comm=comm) == {1}


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_kimi_delta_attention_runs_on_whole_sequences(framework: str) -> None:
    """Megatron-Bridge 067f987d models/kimi/kimi_k3_layers.py:127 raises; Megatron-LM has no such layer."""
    assert legal_degrees(framework, DELTA, is_kimi=True) == {1}


@pytest.mark.parametrize("mixer", [DELTA, MAMBA, INDEXED])
def test_a_longer_split_takes_less_memory_and_less_than_its_share_of_time(mixer: str) -> None:
    """Activations shrink with cp, tokens per second and device fall: what is exchanged grows, work per device not."""
    c = Candidates.table(cp=[1, 2, 4, 8], tp=2, cp_comm=int(CpComm.ALL_GATHER if "v3.2" in mixer else CpComm.STACK))
    projector = Projector(job(mixer, 65536))
    memory, step = projector.memory(c), projector.step(c)
    assert (np.diff(memory.activations) < 0).all()
    assert (np.diff(step.total) > 0).all() and (np.diff(step.context_comm) > 0).all()
