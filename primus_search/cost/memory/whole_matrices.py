"""Room that whole matrices leave empty in the buffers of weights and gradients, on every rank.

Megatron's layer-wise optimizers (Muon, Lion with the distributed optimizer) deal matrices whole to the replicas
(`dealing_kernels`). A chunk of layers is one bucket; that of the first stage is one of several where gradients are
reduced beside backward.

Formula: empty of a chunk = shards * fullest shard - its matrices; of the first, of the last, and of all between these
the most.
Source: NVIDIA/Megatron-LM d98e8a64 core/distributed/distributed_data_parallel.py (buckets of the first pipeline rank's
first chunk alone).
Valid: matrices of experts apart from each other (no single grouped weight).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from primus_search.cost.memory.layer_matrices import Matrix, layer_matrices
from primus_search.cost.memory.parameters import ModelState, state, trained_shares
from primus_search.cost.memory.share import Share
from primus_search.cost.traffic.data_parallel import bucket_params
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, Optimizer, Sharding
from primus_search.values.layout import stage_layers
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model


def deals_matrices(stack: Stack, sharding: Ints | Bools, optimizer: Ints | Bools) -> Bools:
    """Whether the optimizer takes matrices whole, from buffers with room for them."""
    is_dealt = (sharding == Sharding.DISTRIBUTED_OPTIMIZER) & (optimizer > Optimizer.SGD)
    found: Bools = is_dealt | (optimizer == Optimizer.DIST_MUON) & stack.memory.pads_dealt_matrices
    return found


def dealt_columns(stack: Stack, c: Candidates, layouts: Ints) -> dict[str, Ints | Bools]:
    """What tells apart candidates that deal matrices, and no others: their layout, and whether they have buckets."""
    is_dealt = deals_matrices(stack, c.sharding, c.optimizer)
    return {"pipeline_layout": is_dealt * (1 + layouts), "overlap_grad_reduce": is_dealt & c.overlap_grad_reduce}


def empty_room(model: Model, stack: Stack, s: Share) -> Iterator[tuple[str, ModelState]]:
    """Bytes beside what a rank's parameters need, by unit."""
    is_dealt = deals_matrices(stack, s.sharding, s.optimizer)
    if not is_dealt.any():
        return
    held = _first_rank_params(model, s) if stack.sharding.gradient_buckets else s.shards
    most = np.where(s.has_buckets, bucket_params(stack, s.shards.astype(int), held), np.inf)
    for unit, of_experts, shards in (
        ("attention_present", False, s.shards),
        ("experts_present", True, s.expert_shards),
    ):
        rows = {kind: layer_matrices(model, kind, s, of_experts=of_experts) for kind in model.kinds}
        room = np.zeros((3, 2, len(s.tp)))
        for i in np.flatnonzero(is_dealt):
            sides = ((model.learned_positions, model.hidden, 1), (model.hidden / s.tp[i], 2.0 * model.hidden, 1))
            ends = tuple((one,) * (one[0] > 0 and not of_experts) for one in sides)
            room[..., i] = _ends(_chunks(model, s, int(i), rows, *ends), int(shards[i]), float(most[i]))
        room[0] *= s.vpp
        for one, (empty, of_states) in zip((unit, "first_stage", "final_norm"), room, strict=True):
            yield one, replace(state(stack, s, empty, shards), optimizer=state(stack, s, of_states, shards).optimizer)


def _first_rank_params(model: Model, s: Share) -> Floats:
    """Parameters of all chunks of the first pipeline rank."""
    of_layer = [dense + routed for dense, routed in (trained_shares(model, kind, s) for kind in model.kinds)]
    positions = model.learned_positions * model.hidden
    ends = ((model.embedding_params - positions) / s.tp + positions, model.head_params / s.tp + model.norm_params)
    held = np.zeros_like(s.tp)
    for i, layout in enumerate(s.layouts):
        if stages := stage_layers(model, int(s.pp[i] * s.vpp[i]), layout):
            counts = [one[:: int(s.pp[i])].sum() for one in (*stages.counts.T, stages.has_embedding, stages.has_head)]
            held[i] = sum(count * each[i] for count, each in zip(counts, (*of_layer, *ends), strict=True))
    return held


def _chunks(
    model: Model, s: Share, row: int, rows: dict[LayerKind, list[tuple[Matrix, ...]]], positions: tuple[Matrix, ...],
    join: tuple[Matrix, ...],
) -> list[tuple[Matrix, ...]]:  # fmt: skip
    """Matrices of every virtual stage of a row, as backward reaches them; none where the layout does not suit."""
    stages = stage_layers(model, int(s.pp[row] * s.vpp[row]), s.layouts[row])
    if stages is None:
        return []
    every = {kind: rows[kind][row] for kind in model.kinds}
    module = sum((every[kind] for kind in model.mtp_kinds), join)
    of_stages = zip(*(one.astype(int) for one in (stages.counts, stages.has_embedding, stages.mtp)), strict=True)
    return [
        (sum((of * n for of, n in zip(every.values(), counts, strict=True)), positions * first) + module * mtp)[::-1]
        for counts, first, mtp in of_stages
    ]


def _ends(chunks: list[tuple[Matrix, ...]], shards: int, bucket: float) -> Floats:
    """(chunks between the ends, the first one beyond these, the last one) x (most room that a buffer leaves, states
    beyond an equal share)."""
    from primus_search.cost.memory.dealing_kernels import room_of_replicas

    rooms = np.zeros((len(chunks), 2))
    for number, one in enumerate(chunks if shards > 1 else ()):
        rooms[number] = room_of_replicas(one, shards, np.inf if number else bucket) if one else 0.0
    inner, last = rooms[1:-1].max(axis=0, initial=0.0), rooms[1:][-1:].sum(axis=0)
    return np.stack([inner, np.maximum(rooms[:1].sum(axis=0) - inner, 0.0), np.maximum(last - inner, 0.0)])
