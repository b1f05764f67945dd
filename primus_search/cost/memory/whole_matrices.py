"""Room that whole matrices leave empty in the buffers of weights and gradients, on every rank.

Megatron's layer-wise optimizers (Muon, Lion with the distributed optimizer) deal matrices whole to the replicas. A
bucket has a shard of one size for each replica, as large as the fullest of them; the replica that has it holds its
state whole. Matrices go, those with most work first, to the replica with least work so far whose shard stays below 1.3
of the mean, else to the emptiest shard. Work is that of orthogonalising a matrix, its longer side times the square of
its shorter one. A chunk of layers is one bucket; that of the first stage is one of several where gradients are reduced
beside backward: a bucket is closed once it has as many parameters as one has, and 0.9 of a replica's largest matrix on
each, where the next matrix would make it longer.

Formula: empty of a chunk = shards * fullest shard - its matrices; of the first, of the last, and of all between these
the most.
Source: NVIDIA/Megatron-LM d98e8a64 core/optimizer/layer_wise_optimizer.py `_compute_per_buffer_param_layout`;
core/distributed/distributed_data_parallel.py (buckets of the first pipeline rank's first chunk alone).
Valid: gradients reduced beside backward; matrices of experts apart from each other (no single grouped weight).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from primus_search.cost.memory.layer_matrices import Matrix, layer_matrices
from primus_search.cost.memory.parameters import ModelState, state
from primus_search.cost.memory.share import Share
from primus_search.cost.traffic.data_parallel import bucket_params
from primus_search.values.candidates import Bools, Candidates, Floats, Optimizer, Sharding
from primus_search.values.layout import stage_layers
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model

ROOM = 1.3
"""Most parameters of a replica in a bucket over their mean."""
FULL_ENOUGH = 0.9
"""Least parameters of a bucket over its largest matrix on every replica."""


def deals_matrices(stack: Stack, of: Candidates | Share) -> Bools:
    """Whether the optimizer takes matrices whole, from buffers with room for them."""
    is_dealt = (of.sharding == Sharding.DISTRIBUTED_OPTIMIZER) & (of.optimizer > Optimizer.SGD)
    found: Bools = is_dealt | (of.optimizer == Optimizer.DIST_MUON) & stack.memory.pads_dealt_matrices
    return found


def empty_room(model: Model, stack: Stack, s: Share) -> Iterator[tuple[str, ModelState]]:
    """Bytes beside what a rank's parameters need, by unit."""
    is_dealt = deals_matrices(stack, s)
    if not is_dealt.any():
        return
    most = bucket_params(stack, s.shards.astype(int), s.shards)
    for unit, of_experts, shards in (
        ("attention_present", False, s.shards),
        ("experts_present", True, s.expert_shards),
    ):
        rows = {kind: layer_matrices(model, kind, s, of_experts=of_experts) for kind in model.kinds}
        room = np.zeros((3, 2, len(s.tp)))
        for i in np.flatnonzero(is_dealt):
            join = () if of_experts else ((model.hidden / s.tp[i], 2.0 * model.hidden, 1),)
            room[..., i] = _ends(_chunks(model, s, int(i), rows, join), int(shards[i]), float(most[i]))
        room[0] *= s.vpp
        for one, (empty, of_states) in zip((unit, "first_stage", "final_norm"), room, strict=True):
            yield one, replace(state(stack, s, empty, shards), optimizer=state(stack, s, of_states, shards).optimizer)


def _chunks(
    model: Model, s: Share, row: int, rows: dict[LayerKind, list[tuple[Matrix, ...]]], join: tuple[Matrix, ...]
) -> list[tuple[Matrix, ...]]:
    """Matrices of every virtual stage of a row, as backward reaches them; none where the layout does not suit."""
    stages = stage_layers(model, int(s.pp[row] * s.vpp[row]), s.layouts[row])
    if stages is None:
        return []
    every = {kind: rows[kind][row] for kind in model.kinds}
    module = sum((every[kind] for kind in model.mtp_kinds), join)
    of_stages = zip(stages.counts.astype(int), stages.mtp.astype(int), strict=True)
    return [
        (sum((of * n for of, n in zip(every.values(), counts, strict=True)), ()) + module * mtp)[::-1]
        for counts, mtp in of_stages
    ]


def _ends(chunks: list[tuple[Matrix, ...]], shards: int, bucket: float) -> Floats:
    """(chunks between the ends, the first one beyond these, the last one) x (most room that a buffer leaves, states
    beyond an equal share)."""
    rooms = np.zeros((len(chunks), 2))
    for number, one in enumerate(chunks if shards > 1 else ()):
        rooms[number] = _buffer(one, shards, np.inf if number else bucket) if one else 0.0
    inner, last = rooms[1:-1].max(axis=0, initial=0.0), rooms[1:][-1:].sum(axis=0)
    return np.stack([inner, np.maximum(rooms[:1].sum(axis=0) - inner, 0.0), np.maximum(last - inner, 0.0)])


@lru_cache(maxsize=1 << 14)
def _buffer(matrices: tuple[Matrix, ...], shards: int, bucket: float) -> tuple[float, float]:
    """Parameters beyond those of matrices, in the order of backward, that their buffer has room for, and that replicas
    would have, were all as the one that has most."""
    from primus_search.cost.memory.memory_kernels import buckets_of, dealt

    rows, columns, many = np.array(matrices).reshape(-1, 3).T
    size, small, copies = rows * columns, np.minimum(rows, columns), many.astype(np.int64)
    size, work = np.repeat(size, copies), np.repeat(size * small, copies)
    number = buckets_of(size, shards, bucket, FULL_ENOUGH)
    order = np.lexsort((-work, number))
    room, fullest = dealt(size[order], work[order], number[order], shards, ROOM)
    return room - size.sum(), fullest - size.sum()
