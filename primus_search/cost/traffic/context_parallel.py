"""Context-parallel traffic of one layer: keys and values travel so that every query meets every earlier token.

Tokens are dealt in the zigzag order (rank r holds slices r and 2c-1-r), so each rank owns 1/c of the causal pairs and
each ring step the same work. Four ways to exchange, the candidate's or the software's own:

    p2p         a ring: at each of c-1 steps a rank passes on the keys and values it just used
    a2a         (Ulysses) before attention tokens are exchanged for heads, and back afterwards
    all_gather  everyone gathers all keys and values first; backward scatters their gradients
    by length   with `hybrid_cp` a ring of as many ranks as a document needs, for each number of ranks
    a2aN_p2p    an all-to-all among N neighbours, then a ring between the groups, each of N times the tokens and 1/N of
                the heads, so that a message of the ring is as large as without and c/N - 1 steps are left of c - 1

Two more for layers that are no plain attention: scans of Mamba-2 and Gated DeltaNet exchange tokens for heads whatever
`cp_comm` says, where heads divide, and latents that an indexer selects from are gathered.

Source: ring attention, Liu et al. 2023 (arXiv:2310.01889); DeepSpeed-Ulysses, Jacobs et al. 2023 (arXiv:2309.14509);
all-gather: Llama 3, arXiv:2407.21783 section 3.3.2; both: USP, Fang and Zhao 2024 (arXiv:2405.07719). Sizes as in
TransformerEngine's context-parallel attention; scans and indexers: Megatron-LM d98e8a64.
"""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, all_to_all_s, reduce_scatter_s, send_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.cost.traffic.comm_table import Comm, LayerTraffic, comm, exposed_s
from primus_search.space.memo import in_order
from primus_search.values.candidates import Bools, Candidates, CpComm, Floats, Ints
from primus_search.values.job import Job
from primus_search.values.model import Mixer, Model
from primus_search.values.workload import Workload


def context_parallel(job: Job, c: Candidates, *, forward_s: ArrayLike, backward_s: ArrayLike) -> LayerTraffic:
    """Context-parallel traffic of one layer, given the seconds of its core attention (already 1/cp of the pairs).

    Formula: ring, per step, message kv = local tokens * (K and V of the rank's heads) * 2 bytes
        forward    (c-1) steps of kv;  backward (c-1) steps of kv and c steps of its gradient
        exposed    per step max(0, send - overlap * attention / c), since only one step's compute hides a step's send
    """
    codes = c.exchange_of_context(job.stack.communication.cp_comm)
    whole = Group(c.cp, c.tp)
    ways = {
        CpComm.P2P: lambda: _ring(job, c, whole, 1.0, forward_s, backward_s),
        CpComm.A2A: lambda: _heads_for_tokens(job, c, whole),
        CpComm.ALL_GATHER: lambda: _gather(job, c),
    }
    present = [code for code in ways if (codes == code).any()] or [CpComm.P2P]
    found = ways[present[0]]()
    for code in present[1:]:
        found = either(codes == code, ways[code](), found)
    inner = c.inner_context_ranks(job.stack.communication.cp_comm)
    if inner.any():
        found = either(inner > 0, _ring_of_groups(job, c, inner, forward_s, backward_s), found)
    if c.hybrid_cp.any():
        found = either(c.hybrid_cp, _rings_by_document(job, c, forward_s, backward_s), found)
    return found


def either(mask: Bools, chosen: LayerTraffic, other: LayerTraffic) -> LayerTraffic:
    """Rows of one exchange where the mask holds, of the other elsewhere."""

    def both(a: Comm, b: Comm) -> Comm:
        message, count = np.where(mask, a.message_bytes, b.message_bytes), np.where(mask, a.count, b.count)
        seconds = np.where(mask, a.seconds, b.seconds)
        return comm(b.operation, message, count, seconds, np.where(mask, a.exposed_s, b.exposed_s))

    return LayerTraffic(forward=both(chosen.forward, other.forward), backward=both(chosen.backward, other.backward))


def key_value_bytes(model: Model, workload: Workload, c: Candidates) -> Floats:
    """Bytes of the keys and values one rank holds of a micro-batch (its tokens, its heads)."""
    tokens = c.micro_batch_size * (workload.seq_length / c.cp)
    heads = model.num_heads / c.tp if model.latent else np.maximum(model.num_kv_heads / c.tp, 1.0)
    return tokens * heads * (model.qk_head_dim + model.v_head_dim) * BF16_BYTES


def _ring(
    job: Job, c: Candidates, ring: Group, share: Floats | float, forward_s: ArrayLike, backward_s: ArrayLike
) -> LayerTraffic:
    """The ring of documents that have `share` of the tokens, beside the seconds of their attention."""
    network, stack = job.network, job.stack
    kv = key_value_bytes(job.model, job.workload, c) * share
    ranks = np.asarray(ring.size)
    steps = ranks - 1.0
    one = send_s(network, kv, ring) / stack.efficiencies.network_efficiency
    two = send_s(network, 2.0 * kv, ring) / stack.efficiencies.network_efficiency
    forward_left, backward_left = (
        exposed_s(sent_s, np.asarray(core_s) / ranks, overlap=stack.communication.context_overlap)
        for sent_s, core_s in ((one, forward_s), (two, backward_s))
    )
    back, left = steps * two + one, steps * backward_left + one
    return LayerTraffic(
        forward=comm("context-parallel ring forward", kv, steps, steps * one, steps * forward_left),
        backward=comm("context-parallel ring backward", 2.0 * kv, ranks * (ranks > 1), back, left),
    )


def _heads_for_tokens(job: Job, c: Candidates, group: Group) -> LayerTraffic:
    """Queries, keys, values and output each cross once per direction; nothing to hide behind, attention waits."""
    model, workload = job.model, job.workload
    tokens = c.micro_batch_size * (workload.seq_length / c.cp)
    query = tokens * model.num_heads / c.tp * BF16_BYTES
    key_value = key_value_bytes(model, workload, c)
    key = key_value * (model.qk_head_dim / (model.qk_head_dim + model.v_head_dim))
    sizes = (query * model.qk_head_dim, key, key_value - key, query * model.v_head_dim)
    total = in_order(sizes)
    seconds = in_order(all_to_all_s(job.network, size, group) for size in sizes)
    seconds = seconds / job.stack.efficiencies.network_efficiency
    count = 4 * (np.asarray(group.size) > 1)
    return LayerTraffic(
        forward=comm("context-parallel all-to-all forward", total / 4.0, count, seconds),
        backward=comm("context-parallel all-to-all backward", total / 4.0, count, seconds),
    )


def _ring_of_groups(job: Job, c: Candidates, inner: Ints, forward_s: ArrayLike, backward_s: ArrayLike) -> LayerTraffic:
    """An all-to-all among `inner` neighbours beside a ring of c / inner groups; rows without one are not used."""
    near = np.clip(inner, 1, c.cp)
    dealt = _heads_for_tokens(job, c, Group(near, c.tp))
    ring = _ring(job, c, Group(c.cp // near, c.tp * near), 1.0, forward_s, backward_s)
    return LayerTraffic(forward=_sum(dealt.forward, ring.forward), backward=_sum(dealt.backward, ring.backward))


def _rings_by_document(job: Job, c: Candidates, forward_s: ArrayLike, backward_s: ArrayLike) -> LayerTraffic:
    """Rings of as many ranks as each document needs, one after the other; documents of one rank exchange nothing."""
    shares = {cp: job.workload.group_shares(cp) for cp in np.unique(c.cp).tolist()}
    found: LayerTraffic | None = None
    for size in sorted({size for of_cp in shares.values() for size in of_cp}):
        tokens, squares = (np.array([shares[cp].get(size, (0.0, 0.0))[i] for cp in c.cp.tolist()]) for i in range(2))
        group = Group(np.where(tokens > 0.0, size, 1), c.tp)
        one = _ring(job, c, group, tokens, squares * forward_s, squares * backward_s)
        both = found and (_sum(found.forward, one.forward), _sum(found.backward, one.backward))
        found = LayerTraffic(forward=both[0], backward=both[1]) if both else one
    assert found is not None
    return found


def _sum(a: Comm, b: Comm) -> Comm:
    """Both after one another, as collectives of their mean size."""
    count = a.count + b.count
    message = (a.count * a.message_bytes + b.count * b.message_bytes) / np.maximum(count, 1.0)
    return comm(b.operation, message, count, a.seconds + b.seconds, a.exposed_s + b.exposed_s)


def _gather(job: Job, c: Candidates) -> LayerTraffic:
    """Keys and values of all ranks before attention; again in backward, whose gradients are then scattered."""
    network, stack = job.network, job.stack
    whole = key_value_bytes(job.model, job.workload, c) * c.cp
    ranks = Group(c.cp, c.tp)
    gather = all_gather_s(network, whole, ranks) / stack.efficiencies.network_efficiency
    scatter = reduce_scatter_s(network, whole, ranks) / stack.efficiencies.network_efficiency
    is_split = c.cp > 1
    return LayerTraffic(
        forward=comm("context-parallel gather forward", whole, 1 * is_split, gather),
        backward=comm("context-parallel gather backward", whole, 2 * is_split, gather + scatter),
    )


def heads_of_scans(job: Job, mixer: Mixer, c: Candidates) -> LayerTraffic:
    """A scan works on all tokens of its share of heads: inputs cross once, the output once; in backward the gradients.

    Formula: all-to-all of 2 bytes * tokens/cp * width/tp each, and copies that put heads and zigzag tokens in order:
    three of the inputs, two of the output, read and written.
    Source: Megatron-LM d98e8a64 core/ssm/mamba_context_parallel.py pre_conv_ssm and post_conv_ssm (z, x, B, C, dt one
    by one, groups repeated up to one per rank), gated_delta_net/common.py a2a_cp_to_hp and a2a_hp_to_cp (one tensor).
    """
    efficiencies, group = job.stack.efficiencies, Group(c.cp, c.tp)
    rows = np.asarray(BF16_BYTES * c.micro_batch_size * (job.workload.seq_length / c.cp) / c.tp, np.float64)
    sizes = [rows * width for width in mixer.core(job.model.hidden).exchanged_widths(c.tp * c.cp)]
    sent = in_order(all_to_all_s(job.network, size, group) for size in sizes) / efficiencies.network_efficiency
    moved = 6.0 * in_order(sizes[:-1]) + 4.0 * sizes[-1]
    rate = bandwidth_bytes_per_s(job.accelerator, Stream.ELEMENTWISE) * efficiencies.memory_efficiency
    seconds = np.where(c.cp > 1, sent + moved / rate, 0.0)
    message, count = in_order(sizes) / len(sizes), len(sizes) * (c.cp > 1)
    return LayerTraffic(
        forward=comm("heads of scans all-to-all forward", message, count, seconds),
        backward=comm("heads of scans all-to-all backward", message, count, seconds),
    )


def selected_from(job: Job, mixer: Mixer, c: Candidates) -> LayerTraffic:
    """Gathers of what queries select from, of all ranks; in backward their gradients are scattered.

    Source: Megatron-LM d98e8a64 core/transformer/experimental_attention_variant/dsa.py DSAttention.forward.
    """
    tokens = np.asarray(BF16_BYTES * c.micro_batch_size * job.workload.seq_length, np.float64)
    ranks = Group(c.cp, c.tp)
    sizes = [tokens * width for width in mixer.core(job.model.hidden).gathered]
    gather, scatter = (
        in_order(law(job.network, size, ranks) for size in sizes) / job.stack.efficiencies.network_efficiency
        for law in (all_gather_s, reduce_scatter_s)
    )
    message, count = in_order(sizes) / len(sizes), len(sizes) * (c.cp > 1)
    return LayerTraffic(
        forward=comm("gather of selectable keys forward", message, count, gather),
        backward=comm("scatter of selectable keys backward", message, count, scatter),
    )
