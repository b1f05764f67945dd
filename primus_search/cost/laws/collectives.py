"""Seconds of collectives over groups of ranks: all-reduce, all-gather, reduce-scatter, all-to-all, send.

A group is `Group(size, stride)`: ranks r, r + stride, r + 2 stride ... Its stride is the product of the degrees that
are inside it in rank order (tp, cp, dp, pp for dense layers; etp, ep, edp, pp for experts), and with the domain size
it says how many members share the fast fabric. All groups of one kind run at once, so a device owns its link and its
share of the node's NICs, and a group owns what its members own.

    >>> tensor = Group(size=8, stride=1)      # inside a node
    >>> data = Group(size=16, stride=8)       # one member per 8-GPU node, each with its own NIC

Every duration is latency + (wire bytes + ramp) / rate, where ramp = sqrt(half-speed bytes * wire bytes): the rate
still grows long after the latency is paid, because protocols and channel counts change with the message size.
Functions are pure, take columns or scalars, and cost exactly 0 for a group of one.

Source: ring and tree costs are the alpha-beta model (Thakur et al. 2005, doi:10.1177/1094342005051521); which
algorithms libraries choose between: NCCL (github.com/NVIDIA/nccl, src/graph/tuning.cc). Rates: `hardware/*.yaml`.
Valid: docs/cost/collectives.md compares them with measured sweeps per accelerator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import numpy as np
from numpy.typing import ArrayLike

from primus_search.cost.laws.measured_correction import measured_over_law
from primus_search.values.candidates import Floats, Ints
from primus_search.values.machine.network import Network


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks, `stride` apart; columns or scalars."""

    size: Ints | int
    stride: Ints | int


@dataclass(frozen=True, slots=True)
class _Reach:
    """How groups lie over domains: how many domains, how many members in each, and what links they own.

    members     of a group; local  members per domain; domains  spanned
    is_group    1.0, or 0.0 for a group of one, which then costs nothing
    link_share  of the device's links that lead to members (mesh: one link per member)
    nic_bytes_per_s  line rate of one member's NIC share, after pods
    congestion  how much longer flows that cross every domain boundary at once take at this many domains
    """

    members: Floats
    local: Floats
    domains: Floats
    is_group: Floats
    is_remote: Floats
    link_share: Floats
    nic_bytes_per_s: Floats
    nic_hop_s: Floats
    congestion: Floats


def _reach(network: Network, group: Group) -> _Reach:
    size = np.asarray(group.size, dtype=np.int64)
    stride = np.asarray(group.stride, dtype=np.int64)
    per_domain = np.maximum(network.domain_size // stride, 1)
    domains = -(-size // per_domain)
    local = size / domains
    leaves_pod = size * stride > network.pod_size
    pod_hop_s = np.where(leaves_pod, network.pod_latency_s, 0.0)
    nic = np.where(
        leaves_pod,
        min(network.pod_bytes_per_s_per_gpu, network.nic_bytes_per_s_per_gpu),
        network.nic_bytes_per_s_per_gpu,
    )
    congestion = 1.0 + network.scale_loss * (np.log2(np.maximum(domains, 2)) - 1.0)
    return _Reach(
        members=size.astype(np.float64),
        local=local,
        domains=domains.astype(np.float64),
        is_group=(size > 1).astype(np.float64),
        is_remote=(domains > 1).astype(np.float64),
        link_share=link_share(network, local),
        nic_bytes_per_s=nic.astype(np.float64),
        nic_hop_s=network.nic_hop_latency_s + pod_hop_s,
        congestion=congestion,
    )


def link_share(network: Network, local: ArrayLike) -> Floats:
    """Share of a device's fast links that lead to the members of a group with `local` members in the domain.

    A switch gives all of them to any group; a full mesh gives one link per other member. At least one link, so that
    a group without neighbours divides nothing by zero.
    """
    members = np.asarray(local, dtype=np.float64)
    if network.topology == "switch":
        return np.ones_like(members)
    peers = max(network.domain_size - 1, 1)
    return np.clip(members - 1.0, 1.0, peers) / peers


def _link_ramp_bytes(network: Network, reach: _Reach) -> Floats:
    """Half-speed bytes of a group on the fast fabric: a ramp per link, so of fewer links in a mesh less."""
    return network.link_half_speed_bytes * reach.link_share


def _ramped_s(wire_bytes: Floats, bytes_per_s: Floats, half_speed_bytes: Floats | float) -> Floats:
    return (wire_bytes + np.sqrt(half_speed_bytes * wire_bytes)) / bytes_per_s


def _flow_s(network: Network, wire_bytes: Floats, reach: _Reach, *, congestion: Floats | float) -> Floats:
    """Seconds for `wire_bytes` to pass every member: the slowest hop counts, inside or between domains.

    Between domains all local members' NICs work together, since libraries lay one ring or tree per rail. In a mesh
    such a ring closes over the NICs and takes L - 1 of the links between L members where one that stays inside takes L,
    so the links hold L / (L - 1) as many: 357 GB/s of bus over two nodes of MI300X, 316 inside one.
    """
    link = network.link_bytes_per_s * network.ring_efficiency * reach.link_share
    link = link * (1.0 - network.pair_loss / np.maximum(reach.local, 2.0))
    if network.topology != "switch":
        link = link * np.where(reach.is_remote > 0.0, reach.local / np.maximum(reach.local - 1.0, 1.0), 1.0)
    nic = reach.local * reach.nic_bytes_per_s * network.nic_efficiency
    inside = _ramped_s(wire_bytes, link, _link_ramp_bytes(network, reach)) * (reach.local > 1)
    outside = _ramped_s(wire_bytes, nic / congestion, network.nic_half_speed_bytes * reach.local) * reach.is_remote
    return np.maximum(inside, outside)


def _ring_latency_s(network: Network, reach: _Reach) -> Floats:
    """Seconds for one byte to go once around a ring of all members, start-up excluded."""
    inner = reach.members - 1.0 - reach.is_remote * (reach.domains - 1.0)
    return inner * network.link_hop_latency_s + reach.is_remote * (reach.domains - 1.0) * reach.nic_hop_s


def _tree_latency_s(network: Network, reach: _Reach) -> Floats:
    """Seconds for one byte to climb a binary tree over the members of a domain, then over the domains."""
    inner = np.log2(reach.local) * network.link_hop_latency_s
    return inner + reach.is_remote * np.log2(reach.domains) * reach.nic_hop_s


def _start_s(network: Network, reach: _Reach) -> Floats:
    """Seconds a collective of no bytes takes before its first hop."""
    return network.link_latency_s + (network.nic_latency_s - network.link_latency_s) * reach.is_remote


Collective = Callable[[Network, ArrayLike, Group], Floats]


def _measured_first(kind: str, *, pairs: bool = False) -> Callable[[Collective], Collective]:
    """A law of a collective, corrected by the network's table of that kind for groups inside one domain.

    pairs  the table is of two ranks whatever the group: a send is between neighbours
    """

    def around(law: Collective) -> Collective:
        @wraps(law)
        def seconds(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
            modelled = law(network, message_bytes, group)
            table = network.tables.of(kind)
            if table is None:
                return modelled

            def alone(ranks: Floats, bytes_: Floats) -> Floats:
                return law(network, bytes_, Group(ranks.astype(np.int64), 1))

            ranks = 2 if pairs else group.size
            factor = measured_over_law(table, alone, ranks, message_bytes)
            return np.where(_reach(network, group).domains == 1.0, modelled * factor, modelled)

        return seconds

    return around


@_measured_first("all_gather")
def all_gather_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds of an all-gather whose gathered output has `message_bytes`; each rank starts with 1/g of it.

    Formula: latency + (g-1) hops + ramped (g-1)/g * bytes, at the slower of the fast links and the NICs in use.
    Source: ring all-gather; NCCL has no tree for it, so hops grow with g (NVIDIA/nccl#1218 sees the slope).
    """
    return _ring_pass_s(network, message_bytes, group)


@_measured_first("reduce_scatter")
def reduce_scatter_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds of a reduce-scatter whose input on every rank has `message_bytes`: an all-gather run backwards."""
    return _ring_pass_s(network, message_bytes, group)


def _ring_pass_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    reach = _reach(network, group)
    wire = np.asarray(message_bytes, dtype=np.float64) * (reach.members - 1.0) / reach.members
    flow = _flow_s(network, wire, reach, congestion=reach.congestion)
    return reach.is_group * (_start_s(network, reach) + _ring_latency_s(network, reach) + flow)


@_measured_first("all_reduce")
def all_reduce_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds of an all-reduce of a tensor of `message_bytes`: the best of five algorithms.

    ring           2(g-1) hops, 2(g-1)/g of the bytes past every member
    tree           up and down: 2 log2 hops, 2 x the bytes past every member
    one-shot       everyone sends everything to everyone: g-1 peers, (g-1) x the bytes
    in-network     the switch reduces (NVLS): one copy up, one down; inside a domain
    hierarchical   inside domains a ring or in-network, across them ring or tree on 1/local of the bytes per member
    """
    reach = _reach(network, group)
    bytes_ = np.asarray(message_bytes, dtype=np.float64)
    around, start = _ring_latency_s(network, reach), _start_s(network, reach)
    turns = 2.0 * (reach.members - 1.0) / reach.members
    ring = 2.0 * around + _flow_s(network, turns * bytes_, reach, congestion=reach.congestion)
    tree = 2.0 * _tree_latency_s(network, reach) + _flow_s(network, 2.0 * bytes_, reach, congestion=1.0)
    one_shot = around + _flow_s(network, (reach.members - 1.0) * bytes_, reach, congestion=1.0)
    stacked = _inside_all_reduce_s(network, bytes_, reach) + _across_all_reduce_s(network, bytes_, reach)
    best = np.minimum(np.minimum(ring, tree), np.minimum(one_shot, stacked))
    return reach.is_group * (start + best)


def _inside_all_reduce_s(network: Network, bytes_: Floats, reach: _Reach) -> Floats:
    """Seconds of the part of a hierarchical all-reduce inside domains: a ring, or the switch where it can reduce.

    In the switch each of g members reduces 1/g: it reads its part as a sum over all, so every member sends the whole
    tensor, and writes the result to all, so it sends 1/g more and receives as much: (1 + 1/g) of the bytes per link.
    Four, six, seven and eight H100 then agree on 307 to 309 GB/s (370, 440, 460 GB/s of bus: NVIDIA/nccl#1455; 480).
    """
    link = network.link_bytes_per_s * reach.link_share
    steps = reach.local - 1.0
    ring_rate = link * network.ring_efficiency * (1.0 - network.pair_loss / np.maximum(reach.local, 2.0))
    ring = _ramped_s(2.0 * bytes_ * steps / reach.local, ring_rate, _link_ramp_bytes(network, reach))
    inside = 2.0 * steps * network.link_hop_latency_s + ring
    if network.in_network_efficiency > 0.0:
        passed = bytes_ * (1.0 + 1.0 / reach.local)
        switched = _ramped_s(passed, link * network.in_network_efficiency, _link_ramp_bytes(network, reach))
        inside = np.minimum(inside, 2.0 * network.link_hop_latency_s + switched)
    return inside * (reach.local > 1)


def _across_all_reduce_s(network: Network, bytes_: Floats, reach: _Reach) -> Floats:
    """Seconds of the part of a hierarchical all-reduce between domains: each member reduces its 1/local."""
    nic = reach.nic_bytes_per_s * network.nic_efficiency
    mine, steps = bytes_ / reach.local, reach.domains - 1.0
    ring = 2.0 * steps * reach.nic_hop_s
    turns = 2.0 * steps / reach.domains
    ring = ring + _ramped_s(turns * mine, nic / reach.congestion, network.nic_half_speed_bytes)
    tree = 2.0 * np.log2(reach.domains) * reach.nic_hop_s + _ramped_s(2.0 * mine, nic, network.nic_half_speed_bytes)
    return reach.is_remote * np.minimum(ring, tree)


@_measured_first("all_to_all")
def all_to_all_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds of an all-to-all in which every rank holds `message_bytes`, its own share included.

    direct     every pair exchanges 1/g of the bytes; what stays in the domain takes the links, the rest the NICs
    railed     (PXN, hierarchical) local ranks first pass remote bytes to the rank on the right rail, so each NIC
               sends one message per domain instead of one per peer, for one more trip over the links

    Between domains many pairs send at once and keep a NIC busy from the start: no ramp there. Rail by rail they meet
    no crowd either (as DeepEP's: no congestion), but a pair does not spread over the ports of its NIC.
    """
    reach = _reach(network, group)
    share = np.asarray(message_bytes, dtype=np.float64) / reach.members
    near, far = share * (reach.local - 1.0), share * (reach.members - reach.local)
    link = network.link_bytes_per_s * network.all_to_all_efficiency * reach.link_share
    port = network.nic_port_bytes_per_s or np.inf
    nic = np.minimum(reach.nic_bytes_per_s, port) * network.nic_all_to_all_efficiency
    out = far / nic
    near_hops = (reach.local - 1.0) * network.link_hop_latency_s
    ramp = _link_ramp_bytes(network, reach)
    direct = _ramped_s(near, link, ramp) + out
    direct = direct + (reach.members - reach.local) * reach.nic_hop_s
    railed = _ramped_s(near + far, link, ramp) + out + (reach.domains - 1.0) * reach.nic_hop_s
    return reach.is_group * (_start_s(network, reach) + near_hops + np.minimum(direct, railed))


def dispatch_s(
    network: Network, token_bytes: ArrayLike, group: Group, *, destinations: Callable[[Floats], Floats]
) -> Floats:
    """Seconds of a fused expert dispatch (or combine) that sends a token once per node and once per rank in need.

    token_bytes   all tokens of one rank, once
    destinations  mean number of parts a token needs when the experts lie in that many parts

    Formula: max(NIC, links) + latency, since the kernels forward while they receive, in chunks of fixed size (no ramp
    on the NIC)
        NIC    token_bytes * destinations(domains) * (domains-1)/domains, over one port: a rank sends to its peers
        links  token_bytes * destinations(members) * (local-1)/local: every copy reaches its rank over the links of
               the node it entered
    Source: what travels, and which rates are reached: DeepEP README (V1), rates per accelerator in `hardware/*.yaml`.
    """
    reach = _reach(network, group)
    bytes_ = np.asarray(token_bytes, dtype=np.float64)
    far = bytes_ * destinations(reach.domains) * (reach.domains - 1.0) / reach.domains
    near = bytes_ * destinations(reach.members) * (reach.local - 1.0) / reach.local
    nic = np.minimum(reach.nic_bytes_per_s, network.nic_port_bytes_per_s or np.inf) * network.nic_dispatch_efficiency
    link = network.link_bytes_per_s * network.dispatch_efficiency * reach.link_share
    wire = np.maximum(far / nic, _ramped_s(near, link, _link_ramp_bytes(network, reach)))
    far_hop_s = np.maximum(reach.nic_hop_s, network.nic_dispatch_hop_latency_s)
    hops = (reach.local - 1.0) * network.link_hop_latency_s + (reach.domains - 1.0) * far_hop_s
    return reach.is_group * (_start_s(network, reach) + hops + wire)


@_measured_first("send", pairs=True)
def send_s(network: Network, message_bytes: ArrayLike, group: Group) -> Floats:
    """Seconds one pipeline stage needs to send `message_bytes` to the next, over the slowest hop of the group.

    A hop stays on the fast links only where the whole group lies inside a domain; in a mesh a pair has one link.
    Between domains chunks follow each other at the NIC's rate, without the ramp of a collective.
    """
    reach = _reach(network, group)
    bytes_ = np.asarray(message_bytes, dtype=np.float64)
    share = link_share(network, 2.0)
    link = network.link_bytes_per_s * network.p2p_efficiency * share
    near = network.link_latency_s + _ramped_s(bytes_, link, network.link_half_speed_bytes * share)
    nic = reach.nic_bytes_per_s * network.nic_efficiency
    far = network.nic_latency_s + reach.nic_hop_s + bytes_ / nic
    return reach.is_group * np.where(reach.domains > 1, far, near)
