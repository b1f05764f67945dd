"""Kernels of low-rank adapters beside the frozen weights of a layer, per micro-batch on one device.

The model's own products keep forward and input gradient. An adapter adds, on t tokens, x A^T and (x A^T) B^T with all
three products each, the scale of its output and the sum with the product beside it; in backward the sum of two input
gradients. Both its matrices run in BF16, divided by tp as the matrix beside them is (`parameters.adapter_shares`).
Where frozen matrices are packed, each pass first unpacks them to BF16: bytes read and written once.
Source: arXiv:2106.09685 section 4.1; NVIDIA-NeMo/Megatron-Bridge peft/lora_layers.py (`linear_output + adapter_output`,
`x * (alpha / dim)`); bitsandbytes MatMul4Bit, which unpacks in forward and again in backward.
Valid: not yet compared with measured kernels of adapters.
"""

from dataclasses import replace

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.memory_bound import Stream
from primus_search.cost.memory.share import MASK_BYTES, Share
from primus_search.cost.parts.operations import GroupedLinear, LinearOp, Module, Operation, Part, Traffic, streamed
from primus_search.values.candidates import Candidates, Floats, Fp8
from primus_search.values.job import Job
from primus_search.values.model import LayerKind, Split, adapted_matrices
from primus_search.values.model.adapters import EACH, OF_MLP, Adapted, Adapters

PACKED = (Module.LINEAR, Module.MLA_UP, Module.MLP, Module.EXPERTS)
"""Products whose matrices are packed: those of attention, MLPs and experts; not the router's."""
_ROWS = (Stream.ELEMENTWISE, Stream.ELEMENTWISE)


def with_adapters(job: Job, kind: LayerKind, c: Candidates, kernels: list[Operation]) -> list[Operation]:
    """The kernels of a layer whose weights are frozen, and those of its adapters."""
    adapters, s = job.model.adapters, Share.of(job, c)
    assert adapters is not None
    found: list[Operation] = []
    for one in kernels:
        if not isinstance(one, LinearOp | GroupedLinear):
            found.append(one)
            continue
        if adapters.base.is_packed and one.module in PACKED:
            found.append(_unpacking(one, adapters.base.bytes_per_param))
        found.append(replace(one, is_trained=False))
    for adapted in adapted_matrices(job.model, kind):
        found += _of_experts(adapted, adapters, c, s) if adapted.of_experts else _of_matrix(adapted, adapters, c, s)
    return found


def _unpacking(product: LinearOp | GroupedLinear, packed_bytes: float) -> Traffic:
    """Reading a packed matrix and writing it in BF16, forward and backward."""
    copies = np.asarray(product.groups) if isinstance(product, GroupedLinear) else 1.0
    moved = copies * np.asarray(product.n) * np.asarray(product.k) * (packed_bytes + BF16_BYTES)
    return Traffic(product.part, product.module, (moved, moved))


def _of_matrix(one: Adapted, adapters: Adapters, c: Candidates, s: Share) -> list[Operation]:
    """An adapter of a matrix that every token passes."""
    matrix, rank, split = one.matrix, float(adapters.rank), one.matrix.split
    part, module = (Part.MLP, Module.MLP) if one.module in OF_MLP else (Part.ATTENTION, Module.LINEAR)
    rows = s.split_tokens if split is Split.WHOLE else s.tokens
    ranks = np.ones_like(s.tp) if split is Split.WHOLE else s.tp
    inner = matrix.k / (ranks if split is Split.ROW else 1.0) * np.ones_like(ranks)
    down = LinearOp(part, module, rows, rank / (ranks if split is Split.COLUMN else 1.0) * np.ones_like(ranks), inner)
    up = LinearOp(part, module, rows, matrix.n * matrix.copies / ranks, rank)
    out = s.split_tokens * matrix.n if split is Split.ROW else rows * matrix.n * matrix.copies / ranks
    return [down, up, *_streams(part, module, out, rows * inner, adapters)]


def _of_experts(one: Adapted, adapters: Adapters, c: Candidates, s: Share) -> list[Operation]:
    """Adapters of one matrix of the routed experts: a product for each expert, or one for all rows."""
    rank, rows = float(adapters.rank), s.expert_rows * s.local_experts
    is_row = one.matrix.split is Split.ROW
    n, k = (one.matrix.n / (1.0 if is_row else s.etp), one.matrix.k / (s.etp if is_row else 1.0))
    n, k = n * np.ones_like(s.etp), k * np.ones_like(s.etp)
    part, module = Part.EXPERTS, Module.EXPERTS
    sizes = ((np.full_like(k, rank), k), (n, np.full_like(n, rank)))
    if one.module == EACH:
        products: list[Operation] = [
            GroupedLinear(
                part=part, module=module, rows=s.expert_rows, groups=s.local_experts, n=outer, k=inner,
                precision=Fp8.NONE, mode=c.grouped_gemm,
            )
            for outer, inner in sizes
        ]  # fmt: skip
    else:
        products = [LinearOp(part, module, rows, outer, inner) for outer, inner in sizes]
    return [*products, *_streams(part, module, rows * n, rows * k, adapters)]


def _streams(part: Part, module: Module, outputs: Floats, inputs: Floats, adapters: Adapters) -> list[Operation]:
    """Scale and sum of the output, the sum of input gradients, and dropout of the input."""
    found = [streamed(part, module, outputs, (5.0, 2.0, 2.0, 1.0), _ROWS)]
    found.append(streamed(part, module, inputs, (0.0, 3.0, 1.0, 1.0), _ROWS))
    if adapters.dropout:
        dropped = 2.0 + MASK_BYTES / BF16_BYTES
        found.append(streamed(part, module, inputs, (dropped, dropped, 1.0, 1.0), _ROWS))
    return list[Operation](found)
