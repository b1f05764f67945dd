"""Adds to a layer's work the traffic that its own compute does not hide; and gives the ends theirs.

The terms themselves are one per file (`tensor_parallel`, `context_parallel`, `expert_parallel`, `sharded_weights`,
`host_copies`); here they meet the compute they may hide behind. A second of compute hides one second of traffic once:
tensor-parallel traffic has the GEMMs, ring attention the core of attention, dispatch the shared experts and the rest of
the layer, weight gathers the whole layer.
"""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.units import BF16_BYTES, FP32_BYTES
from primus_search.cost.laws.collectives import Group, all_gather_s, reduce_scatter_s, send_s
from primus_search.cost.memory.parameters import layer_dense_params, layer_expert_params, trained_shares
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import recompute_s
from primus_search.cost.parts.operations import Module, Part, Pass, Work
from primus_search.cost.traffic.comm_table import LayerTraffic, comm
from primus_search.cost.traffic.context_parallel import context_parallel, either, heads_of_scans, selected_from
from primus_search.cost.traffic.expert_parallel import expert_parallel
from primus_search.cost.traffic.host_copies import host_copies
from primus_search.cost.traffic.sharded_weights import kept_shard, sharded_layer
from primus_search.cost.traffic.tensor_parallel import adapter_exchange, tensor_parallel
from primus_search.space.memo import in_order
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.model import Attention, CompressedAttention, LatentMixer, LayerKind

Found = list[tuple[Part, LayerTraffic]]
"""Traffic by the part of the step that it counts to."""

_INSIDE = (Part.TENSOR_COMM, Part.CONTEXT_COMM, Part.EXPERT_COMM)
"""Parts that `add_inside` adds to: copies to the host hide behind compute alone."""


def add_inside(work: Work, kind: LayerKind, job: Job, c: Candidates) -> Found:
    """Adds to a layer's work the traffic between its kernels, which recompute of a layer repeats; returns it."""
    found: Found = []
    module_s = work.forward_module_s
    if np.any(c.tp > 1):
        gemms_s = module_s[Module.LINEAR] + module_s[Module.MLP]
        tensor = tensor_parallel(job, kind, c, gemms_s)
        found.append((Part.TENSOR_COMM, tensor))
        found += [(Part.TENSOR_COMM, adapter_exchange(job, kind, c))] if job.model.adapters else []
    if np.any(c.cp > 1):
        core_s = module_s[Module.CORE]
        context = mixer_context(job, kind, c, forward_s=core_s, backward_s=work.core_backward_s)
        found.append((Part.CONTEXT_COMM, context))
    if kind.is_moe and np.any(c.ep * c.etp > 1):
        expert = expert_parallel(
            job,
            c,
            shared_expert_s=module_s[Module.MLP],
            forward_s=work.pass_s(Pass.FORWARD),
            backward_s=work.gradients_s,
        )
        found.append((Part.EXPERT_COMM, expert))
    for part, traffic in found:
        add_exposed(work, part, traffic)
        module = Module.EXPERT_COMM if part is Part.EXPERT_COMM else Module.COMM
        work.forward_module_s[module] += traffic.forward.exposed_s
    return found


def add_beside(work: Work, kind: LayerKind, job: Job, c: Candidates) -> Found:
    """Adds what runs beside a whole layer and depends on what of it is recomputed: copies to the host, then gathers of
    sharded weights and scatters of their gradients, which also hide behind what recompute repeats; returns them."""
    found: Found = []
    if c.offloads_inputs.any():
        inside = [in_order(work.seconds[which, part] for part in _INSIDE) for which in Pass]
        forward_s = work.pass_s(Pass.FORWARD) - inside[Pass.FORWARD]
        backward_s = work.gradients_s - inside[Pass.INPUT_GRAD] - inside[Pass.WEIGHT_GRAD]
        copies = host_copies(job, kind, c, forward_s=forward_s, backward_s=backward_s)
        add_exposed(work, Part.HOST_COPIES, copies)
        found.append((Part.HOST_COPIES, copies))
    if np.any(job.gathers_weights(c)):
        s = Share.of(job, c)
        trained_dense, trained_experts = trained_shares(job.model, kind, s)
        weights = sharded_layer(
            job,
            c,
            job.degrees(c),
            dense_params=layer_dense_params(job.model, kind, s),
            expert_params=layer_expert_params(job.model, s) if kind.is_moe else 0.0,
            trained_dense=trained_dense,
            trained_experts=trained_experts,
            forward_s=work.pass_s(Pass.FORWARD),
            backward_s=work.gradients_s + recompute_s(work.forward_module_s, c.recompute),
        )
        add_exposed(work, Part.SHARD_COMM, weights)
        found.append((Part.SHARD_COMM, weights))
    return found


def add_exposed(work: Work, part: Part, traffic: LayerTraffic) -> None:
    """Add what shows of some traffic to the passes of a piece."""
    for which, one in traffic.passes:
        work.seconds[which, part] += one.exposed_s


def sharded_ends(job: Job, c: Candidates) -> tuple[LayerTraffic, ...]:
    """Weight gathers and gradient scatters of embedding and head; none where the stack or no row shards them.

    FSDP2's root module holds both: gathered before the first layer and kept until its gradients are scattered, with
    nothing to hide behind (torch/distributed/fsdp/_fully_shard: the root does not reshard after forward).
    """
    model = job.model
    if not job.stack.sharding.gathers_ends or not np.any(job.gathers_weights(c)):
        return ()
    is_trained = model.adapters is None
    ends = (model.input_params, model.head_params)
    return tuple(kept_shard(job, c, params / c.tp, is_trained=is_trained) for params in ends)


def end_traffic_s(job: Job, c: Candidates) -> Floats:
    """Seconds of one collective of the residual stream over tensor parallel ranks: scatter of embedded tokens, gather
    before the head, and their mirror images in backward."""
    if not np.any(c.tp > 1):
        return np.zeros(len(c))
    s = Share.of(job, c)
    group = Group(c.tp, np.ones_like(c.tp))
    message = s.tokens * job.model.hidden * BF16_BYTES
    gather = all_gather_s(job.network, message, group)
    scatter = reduce_scatter_s(job.network, message, group)
    return np.maximum(gather, scatter) / job.stack.efficiencies.network_efficiency


def mixer_context(
    job: Job, kind: LayerKind, c: Candidates, *, forward_s: ArrayLike, backward_s: ArrayLike
) -> LayerTraffic:
    """Context-parallel traffic of one layer and micro-batch, given the seconds of attention it may hide behind.

    A scan whose launchers exchange tokens for heads does where they divide; another passes its state from rank to rank
    in order, cp - 1 sends of H K V FP32 numbers per sequence, and back in backward; the ranks wait for it. Attention
    passes keys and values, or gathers those that an indexer selects from.
    Source: sequence-parallel Mamba-2 (arXiv:2405.21060) section 8.2; the same for linear attention (arXiv:2404.02882).
    """
    core = None if kind.mixer is None else kind.mixer.core(job.model.hidden)
    if kind.mixer is not None and core and core.gathered:
        return selected_from(job, kind.mixer, c)
    if kind.mixer is None or isinstance(kind.mixer, Attention | LatentMixer | CompressedAttention):
        seen, _ = job.layer(kind)
        return context_parallel(seen, c, forward_s=forward_s, backward_s=backward_s)
    state = c.micro_batch_size * FP32_BYTES * kind.mixer.core(job.model.hidden).state / c.tp
    steps = (c.cp - 1.0) * (state > 0)
    one = send_s(job.network, state, Group(c.cp, c.tp)) / job.stack.efficiencies.network_efficiency
    waiting = np.asarray(steps * one)
    passed = LayerTraffic(
        forward=comm("states of scans forward", state, steps, waiting, waiting),
        backward=comm("states of scans backward", state, steps, waiting, waiting),
    )
    if core is None or not core.exchanged:
        return passed
    limits = (p.limit for p in kind.mixer.projections(job.model.hidden) if p.limit)
    deals_heads = np.logical_and.reduce([heads % (c.tp * c.cp) == 0 for heads in (kind.mixer.num_heads, *limits)])
    return either(deals_heads, heads_of_scans(job, kind.mixer, c), passed)
