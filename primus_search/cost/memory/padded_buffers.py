"""Parameters of a layer with what fills up the buffers that Megatron-FSDP has for them.

A layer has a buffer for its routed experts and one for the rest. A buffer is dealt to its ranks in whole chunks: the
least common multiple of the row lengths of its matrices, so that shards end where rows end. Matrices begin at chunks;
what is left of two of them may share one, and vectors fill what stays empty.
Formula: parameters = shards * chunk * ceil(used chunks / shards)
Source: NVIDIA/Megatron-LM d98e8a64 core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
`_get_parameter_groups`, `build_data_parallel_buffer_index`. Embedding and head, whose buffers have at most a row more
for each rank, are not padded here.
"""

from collections import defaultdict

import numpy as np

from primus_search.cost.memory.mixer_memory import projection_ranks
from primus_search.cost.memory.share import Share, fp8_layouts, in_layer_buffers
from primus_search.values.candidates import Floats
from primus_search.values.dealt_buffers import filled
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model, Split

Matrices = list[tuple[Floats | float, Floats | float, Floats | float]]
"""Rows, their length, and how many of them a device has."""


def dense_matrices(model: Model, kind: LayerKind, s: Share) -> Matrices:
    """Matrices of a layer on one device, routed experts apart."""
    rows: dict[tuple[str, int, bool], Floats | float] = defaultdict(float)
    for one in model.mixer(kind).projections(model.hidden):
        rows[one.group, one.k, one.split is Split.ROW] += one.params / one.k / projection_ranks(one, s)
    found: Matrices = [(n * s.tp, k / s.tp, 1.0) if is_row else (n, k, 1.0) for (_, k, is_row), n in rows.items()]
    if model.moe is None or not kind.is_moe:
        return found + _mlp(model, model.hidden, model.ffn_hidden_of(kind) / s.tp, 1.0)
    shared = model.moe.shared_ffn_hidden + model.moe.parallel_ffn_hidden
    return [*found, (model.moe.num_experts, model.hidden, 1.0), *_mlp(model, model.hidden, shared / s.tp, 1.0)]


def expert_matrices(model: Model, s: Share) -> Matrices:
    """Matrices of the routed experts of a layer on one device."""
    assert model.moe is not None
    return _mlp(model, model.expert_hidden, model.moe.expert_ffn_hidden / s.etp, s.local_experts)


def _mlp(model: Model, hidden: int, width: Floats, copies: Floats | float) -> Matrices:
    return [((model.num_mlp_matrices - 1) * width, hidden, copies), (hidden, width, copies)]


def padded(stack: Stack, s: Share, matrices: Matrices, count: Floats, shards: Floats) -> Floats:
    """`count` parameters of a buffer, and what fills it up where Megatron-FSDP deals it to so many ranks."""
    is_padded = in_layer_buffers(stack, s)
    if not np.any(is_padded):
        return count
    beside = (count, shards * s.optimizer_groups, fp8_layouts(stack, s))
    numbers = [one for part in (*matrices, beside) for one in part]
    rows = np.stack([np.broadcast_to(one, s.tp.shape) for one in numbers], axis=1).round().astype(np.int64).tolist()
    return np.where(is_padded, [filled(tuple(row)) for row in rows], count)
