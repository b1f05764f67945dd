"""Parameters of a layer with what fills up the buffers that Megatron-FSDP has for them.

A layer has a buffer for its routed experts and one for the rest, and of each one more where weights are in FP8: for
what is not. A buffer is dealt to its ranks in whole chunks: the
least common multiple of the row lengths of its matrices, so that shards end where rows end. Matrices begin at chunks;
what is left of two of them may share one, and vectors fill what stays empty.
Formula: parameters = shards * chunk * ceil(used chunks / shards)
Source: NVIDIA/Megatron-LM d98e8a64 core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
`_get_parameter_groups`, `build_data_parallel_buffer_index`. Embedding and head, whose buffers have at most a row more
for each rank, are not padded here.
"""

from functools import lru_cache
from math import ceil, lcm

import numpy as np

from primus_search.cost.memory.layer_matrices import Matrix, layer_matrices
from primus_search.cost.memory.share import Share, fp8_layouts, in_layer_buffers
from primus_search.values.candidates import Floats, Sharding
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model


def padded(
    model: Model, stack: Stack, s: Share, kind: LayerKind, cast: Floats, uncast: Floats, *, of_experts: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Parameters of a layer that FP8 casts and others, each with what fills up its buffer where Megatron-FSDP deals it
    to its ranks, and empty elements on the first rank, of which the optimizer keeps nothing."""
    is_padded = in_layer_buffers(stack, s)
    if not np.any(is_padded):
        return cast, uncast, np.zeros_like(cast)
    every, of_cast, beside = (
        layer_matrices(model, kind, s, of_experts=of_experts, is_cast=side) for side in (None, True, False)
    )
    shards = np.where(s.sharding > Sharding.NONE, s.expert_shards if of_experts else s.shards, 1.0) * s.optimizer_groups
    numbers = np.stack(np.broadcast_arrays(cast, uncast, shards, fp8_layouts(stack, s)), axis=1).round().astype(int)
    found = np.zeros((len(every), 3))
    for i in np.flatnonzero(is_padded).tolist():
        low, high, ranks, are_apart = numbers[i].tolist()
        room, empty = filled(of_cast[i], low, ranks) if are_apart else filled(every[i], low + high, ranks)
        own, own_empty = filled(beside[i], high, ranks) if are_apart else (high, 0.0)
        found[i] = room - high * (not are_apart), own, empty + own_empty
    return np.where(is_padded, found[:, 0], cast), np.where(is_padded, found[:, 1], uncast), found[:, 2] * is_padded


@lru_cache(maxsize=4096)
def filled(matrices: tuple[Matrix, ...], count: int, shards: int) -> tuple[float, float]:
    """Elements of a buffer on all its ranks, each of which has whole chunks: the least common multiple of rows; and
    empty ones on the first rank.

    matrices  rows, their length and how many       count  parameters in all       shards  ranks
    """
    listed, chunk = sorted(((round(n), round(m), many) for n, m, many in matrices), key=lambda one: -one[1]), 1
    for rows, length, _ in listed:
        chunk = lcm(chunk, length) if rows * length >= chunk else chunk  # shorter ones fill gaps
    sizes = [rows * length for rows, length, copies in listed for _ in range(copies)]
    waiting, used, gaps = [size for size in sizes if size >= chunk], 0, list[tuple[int, int]]()
    small = max(count - sum(waiting), 0)
    while waiting:
        one = waiting.pop(0)
        used += one // chunk
        if one % chunk:
            other = next((size for size in waiting if size % chunk and one % chunk + size % chunk <= chunk), 0)
            if other:
                waiting.remove(other)
            gaps.append((used, chunk - one % chunk - other % chunk))
            used += 1 + other // chunk
    inside = max(small - sum(gap for _, gap in gaps), 0) / chunk
    dealt = ceil((used + inside) / shards)
    empty = max(dealt - used - inside, 0.0) * chunk
    for begin, gap in gaps:
        empty += max(gap - small, 0) * (begin < dealt)
        small = max(small - gap, 0)
    return float(shards * chunk * dealt), float(empty)
