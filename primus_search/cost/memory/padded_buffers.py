"""Parameters of a layer with what fills up the buffers that Megatron-FSDP has for them.

A layer has a buffer for its routed experts and one for the rest. A buffer is dealt to its ranks in whole chunks: the
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
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model


def padded(model: Model, stack: Stack, s: Share, kind: LayerKind, count: Floats, *, of_experts: bool = False) -> Floats:
    """`count` parameters of a layer's buffer, and what fills it up where Megatron-FSDP deals it to its ranks."""
    is_padded = in_layer_buffers(stack, s)
    if not np.any(is_padded):
        return count
    matrices = layer_matrices(model, kind, s, of_experts=of_experts)
    shards = (s.expert_shards if of_experts else s.shards) * s.optimizer_groups
    beside = np.stack(np.broadcast_arrays(count, shards, fp8_layouts(stack, s)), axis=1).round().astype(np.int64)
    return np.where(is_padded, [filled(one, *more) for one, more in zip(matrices, beside.tolist(), strict=True)], count)


@lru_cache(maxsize=4096)
def filled(matrices: tuple[Matrix, ...], count: int, shards: int, are_apart: int) -> float:
    """Elements of a buffer on all its ranks, each of which has whole chunks: the least common multiple of rows.

    matrices  rows, their length and how many       count  parameters in all       shards  ranks
    are_apart  parameters of no matrix have a buffer of their own; otherwise they fill what matrices leave empty
    """
    listed, chunk = sorted(((round(n), round(m), many) for n, m, many in matrices), key=lambda one: -one[1]), 1
    for rows, length, _ in listed:
        chunk = lcm(chunk, length) if rows * length >= chunk else chunk  # shorter ones fill gaps
    sizes = [rows * length for rows, length, copies in listed for _ in range(copies)]
    used = sum(size // chunk for size in sizes)
    rest = [size % chunk for size in sizes if size >= chunk and size % chunk]
    small = max(count - sum(size for size in sizes if size >= chunk), 0)
    while rest:
        one = rest.pop(0)
        other = next((size for size in rest if one + size <= chunk), 0)
        if other:
            rest.remove(other)
        used, small = used + 1, small if are_apart else max(small - (chunk - one - other), 0)
    inside, beside = (0, small) if are_apart else (small / chunk, 0)
    return float(shards * chunk * ceil((used + inside) / shards) + beside)
