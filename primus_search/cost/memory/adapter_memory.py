"""Activations that wait for backward where weights are frozen and adapters trained, in bytes per micro-batch.

The input of a frozen product is kept for no weight gradient: it goes, unless the kernel before it keeps its output
anyway (fused attention) or an adapter reads it. An adapter keeps its input in BF16 - as gathered under sequence
parallelism, or a copy of its own behind dropout - and the output of its first matrix. Inputs of norms, of activation
functions, of attention and of the routing weights stay, for gradients of activations pass them.
Source: torch.nn.functional.linear saves its input only where the weight requires a gradient; Transformer Engine
module/linear.py likewise (`inputmat if weight.requires_grad`); NVIDIA-NeMo/Megatron-Bridge peft/utils.py
(`return_layernorm_output_gathered`).
"""

from dataclasses import replace

import numpy as np

from primus_search.cost.memory.mixer_memory import Saved
from primus_search.cost.memory.share import BF16_BYTES, MASK_BYTES, Share
from primus_search.values.candidates import Bools, Floats, Recompute
from primus_search.values.model import LayerKind, Model, Split, adapted_matrices
from primus_search.values.model.adapters import FC1, IN, OF_MLP, OUT, QKV, Adapted

OF_NORM = ("linear_qkv", *QKV, "linear_q_down_proj", "linear_kv_down_proj", IN)
READ_BY: dict[str, tuple[str, ...]] = {
    "attention norm output": OF_NORM,
    "MLP norm output": ("linear_fc1", *FC1),
    "attention output": ("linear_proj",),
    "mixer output": ("linear_proj", OUT),
    "latents": ("linear_q_up_proj", "linear_kv_up_proj"),
    "input of q up": ("linear_q_up_proj",),
    "input of kv up": ("linear_kv_up_proj",),
    "mlp activated": ("linear_fc2",),
    "shared experts activated": ("linear_fc2",),
    "expert input": (Split.COLUMN.name,),
    "expert activated": (Split.ROW.name,),
}
"""Inputs of products by the matrices that read them, of experts by their split; what no adapter reads is not kept."""
COPIES = {"attention output": "attention output of the kernel", "mixer output": "output of the kernel"}
"""Inputs of the output projection, and the tensor in which attention's kernel keeps a copy, of no bytes where the
projection saves the kernel's own."""


def kept_beside_frozen(
    model: Model, kind: LayerKind, s: Share, tensors: list[Saved], low_bytes: Floats, of_kernel: Bools
) -> list[Saved]:
    """The tensors of a layer whose weights are frozen, with those of its adapters.

    low_bytes  per element of a linear input that the trained layer saves
    of_kernel  where attention's kernel keeps its output and the projection reads that very tensor
    """
    adapters = model.adapters
    assert adapters is not None
    adapted = adapted_matrices(model, kind)
    read = {one.matrix.split.name if one.of_experts else one.module for one in adapted if not adapters.dropout}
    gathers, wide = s.tokens / s.split_tokens, BF16_BYTES / low_bytes
    copies = {tensor.name: tensor.bytes for tensor in tensors if tensor.name in COPIES.values()}
    found = []
    for tensor in tensors:
        is_read = bool(read.intersection(READ_BY.get(tensor.name, ())))
        if not tensor.weight_input:
            found.append(tensor)
        elif (copy := COPIES.get(tensor.name)) in copies:
            own = np.where(of_kernel, copies[copy] == 0.0, is_read) * np.where(copies[copy] > 0.0, wide, 1.0)
            found.append(replace(tensor, bytes=tensor.bytes * own))
        elif is_read:
            scale = gathers if tensor.name.endswith("norm output") else 1.0
            found.append(replace(tensor, bytes=tensor.bytes * wide * scale))
    return found + [_of_adapter(one, model, s) for one in adapted]


def _of_adapter(one: Adapted, model: Model, s: Share) -> Saved:
    """What one adapter keeps besides an input that it shares: the output of A, and behind dropout its own input."""
    adapters, matrix = model.adapters, one.matrix
    assert adapters is not None
    rows = s.routed_rows if one.of_experts else s.split_tokens if matrix.split is Split.WHOLE else s.tokens
    kept = BF16_BYTES * adapters.rank * rows
    if adapters.dropout:
        ranks = (s.etp if one.of_experts else s.tp) if matrix.split is Split.ROW else 1.0
        kept = kept + (BF16_BYTES + MASK_BYTES) * rows * matrix.k / ranks
    dropped_by = Recompute.MOE if one.of_experts else Recompute.MLP if one.module in OF_MLP else Recompute.NONE
    return Saved(name=f"adapter of {one.module}", bytes=kept, dropped_by=dropped_by, weight_input=True)


def adapter_output_gradients(model: Model, kind: LayerKind, s: Share) -> Floats:
    """Gradients of the outputs of both matrices of every adapter, which a put-off weight gradient waits with."""
    adapters, total = model.adapters, np.zeros_like(s.tokens)
    assert adapters is not None
    for one in adapted_matrices(model, kind):
        rows = s.routed_rows if one.of_experts else s.tokens
        ranks = (s.etp if one.of_experts else s.tp) if one.matrix.split is Split.COLUMN else 1.0
        total = total + BF16_BYTES * rows * (one.matrix.n / ranks + adapters.rank)
    return total


def unpacked_bytes(model: Model, kind: LayerKind, s: Share) -> Floats:
    """The largest packed matrix of a layer in BF16, while a product reads it; 0 where none is packed."""
    if model.adapters is None or not model.adapters.base.is_packed:
        return np.zeros_like(s.tokens)
    inner = model.num_mlp_matrices - 1
    sizes = [p.params / s.tp for p in model.mixer(kind).projections(model.hidden)]
    sizes.append(inner * model.hidden * model.ffn_hidden_of(kind) / s.tp)
    if kind.is_moe and model.moe is not None:
        sizes.append(inner * model.expert_hidden * model.moe.expert_ffn_hidden * s.local_experts / s.etp)
    largest: Floats = BF16_BYTES * np.maximum.reduce(sizes)
    return largest
