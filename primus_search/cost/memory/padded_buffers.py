"""Parameters of a layer with what fills up the buffers that Megatron-FSDP has for them.

A layer has a buffer for its routed experts and one for the rest. A buffer is dealt to its ranks in whole chunks: the
least common multiple of the row lengths of its matrices, so that shards end where rows end. Matrices begin at chunks;
what is left of two of them may share one, and vectors fill what stays empty.
Formula: parameters = shards * chunk * ceil(used chunks / shards)
Source: NVIDIA/Megatron-LM d98e8a64 core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
`_get_parameter_groups`, `build_data_parallel_buffer_index`. Embedding and head, whose buffers have at most a row more
for each rank, are not padded here.
"""

import numpy as np

from primus_search.cost.memory.layer_matrices import layer_matrices
from primus_search.cost.memory.share import Share, fp8_layouts, in_layer_buffers
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model


def padded(model: Model, stack: Stack, s: Share, kind: LayerKind, count: Floats, *, of_experts: bool = False) -> Floats:
    """`count` parameters of a layer's buffer, and what fills it up where Megatron-FSDP deals it to its ranks."""
    is_padded = in_layer_buffers(stack, s)
    if not np.any(is_padded):
        return count
    from primus_search.cost.memory.dealing_kernels import filled

    matrices = layer_matrices(model, kind, s, of_experts=of_experts)
    shards = (s.expert_shards if of_experts else s.shards) * s.optimizer_groups
    beside = np.stack(np.broadcast_arrays(count, shards, fp8_layouts(stack, s)), axis=1).round().astype(np.int64)
    return np.where(is_padded, [filled(one, *more) for one, more in zip(matrices, beside.tolist(), strict=True)], count)
