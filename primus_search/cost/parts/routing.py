"""What a MoE layer runs around its experts on one device: router, and the permutation of tokens to experts and back.

A permutation gathers rows by index, forward and backward alike. Rows it reads and writes, per routed row:

    all-to-all     1/top-k + 1 into the order of ranks, 1 + 1 into the order of a rank's experts, and back
    DeepEP         the dispatcher's kernels do the first; a rank reads each token it received once and writes it once
                   for every expert of its own that wants it: distinct/top-k + 1
    one rank       1/top-k + 1

Written as separate operations it moves them three times. torch's grouped experts (torchtitan) gather rows, append a row
of zeros, gather again into the order of experts, put results back twice and weigh them in FP32, with no kernel fused;
the gradient of a gather is a scattered addition: see `_INDEXED_ROWS`.

Source: what each dispatcher copies, NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization (2.1.1 and 2.5)
and core/transformer/moe/token_dispatcher.py. Rates: `gather_efficiency`, a measured kernel, so the stack's
`memory_efficiency` does not slow it once more.
"""

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.memory_bound import Stream
from primus_search.cost.parts.operations import Call, LinearOp, Module, Operation, Part, Traffic
from primus_search.cost.traffic.expert_parallel import destinations_of
from primus_search.values.candidates import Candidates, CudaGraph, Floats, Fp8
from primus_search.values.machine.stack import Stack
from primus_search.values.model import MixtureOfExperts, Model
from primus_search.values.workload import Workload

# Launches of router and dispatcher apart from GEMMs and permutations: softmax, top-k, mask, auxiliary loss, counts,
# splits, sorts, reshapes; fused or one by one.
ROUTER_KERNELS = {True: (16.0, 20.0), False: (60.0, 70.0)}
# Permutation written as separate operations: gather, multiplication by the routing weights and scatter-add, against
# one fused pass.
SEPARATE_COPIES = 3.0

# Rows of BF16 that torch's grouped experts read and write per routed row, and launches, besides reading a token once
# for all its experts. Forward: gather 1; append a row 2, gather by expert 2, put back 2; zeros and put back 3; weigh in
# FP32 4. Backward: weighing 9, put back 2, drop the appended row 3 and gather 2, sum of gate's and up's input gradients
# 3, scattered additions of the two gathers 9 each. Counted from pytorch/torchtitan models/moe (2025-11 to 2026-03);
# weighing and scattered addition as measured, in rows at the rate of a gather: 5.26 ms forward and 11.42 ms backward
# for 65,536 tokens of 2,048, top 8, on H100 (a bmm benchmark of torchtitan's combine); 1.85 ms on B200 and 1.80 ms on
# MI350 for the gradient of gathering 196,608 rows of 2,048 (pytorch/ao#4623).
# Since 2026-04 (pytorch/torchtitan#2774) groups of tokens are not padded: no row is appended or dropped, forward 2 and
# backward 3; and where a rank has every expert the first gather is in their order, which saves the second one with its
# scattered addition (2 and 2 + 9) and the zeros put back into (3).
SCATTERED_ROWS = 9.0
_INDEXED_ROWS, _INDEXED_KERNELS = (14.0, 19.0 + 2.0 * SCATTERED_ROWS), (12.0, 20.0)
_PADDING_ROWS, _REORDER_ROWS = (2.0, 3.0), (5.0, 2.0 + SCATTERED_ROWS)
_FUSED_KERNELS = (4.0, 4.0)
ROUTER_BYTES_PER_LOGIT = 24.0


def router_operations(
    model: Model, workload: Workload, stack: Stack, c: Candidates, *, expert_tokens: Floats, routed_rows: Floats
) -> list[Operation]:
    """Router GEMM in BF16, its small kernels, and the permutation of tokens to experts and back.

    expert_tokens  tokens of one rank that its router looks at;  routed_rows  rows its experts work on
    Synchronisations with the host (token counts) are cut one by one by the sync-free stages.
    """
    moe = model.moe
    assert moe is not None
    is_fused = np.logical_or(stack.experts.has_fused_router, c.sync_free_stage >= 1)
    kernels_f = np.where(is_fused, ROUTER_KERNELS[True][0], ROUTER_KERNELS[False][0])
    kernels_b = np.where(is_fused, ROUTER_KERNELS[True][1], ROUTER_KERNELS[False][1])
    logits = expert_tokens * moe.num_experts
    forward_rows, backward_rows = permuted_rows(moe, workload, stack, c)
    row_bytes = routed_rows * model.expert_hidden * BF16_BYTES
    permute_f, permute_b = _INDEXED_KERNELS if stack.experts.permutation.startswith("indexed") else _FUSED_KERNELS
    syncs = np.maximum(stack.host.host_syncs_per_moe_layer - c.sync_free_stage, 0.0)
    syncs = syncs * (c.graph_scope(stack.host.cuda_graph) != CudaGraph.FULL)
    return [
        LinearOp(
            Part.ROUTING, Module.ROUTER, expert_tokens, float(moe.num_experts), float(model.hidden), precision=Fp8.NONE
        ),
        Traffic(
            Part.ROUTING,
            Module.ROUTER,
            (ROUTER_BYTES_PER_LOGIT * logits, ROUTER_BYTES_PER_LOGIT * logits),
            kernels=(kernels_f, kernels_b),
            streams=(Stream.SOFTMAX, Stream.SOFTMAX),
        ),
        Traffic(
            Part.ROUTING,
            Module.ROUTER,
            (forward_rows * row_bytes, backward_rows * row_bytes),
            kernels=(permute_f, permute_b),
            streams=(Stream.GATHER, Stream.GATHER),
        ),
        Call(Part.LAUNCH, Module.ROUTER, (syncs * stack.host.host_sync_s, np.zeros_like(syncs)), kernels=(0.0, 1.0)),
    ]


def permuted_rows(moe: MixtureOfExperts, workload: Workload, stack: Stack, c: Candidates) -> tuple[Floats, Floats]:
    """Rows read and written per routed row on the way to the experts and back: forward, and their gradients."""
    ranks = destinations_of(moe, c.ep, in_turn=workload.experts_in_turn)
    received = np.where(c.ep > 1, ranks, 1.0) / moe.top_k
    is_direct = np.logical_or(c.has_fused_dispatch, c.ep == 1)
    rows = np.where(is_direct, received + 1.0, 1.0 / moe.top_k + 1.0 + 2.0)
    is_fused = np.logical_or(stack.experts.permutation == "fused", c.sync_free_stage >= 1)
    both_ways = 2.0 * rows * np.where(is_fused, 1.0, SEPARATE_COPIES)
    if not stack.experts.permutation.startswith("indexed"):
        return both_ways, both_ways
    by_dispatcher = np.logical_or(c.has_fused_dispatch, is_fused)
    is_unpadded = stack.experts.permutation == "indexed_unpadded"
    forward, backward = (
        np.where(by_dispatcher, both_ways, 1.0 / moe.top_k + own - is_unpadded * (padding + (c.ep == 1) * reorder))
        for own, padding, reorder in zip(_INDEXED_ROWS, _PADDING_ROWS, _REORDER_ROWS, strict=True)
    )
    return forward, backward
