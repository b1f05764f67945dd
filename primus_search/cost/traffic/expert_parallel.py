"""Expert-parallel traffic of one MoE layer: tokens go to their experts (dispatch) and come back (combine).

    all-to-all   every routed copy of a token travels: tokens * top-k rows
    DeepEP       a token travels once to each node and once to each rank that needs it, however many of its experts
                 are there; between nodes over the NICs, then over the fast links (DeepEP, MORI, HybridEP kernels)

Where an expert itself is split (etp > 1), its ranks gather the tokens they received and scatter the results; or they
gather tokens before they route them, all dispatch the same, and scatter sums of tokens (`gathers_before_experts`).
Backward mirrors forward: the gradient of a combine is dispatched, and the other way round.

What the sync-free stages save on the device and the host (router, permutation, waits for token counts) is in
`cost/parts/layer.py`; here is only what crosses a link.

Source: DeepEP README (github.com/deepseek-ai/DeepEP) for what travels; Megatron-LM core/transformer/moe
token_dispatcher.py for the order of exchanges; MoE parallel folding, arXiv:2504.14960, for the groups.

Where routing first picks a few groups of experts (DeepSeek-V2, -V3), a token's experts lie in fewer parts. Source:
NVIDIA/Megatron-LM core/transformer/moe/moe_utils.py group_limited_topk; DeepSeek-V3, arXiv 2412.19437 section 2.1.2.
"""

from collections import Counter
from functools import lru_cache
from itertools import combinations
from math import comb
from statistics import NormalDist

import numpy as np

from primus_search.base.units import BF16_BYTES, FP8_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, all_to_all_s, dispatch_s, reduce_scatter_s
from primus_search.cost.traffic.comm_table import LayerTraffic, comm, exposed_s
from primus_search.space.memo import in_codes
from primus_search.values.candidates import Candidates, Floats, Fp8, Ints
from primus_search.values.job import Job
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack
from primus_search.values.model import MixtureOfExperts
from primus_search.values.workload import Workload


def expert_parallel(
    job: Job,
    c: Candidates,
    *,
    shared_expert_s: Floats | float = 0.0,
    forward_s: Floats | float = 0.0,
    backward_s: Floats | float = 0.0,
) -> LayerTraffic:
    """Dispatch and combine of one MoE layer, given seconds of compute they may hide behind.

    shared_expert_s  forward compute of the shared experts, which runs beside the traffic where the stack can; backward
                     takes twice as long
    forward_s        the rest of the layer's compute, which hides traffic of another batch (`expert_overlap`)

    Formula: rows = tokens / (cp tp) * top-k (all-to-all), or distinct destinations (DeepEP); bytes = rows * H * dtype
        seconds * routing imbalance: the exchange ends when the busiest rank has all its tokens
        exposed = comm - shared - overlap * min(comm - shared, compute): a second of compute hides one second once
    """
    model, workload, network, stack = job.model, job.workload, job.network, job.stack
    moe = model.moe
    assert moe is not None
    own = c.micro_batch_size * (workload.seq_length / c.cp) / c.tp
    tokens = own * c.etp if stack.experts.gathers_before_experts else own
    row = model.expert_hidden * BF16_BYTES
    out_row = model.expert_hidden * np.where(
        (c.fp8 != Fp8.NONE) & stack.precision.has_fp8_dispatch, FP8_BYTES, BF16_BYTES
    )
    in_turn = workload.experts_in_turn
    ragged = 1.0 if workload.pads_to_capacity else stack.experts.ragged_exchange_share
    dispatch = exchange_s(network, moe, tokens, out_row, c, in_turn=in_turn, ragged_share=ragged)
    combine = exchange_s(network, moe, tokens, row, c, in_turn=in_turn, ragged_share=ragged)
    rows = own * c.etp * (1 if stack.experts.gathers_before_experts else moe.top_k)
    inside = split_expert_s(network, rows * row, c)
    scale = busiest_over_mean(moe, workload, c) / stack.efficiencies.network_efficiency
    overlap = exchange_overlap_share(stack, c) * steady_share(job, c)

    def exposed(comm_s: Floats, shared_s: Floats | float, compute_s: Floats | float) -> Floats:
        left = exposed_s(comm_s, shared_s, overlap=float(stack.experts.shared_expert_overlap))
        return exposed_s(left, compute_s, overlap=overlap)

    there, back = scale * (dispatch + combine + inside), scale * (2.0 * combine + inside)
    count = 2 * (c.ep > 1) + 2 * (c.etp > 1)
    message = tokens * moe.top_k * row
    return LayerTraffic(
        forward=comm("dispatch and combine forward", message, count, there, exposed(there, shared_expert_s, forward_s)),
        backward=comm(
            "dispatch and combine backward", message, count, back, exposed(back, 2.0 * shared_expert_s, backward_s)
        ),
    )


BLOM = (3 / 8, 1 / 4)
"""The largest of n normal draws is expected at the quantile (n - 3/8) / (n + 1/4). Source: Blom 1958."""


def busiest_over_mean(moe: MixtureOfExperts, workload: Workload, c: Candidates) -> Floats:
    """Tokens of the busiest expert-parallel rank over the mean; 1 where one rank has every expert.

    Formula: imbalance * max(1, exp(r z - r^2/2)), r^2 = ln(1 + (exp(s^2) - 1) ep/E), z = q((ep - 3/8)/(ep + 1/4))
        s spread, E experts: a rank's load is a sum of E/ep log-normal ones, nearly log-normal too; q normal, by Blom.
    Where experts take no more than their capacity, what is beyond it is dropped and the imbalance alone counts.
    Source: log-normal loads, deepseek-ai/DeepEP#393 (DeepSeek-V3); the ratio is Megatron-LM's overload factor (#4110).
    """
    spread = 0.0 if workload.pads_to_capacity else workload.routing_spread
    degrees, at = in_codes(c.ep)
    z = np.array([NormalDist().inv_cdf((ep - BLOM[0]) / (ep + BLOM[1])) for ep in degrees.tolist()])
    of_rank = np.sqrt(np.log1p(np.expm1(spread**2) * degrees / moe.num_experts))
    drawn = np.maximum(np.exp(of_rank * z - of_rank**2 / 2.0), 1.0)
    busiest = np.where(degrees > 1, workload.routing_imbalance * drawn, 1.0)
    result: Floats = busiest[at]
    return result


def exchange_overlap_share(stack: Stack, c: Candidates) -> Floats:
    """Share of dispatch and combine that batch-level overlap hides: the stack's own, or that of the switch."""
    return np.where(c.exchange_overlap, stack.experts.batch_expert_overlap, stack.experts.expert_overlap)


def steady_share(job: Job, c: Candidates) -> Floats:
    """Share of a step's passes that run beside a pass of another micro-batch, where a switch makes them; 1 elsewhere.

    Formula: 1 - p v / (m v + p - 1): p ranks with v stages each; the first forward and the last backward of the way
    through all p v stages, of m v passes and the bubble, have no other beside them.
    Source: NVIDIA/Megatron-LM d98e8a64 core/pipeline_parallel/schedules.py and combined_1f1b.py.
    """
    alone = c.pp * c.vpp / (job.degrees(c).microbatches * c.vpp + c.pp - 1.0)
    return np.where(c.exchange_overlap, np.maximum(1.0 - alone, 0.0), 1.0)


def exchange_s(
    network: Network,
    moe: MixtureOfExperts,
    tokens: Floats,
    row_bytes: Floats | float,
    c: Candidates,
    *,
    in_turn: bool = False,
    ragged_share: Floats | float = 1.0,
) -> Floats:
    """Seconds of one dispatch or combine of `tokens` tokens per rank, `row_bytes` each, balanced routing.

    ragged_share  `ExpertLayers.ragged_exchange_share`, of an all-to-all that leaves a domain
    """
    group = Group(c.ep, c.etp)
    is_far = np.asarray(c.ep * c.etp) > network.domain_size
    plain = all_to_all_s(network, tokens * moe.top_k * row_bytes, group) / np.where(is_far, ragged_share, 1.0)
    fused = dispatch_s(
        network, tokens * row_bytes, group, destinations=lambda parts: destinations_of(moe, parts, in_turn=in_turn)
    )
    return np.where(c.has_fused_dispatch, fused, plain)


def split_expert_s(network: Network, gathered_bytes: Floats, c: Candidates) -> Floats:
    """Seconds to gather what the ranks of a split expert work on, and to scatter their results."""
    group = Group(c.etp, np.ones_like(c.etp))
    return all_gather_s(network, gathered_bytes, group) + reduce_scatter_s(network, gathered_bytes, group)


def destinations_of(moe: MixtureOfExperts, parts: Ints | Floats, *, in_turn: bool = False) -> Floats:
    """Mean number of the `parts` equal shares of a model's experts that a token needs; groups may limit routing."""
    if not in_turn and is_limited(moe.num_experts, moe.num_groups, moe.top_groups):
        return limited_destinations(
            moe.num_experts, moe.top_k, parts, num_groups=moe.num_groups, top_groups=moe.top_groups
        )
    return distinct_destinations(moe.num_experts, moe.top_k, parts, in_turn=in_turn)


def distinct_destinations(num_experts: int, top_k: int, parts: Ints | Floats, *, in_turn: bool = False) -> Floats:
    """Mean number of the `parts` equal shares of the experts that a token with `top_k` different experts needs.

    Formula: parts * (1 - C(E - E/parts, K) / C(E, K)), the product written out; experts are chosen evenly and without
    replacement.
    in_turn: max(1, K * parts/E), experts dealt in turn as token * K + k modulo E (`Workload.experts_in_turn`).
    """
    parts = np.asarray(parts, dtype=np.float64)
    if in_turn:
        return np.maximum(top_k * parts / num_experts, 1.0)
    share = num_experts / parts
    miss = np.ones_like(parts)
    for drawn in range(top_k):
        miss = miss * np.maximum(num_experts - share - drawn, 0.0) / (num_experts - drawn)
    return parts * (1.0 - miss)


MOST_PICKS = 20_000
"""Choices of groups that are counted one by one."""


def limited_destinations(
    num_experts: int, top_k: int, parts: Ints | Floats, *, num_groups: int, top_groups: int
) -> Floats:
    """Mean number of the `parts` equal shares of the experts that a token needs, groups and experts chosen evenly."""
    known, place = np.unique(np.asarray(parts, dtype=np.float64), return_inverse=True)
    means = [_mean(num_experts, top_k, max(round(float(one)), 1), num_groups, top_groups) for one in known]
    return np.asarray(means)[place].reshape(np.shape(parts))


@lru_cache(maxsize=4096)
def _mean(num_experts: int, top_k: int, parts: int, num_groups: int, top_groups: int) -> float:
    """Sum over parts of 1 - C(M - n, K) / C(M, K), mean over picks; M experts are picked from, n of them the part's."""
    shares = Counter(
        tuple(sorted(Counter(e * num_groups // num_experts for e in experts).items()))
        for experts in _parts(num_experts, parts)
    )
    picked = num_experts // num_groups * top_groups
    picks = list(combinations(range(num_groups), top_groups))
    mean = 0.0
    for share, count in shares.items():
        held = dict(share)
        missed = (comb(picked - sum(held.get(group, 0) for group in pick), top_k) for pick in picks)
        mean += count * (1.0 - sum(missed) / len(picks) / comb(picked, top_k))
    return mean


def _parts(num_experts: int, parts: int) -> list[range]:
    return [range(i * num_experts // parts, (i + 1) * num_experts // parts) for i in range(parts)]


def is_limited(num_experts: int, num_groups: int, top_groups: int) -> bool:
    """Whether groups limit routing, and their picks can be counted."""
    limits = 0 < top_groups < num_groups and num_experts % num_groups == 0
    return limits and comb(num_groups, top_groups) <= MOST_PICKS
