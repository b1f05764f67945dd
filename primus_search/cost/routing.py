"""What a MoE layer runs around its experts on one device: router, and the permutation of tokens to experts and back.

A permutation gathers rows by index, forward and backward alike. Rows it reads and writes, per routed row:

    all-to-all     1/top-k + 1 into the order of ranks, 1 + 1 into the order of a rank's experts, and back
    DeepEP         the dispatcher's kernels do the first; a rank reads each token it received once and writes it once
                   for every expert of its own that wants it: distinct/top-k + 1
    one rank       1/top-k + 1

Source: what each dispatcher copies, NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization (2.1.1 and 2.5)
and core/transformer/moe/token_dispatcher.py. Rates: `gather_efficiency`, a measured kernel, so the stack's
`memory_efficiency` does not slow it once more.
"""

import numpy as np

from primus_search.candidates import Candidates, Floats, Fp8
from primus_search.cost.expert_parallel import distinct_destinations
from primus_search.cost.memory_bound import Stream
from primus_search.cost.work import Call, Linear, Module, Operation, Part, Traffic
from primus_search.model import MixtureOfExperts, Model
from primus_search.stack import Stack
from primus_search.workload import Workload

BF16_BYTES = 2.0

# Launches of router and dispatcher apart from GEMMs and permutations: softmax, top-k, mask, auxiliary loss, counts,
# splits, sorts, reshapes; fused or one by one.
ROUTER_KERNELS = {True: (16.0, 20.0), False: (60.0, 70.0)}
# Permutation written as separate operations: gather, multiplication by the routing weights and scatter-add, against
# one fused pass.
UNFUSED_PERMUTE_COPIES = 3.0
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
    is_fused = np.logical_or(stack.has_fused_router, c.sync_free_stage >= 1)
    kernels_f = np.where(is_fused, ROUTER_KERNELS[True][0], ROUTER_KERNELS[False][0])
    kernels_b = np.where(is_fused, ROUTER_KERNELS[True][1], ROUTER_KERNELS[False][1])
    logits = expert_tokens * moe.num_experts
    moved = permuted_rows(moe, workload, stack, c) * routed_rows * model.hidden * BF16_BYTES
    syncs = np.maximum(stack.host_syncs_per_moe_layer - c.sync_free_stage, 0.0)
    syncs = syncs * (stack.cuda_graph != "full")
    return [
        Linear(
            part=Part.ROUTING,
            module=Module.ROUTER,
            m=expert_tokens,
            n=float(moe.num_experts),
            k=float(model.hidden),
            precision=Fp8.NONE,
        ),
        Traffic(
            part=Part.ROUTING,
            module=Module.ROUTER,
            forward_bytes=ROUTER_BYTES_PER_LOGIT * logits,
            backward_bytes=ROUTER_BYTES_PER_LOGIT * logits,
            forward_kernels=kernels_f,
            backward_kernels=kernels_b,
            kind=Stream.SOFTMAX,
            backward_kind=Stream.SOFTMAX,
        ),
        Traffic(
            part=Part.ROUTING,
            module=Module.ROUTER,
            forward_bytes=2.0 * moved,
            backward_bytes=2.0 * moved,
            forward_kernels=4.0,
            backward_kernels=4.0,
            kind=Stream.GATHER,
            backward_kind=Stream.GATHER,
        ),
        Call(
            part=Part.LAUNCH,
            module=Module.ROUTER,
            forward_s=syncs * stack.host_sync_s,
            backward_s=np.zeros_like(syncs),
            forward_kernels=0.0,
        ),
    ]


def busiest_over_mean(workload: Workload, c: Candidates) -> Floats:
    """Tokens of the busiest expert-parallel rank over the mean; 1 where one rank has every expert."""
    return np.where(c.ep > 1, workload.routing_imbalance, 1.0)


def permuted_rows(moe: MixtureOfExperts, workload: Workload, stack: Stack, c: Candidates) -> Floats:
    """Rows read and written per routed row on the way to the experts; as many on the way back."""
    ranks = distinct_destinations(moe.num_experts, moe.top_k, c.ep, in_turn=workload.experts_in_turn)
    received = np.where(c.ep > 1, ranks, 1.0) / moe.top_k
    is_direct = np.logical_or(c.deepep, c.ep == 1)
    rows = np.where(is_direct, received + 1.0, 1.0 / moe.top_k + 1.0 + 2.0)
    has_fused_permute = np.logical_or(stack.has_fused_permute, c.sync_free_stage >= 1)
    return rows * np.where(has_fused_permute, 1.0, UNFUSED_PERMUTE_COPIES)
