"""Weights, gradients and optimizer state of one layer, of the embedding and of the head on one device, in bytes.

Each family of parameters is divided by what really divides it: attention and dense MLP by tp, experts by ep and etp,
norms and router by nothing; then, by the sharding of the candidate, over the ranks that hold the same parameters
(dp*cp for dense ones, edp for experts). Number formats are the stack's: BF16 weights, FP32 gradients, masters and
moments in Megatron (2 + 4 + 12 bytes per parameter), FP32 throughout in torch FSDP2 (4 + 4 + 8).
Source: Rajbhandari 2020 (arXiv:1910.02054) section 3 for what each stage of ZeRO shards; Megatron-Core's distributed
optimizer and docs/source/api-guide/dist_optimizer.md for 6 + 12/d bytes; PyTorch FSDP2 (fully_shard).
"""

from dataclasses import dataclass

import numpy as np

from primus_search.cost.laws.optimizer import END_MOMENTS, MATRIX_MOMENTS
from primus_search.cost.memory.mixer_memory import mixer_share_params
from primus_search.cost.memory.padded_buffers import padded
from primus_search.cost.memory.share import BF16_BYTES, FP8_BYTES, Share, fp8_layouts, keeps_gathered, shards_weights
from primus_search.values.candidates import Floats, Fp8, Optimizer, Sharding
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import master_bytes, state_bytes
from primus_search.values.model import LayerKind, Model, adapted_matrices
from primus_search.values.model.adapters import EACH
from primus_search.values.model.layer_weights import layer_vectors, uncast_params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelState:
    """Bytes of weights, gradients and optimizer state; `count` is parameters on the device before sharding."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    count: Floats

    def plus(self, other: "ModelState") -> "ModelState":
        return ModelState(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
            count=self.count + other.count,
        )


def layer_state(model: Model, stack: Stack, kind: LayerKind, s: Share) -> ModelState:
    """One decoder layer of that kind on one device, with its adapters."""
    base, is_trained = base_bytes(model), model.adapters is None
    split, whole = layer_vectors(model, kind)
    matrices = np.full_like(s.tp, uncast_params(model, kind))
    uncast = split / s.tp + whole + matrices
    count, uncast, empty = padded(model, stack, s, kind, layer_dense_params(model, kind, s) - uncast, uncast)
    found = state(stack, s, count, s.shards, empty=empty, is_trained=is_trained, base_bytes=base)
    for each, is_matrix in ((uncast - matrices, False), (matrices, True)):
        found = found.plus(state(stack, s, each, s.shards, is_linear=is_matrix, is_cast=False, is_trained=is_trained))
    if kind.is_moe:
        biases = s.local_experts * (model.expert_biases[0] / s.etp + model.expert_biases[1])
        count = layer_expert_params(model, s) - biases
        count, biases, empty = padded(model, stack, s, kind, count, biases, of_experts=True)
        routed = state(stack, s, count, s.expert_shards, empty=empty, is_trained=is_trained, base_bytes=base)
        found = found.plus(routed)
        if model.has_linear_bias:
            found = found.plus(state(stack, s, biases, s.expert_shards, is_linear=False, is_trained=is_trained))
    if is_trained:
        return found
    dense, experts = adapter_shares(model, kind, s)
    return found.plus(state(stack, s, dense, s.shards)).plus(state(stack, s, experts, s.expert_shards))


def embedding_state(model: Model, stack: Stack, s: Share) -> ModelState:
    """Token and per-layer embeddings, split over tp by vocabulary, a learned position table, not split."""
    positions = model.learned_positions * model.hidden
    split, is_trained = model.embedding_params + model.per_layer_table_params - positions, model.adapters is None
    found = state(stack, s, split / s.tp, s.shards, is_linear=False, is_trained=is_trained)
    return found.plus(state(stack, s, np.full_like(s.tp, positions), s.shards, is_cast=False, is_trained=is_trained))


def mtp_state(model: Model, stack: Stack, s: Share) -> ModelState:
    """What a multi-token-prediction module has beyond a decoder layer: the 2H x H join and three norms.

    Source: DeepSeek-V3 (arXiv:2412.19437) section 2.2; embedding and head are shared with the main model.
    """
    is_trained, norms = model.adapters is None, np.full_like(s.tp, 3.0 * model.norm_params)
    found = state(stack, s, 2.0 * model.hidden**2 / s.tp, s.shards, is_trained=is_trained)
    return found.plus(state(stack, s, norms, s.shards, is_linear=False, is_trained=is_trained))


def layer_dense_params(model: Model, kind: LayerKind, s: Share) -> Floats:
    """Parameters of one layer on one device, experts apart."""
    split, whole = model.beside_mixer_params(kind)
    return mixer_share_params(model.mixer(kind), model.hidden, s) + split / s.tp + whole


def layer_expert_params(model: Model, s: Share) -> Floats:
    """Parameters of one MoE layer's routed experts on one device: num_experts / ep of them, each split by etp."""
    assert model.moe is not None
    whole = model.expert_biases[1]
    return model.moe.num_experts / s.ep * ((model.expert_params - whole) / s.etp + whole)


def adapter_shares(model: Model, kind: LayerKind, s: Share) -> tuple[Floats, Floats]:
    """Parameters of a layer's adapters on one device: those of every rank's own, and those of routed experts.

    Both matrices of an adapter are divided by tp, of an expert's by etp; one adapter for all experts of a layer is on
    every rank. Source: NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/peft/utils.py, ParallelLinearAdapter.
    """
    dense, experts = np.zeros_like(s.tp), np.zeros_like(s.tp)
    for one in adapted_matrices(model, kind):
        assert model.adapters is not None
        count = float(one.params(model.adapters.rank))
        if one.module == EACH:
            experts = experts + count * s.local_experts / s.etp
        else:
            dense = dense + count / (s.etp if one.of_experts else s.tp)
    return dense, experts


def trained_shares(model: Model, kind: LayerKind, s: Share) -> tuple[Floats, Floats]:
    """Parameters of one layer on one device that get gradients: experts apart, and of routed experts."""
    if model.adapters is not None:
        return adapter_shares(model, kind, s)
    return layer_dense_params(model, kind, s), layer_expert_params(model, s) if kind.is_moe else np.zeros_like(s.tp)


def base_bytes(model: Model) -> float:
    """Bytes per parameter of frozen matrices; 0 where they are held as trained ones."""
    return model.adapters.base.bytes_per_param if model.adapters is not None else 0.0


def state(
    stack: Stack,
    s: Share,
    count: Floats,
    shards: Floats,
    *,
    empty: Floats | float = 0.0,
    is_linear: bool = True,
    is_cast: bool = True,
    is_trained: bool = True,
    base_bytes: float = 0.0,
) -> ModelState:
    """Bytes of `count` parameters on one device, sharded over `shards` devices as the candidate says.

    ZeRO-1 shards the optimizer, ZeRO-2 also gradients, FSDP all three, HSDP inside its groups (the optimizer across
    them, too: `shards_optimizer_across`); where FSDP reduces gradients once a step they are summed whole before, as
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py does. Under FP8 with weights cast once per step, linear weights
    have copies in FP8 beside the BF16 one (`fp8_cache_bytes`); not under FSDP, which gathers them. FSDP that does not
    reshard after forward (ZeRO-2) keeps what it gathered, BF16, beside the FP32 shards. An optimizer on
    the host holds its moments there, and the masters unless those stay (`keeps_hosted_masters`): of Qwen3-30B-A3B on
    16 devices a quarter is 3.8 GB, its moments (NVIDIA-NeMo/Megatron-Bridge docs/training/cpu-offloading.md).
    Frozen ones have neither gradients nor optimizer, and `base_bytes` each where they are packed. Norms, routers and
    output biases, which every rank has whole, are never cast to FP8 (`is_cast`), nor are embedding and head. `empty`
    elements of a shard have neither moments nor `fused_master_bytes`.
    """
    moment, weight, whole, sharded = (state_bytes(stack, name, s.state_format) for name in _STATE)
    master = master_bytes(stack, s.state_format, s.fp8)
    moments = (MATRIX_MOMENTS if is_linear else END_MOMENTS)[s.optimizer]
    stays = 1.0 if stack.precision.keeps_hosted_masters else s.kept_moments
    optimizer = master * stays + moments * moment * s.kept_moments
    unheld = empty * (moments * moment + stack.precision.fused_master_bytes) * s.kept_moments
    is_dealt = (s.sharding >= Sharding.DISTRIBUTED_OPTIMIZER) | (s.optimizer == Optimizer.DIST_MUON)
    gathered = np.where(keeps_gathered(stack, s), BF16_BYTES + weight / shards, 0.0)
    gradient = is_trained * np.where(shards_weights(s), sharded, whole)
    caches = is_linear and is_cast and stack.precision.caches_fp8_weights and not stack.precision.has_fp8_param_gather
    if base_bytes:
        weight, gathered, caches = np.full_like(weight, base_bytes), np.zeros_like(gathered), False
    layouts = (is_linear and is_cast) * fp8_layouts(stack, s)
    weight = np.where(layouts > 0.0, FP8_BYTES * layouts, weight)
    copies = np.where(s.fp8 < Fp8.NVFP4, stack.memory.fp8_cache_bytes, FP8_BYTES)  # of four bits: two of half a byte
    cached_bytes = np.where(s.is_fp8 & ~shards_weights(s) & caches, copies, 0.0)
    held = np.where(shards_weights(s), shards, 1.0)
    return ModelState(
        weights=count * np.where(gathered > 0.0, gathered, weight / held) + count * cached_bytes,
        gradients=count * gradient / np.where((s.sharding >= Sharding.ZERO2) & ~s.sums_gradients, shards, 1.0),
        optimizer=is_trained * (count * optimizer / np.where(is_dealt, shards * s.optimizer_groups, 1.0) - unheld),
        count=count,
    )


_STATE = ("moment_bytes", "weight_bytes", "gradient_bytes", "sharded_gradient_bytes")
