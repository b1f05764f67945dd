"""The software stack: which kernels, fusions, overlaps and overheads a training framework brings to a device.

A stack is an input like the hardware: `hardware/stacks/*.yaml`, one file per framework generation, every value with
its source or the date of its fit. Shares lie in 0..1: 0 hides nothing, 1 hides all that there is time to hide behind.

    stack.efficiencies.gemm_efficiency                 one number
    with_numbers(stack, {"gemm_efficiency": 0.9})      a copy with some numbers replaced

One class per group, whose docstring says what each field means. Formulas of kept memory are in `cost/memory`.
"""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Protocol

from primus_search.values.candidates import Candidates, Floats
from primus_search.values.machine.kept_memory import KeptMemory
from primus_search.values.model import Model

UNFUSED = "unfused"
"""The family of attention kernels that stores its scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Group `kernels` of a stack file.

    attention_kernel  Kernel family of `laws.attention`: unfused, flash1 to flash3, cudnn, cudnn_fp8, aiter, ck.
    has_fused_norm  Norm (and its FP8 cast) in one kernel; otherwise one pass over memory per operation.
    latent_attention_kernel  Kernel family of latent attention, whose query and value heads differ in size; empty:
        `attention_kernel`.
    has_fused_softmax  Mask and softmax of scores that no flash kernel computes in one kernel; otherwise in FP32, one by
        one.
    has_fused_activation  Gated activation in one kernel.
    has_fused_rope  Rotary embedding in one kernel for queries and keys.
    has_fused_latent_rope  The same of latent attention, whose heads are rotated in part.
    has_fused_residual  Bias, dropout and residual add in one kernel.
    has_fused_loss  Cross-entropy fused with its gradient, unless the candidate says otherwise.
    has_fused_optimizer  One multi-tensor optimizer kernel.
    has_fused_fp8_cast  A norm takes part in the cast of its output to FP8 (docs/cost/fp8.md).
    has_fused_activation_cast  The activation between the two products of an MLP takes part in the cast of its output to
        FP8.
    has_gradient_accumulation_fusion  Weight-gradient GEMM adds into the main gradient itself.
    has_dropout  Hidden dropout is applied: its masks behind each block are kept.
    has_score_dropout  Attention dropout is applied to stored scores.
    """

    attention_kernel: str
    has_fused_norm: bool
    latent_attention_kernel: str
    has_fused_softmax: bool
    has_fused_activation: bool
    has_fused_rope: bool
    has_fused_latent_rope: bool
    has_fused_residual: bool
    has_fused_loss: bool
    has_fused_optimizer: bool
    has_fused_fp8_cast: bool
    has_fused_activation_cast: bool
    has_gradient_accumulation_fusion: bool
    has_dropout: bool
    has_score_dropout: bool = False  # as of stacks of earlier releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Group `precision` of a stack file.

    gradient_bytes  Bytes per parameter of the main gradient, which accumulates over micro-batches.
    gradient_comm_bytes  Bytes per parameter of the gradient as reduced between replicas.
    fp16_gradient_bytes  `gradient_bytes` and `gradient_comm_bytes` of a run in FP16; 0: as in BF16.
    master_weight_bytes  Bytes per parameter of the optimizer's copy of the weights; 0 where the model's own weights are
        updated.
    fused_master_bytes  Bytes per parameter of masters that the kernel of the optimizer keeps beside that copy.
    moment_bytes  Bytes per parameter of each of the two Adam moments.
    keeps_hosted_masters  Masters of parameters that the host updates stay on the device, moments do not.
    has_fp8_param_gather  Weights travel as FP8 when the recipe is FP8.
    caches_fp8_weights  Weights are cast once per step, not once per micro-batch.
    has_fp8_tensor_gather  Tensor-parallel gathers move FP8 activations when the recipe is FP8.
    has_fp8_dispatch  Tokens travel to their experts as FP8 when the recipe is FP8; they come back as BF16.
    """

    gradient_bytes: float
    gradient_comm_bytes: float
    fp16_gradient_bytes: float
    master_weight_bytes: float
    moment_bytes: float
    has_fp8_param_gather: bool
    caches_fp8_weights: bool
    has_fp8_tensor_gather: bool
    has_fp8_dispatch: bool
    keeps_hosted_masters: bool = True  # as every stack of earlier releases
    fused_master_bytes: float = 0.0  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Group `communication` of a stack file.

    cp_comm  Context parallel attention: ring of point-to-point, all-to-all over heads, or all-gather.
    tensor_overlap  Share of tensor-parallel traffic hidden behind its GEMM.
    switched_tensor_overlap  `tensor_overlap` of a run that switches on user-buffer or asynchronous tensor parallelism.
    tensor_async_overlap  Share of the traffic that tensor parallelism starts beside a backward GEMM and that it hides.
    copies_gathered  What is gathered or scattered along the sequence is rearranged by a copy: torch's collectives join
        along the first dimension, the batch, and no compiler joins the copy to what comes next.
    context_overlap  Share of ring attention's traffic hidden behind attention.
    pipeline_blocking  Share of a pipeline hop during which the sending rank computes nothing (0: asynchronous).
    """

    cp_comm: Literal["p2p", "a2a", "all_gather"]
    tensor_overlap: float
    switched_tensor_overlap: float
    tensor_async_overlap: float
    copies_gathered: bool
    context_overlap: float
    pipeline_blocking: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Group `experts` of a stack file.

    has_fused_router  Top-k, softmax and auxiliary loss of the router fused.
    permutation  Permutation of tokens to experts and back: one fused kernel; separate gather, weighting and scatter; or
        indexed as torch's grouped experts are, with padded groups or (since 2026-04) without (`cost.parts.routing`).
    gathers_before_experts  Ranks of a split expert (etp > 1) gather tokens before routing and all dispatch the same;
        otherwise each dispatches its own and they gather what arrived.
    has_product_per_expert  A grouped linear launches a product and its casts expert by expert, on several streams.
    has_cutlass_products  Grouped BF16 products are torch's (CUTLASS): at `cutlass_factor` of a device that has one.
    expert_gemm_share  Rate of the framework's grouped BF16 products over a dense one of the same tiles; 0: the device's
        own grouped kernels.
    expert_fp8_gemm_share  Rate of its grouped FP8 products over a dense one, casts apart; 0: the device's own grouped
        kernels.
    has_fused_graphed_experts  Under a graph of the whole step gated MXFP8 experts are one kernel per product, which
        writes the activation (backward: its gradient) and the casts of the next product as well.
    natural_spread  `Workload.routing_spread` where routing is not balanced by force.
    ragged_exchange_share  Rate of an all-to-all of unequal pieces that leaves a domain, over one of equal pieces.
    expert_overlap  Share of dispatch and combine hidden by batch-level overlap (0 unless switched on).
    batch_expert_overlap  `expert_overlap` of a run that switches batch-level overlap on.
    shared_expert_overlap  Shared experts run while tokens travel.
    """

    has_fused_router: bool
    permutation: Literal["fused", "separate", "indexed", "indexed_unpadded"]
    gathers_before_experts: bool
    has_product_per_expert: bool
    has_cutlass_products: bool = False
    expert_gemm_share: float
    expert_fp8_gemm_share: float
    has_fused_graphed_experts: bool
    natural_spread: float = 0.0
    ragged_exchange_share: float
    expert_overlap: float
    batch_expert_overlap: float
    shared_expert_overlap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTraffic:
    """Group `sharding` of a stack file.

    shard_overlap  Share of FSDP gathers and scatters that prefetch hides.
    listed_params  Parameters of a layer that travel one by one, into or out of a list of one tensor per rank, each of
        which the host copies by itself; 0: whole layers, as one buffer.
    reuse_params  Parameters within which gathered weights stay until they are used again; what recompute used is freed
        where more pass before its backward (twice what follows in the layer), and gathered once more. 0: all stay.
    gathers_ends  Embedding and head are gathered once and their gradients scattered, every micro-batch.
    gathers_once  Under a pipeline FSDP2 and HSDP gather weights once a step and keep them, and gradients are summed
        whole until its last micro-batch.
    shards_optimizer_across  HSDP shards the optimizer's state over all replicas, weights and gradients inside groups.
    optimizer_copies  Copies of the optimizer's state among the replicas of ZeRO-1, and of gradients under ZeRO-2, each
        sharded over its part of them.
    gradient_bucket_params  Parameters whose gradients travel together, at least; the last bucket of a step hides behind
        nothing.
    bucket_params_per_rank  The same for each data-parallel rank, where a bucket grows with their number.
    gradient_buckets  Buckets that a rank's parameters are divided into; 0: as many as fill with so many parameters.
    gradient_overlap  Share of gradient reduction hidden where the candidate overlaps it.
    param_gather_overlap  Share of the distributed optimizer's weight gather hidden behind the next forward.
    broadcast_s  Time of each broadcast where owners of ZeRO-1 shards send their weights one after the other; 0:
        all-gather.
    """

    shard_overlap: float
    listed_params: float = 0.0  # stacks of earlier releases have no such number
    reuse_params: float = 0.0  # nor this
    gathers_ends: bool
    gathers_once: bool = False  # nor this
    shards_optimizer_across: bool
    gradient_bucket_params: float
    bucket_params_per_rank: float = 0.0  # nor this
    gradient_buckets: float = 0.0  # nor this
    optimizer_copies: float = 1.0  # nor this
    gradient_overlap: float
    param_gather_overlap: float
    broadcast_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverheads:
    """Group `host` of a stack file.

    host_launch_s  Host time to launch one kernel; a layer cannot run faster than its launches.
    sharded_launch_factor  `host_launch_s` under tensor parallelism over it without: eager software whose tensors are
        DTensors dispatches each operation in Python.
    host_race_power  How sharply the slower of host and device sets the time of a pass (docs/cost/layer.md): 1 adds
        both, 0 stands for the longer.
    host_moe_s  Host time of router, dispatcher and expert bookkeeping of one MoE layer, per direction.
    host_dispatch_factor  `host_moe_s` with a fused dispatcher (DeepEP, HybridEP) over it with an all-to-all.
    host_overlap_factor  `host_moe_s` under an FP8 recipe, over it without, while two micro-batches run interleaved to
        hide their dispatch (the four nodes of a layer enter the recipe's context one by one: docs/cost/layer.md).
    host_expert_shard_s  Host time to gather, release and reduce one sharded parameter of a local expert (two each) in
        Megatron's own FSDP and HSDP, per direction.
    pass_s  Host time per pass of a virtual stage of a pipeline: Python, posting and waiting for sends.
    cuda_graph  Launches replayed as a graph: none, router (and preparation), partial (attention, too), full.
    router_graph_share  Share of a layer's launches that a graph of router and preparation replays.
    partial_graph_share  Share of a layer's launches that a graph of attention, norms, residuals and router replays.
    host_syncs_per_moe_layer  Times the host waits for token counts in one MoE layer; each sync-free stage removes one.
    host_sync_s  Time of one such wait: the drained queue of launches has to fill again.
    step_s  Fixed time per optimizer step: data, logging, clipping, Python.
    straggler_per_doubling  Growth of the step per doubling of the number of nodes.
    """

    host_launch_s: float
    sharded_launch_factor: float = 1.0  # stacks of earlier releases have no such number
    host_race_power: float
    host_moe_s: float
    host_dispatch_factor: float
    host_overlap_factor: float
    host_expert_shard_s: float
    pass_s: float
    cuda_graph: Literal["none", "router", "partial", "full"]
    router_graph_share: float
    partial_graph_share: float
    host_syncs_per_moe_layer: float
    host_sync_s: float
    step_s: float
    straggler_per_doubling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Group `efficiencies` of a stack file.

    gemm_efficiency  Of dense matrix products.
    attention_efficiency  Of attention kernels.
    grouped_gemm_efficiency  Of grouped matrix products of experts.
    memory_efficiency  Of operations bound by memory bandwidth.
    fp8_efficiency  Of FP8 matrix products, beside `gemm_efficiency`.
    network_efficiency  Of collectives between nodes.
    offload_efficiency  Of all kernels of layers while some wait on the host (`offload_layers`).
    scan_efficiency  Share of the device's BF16 peak that chunked scans reach (Mamba-2, linear attention, delta rule).
    sparse_attention_efficiency  Of attention on keys that an indexer selected, over attention on the same number of
        keys in a row.
    indexer_efficiency  Share of the device's BF16 peak that an indexer's scores of all earlier tokens reach.
    """

    gemm_efficiency: float
    attention_efficiency: float
    grouped_gemm_efficiency: float
    memory_efficiency: float
    fp8_efficiency: float
    network_efficiency: float
    offload_efficiency: float
    scan_efficiency: float
    sparse_attention_efficiency: float
    indexer_efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Where measured / projected figures lie: 5 % of left-out runs below `low`, 5 % above `high`.

    low  5th percentile of measured / projected.
    high  95th percentile of measured / projected.
    runs  Left-out runs that are the stack's own, near-duplicates included.
    stacks  Of assumed software: the likeliest stacks of the mixture that the band is of, with their weights.
    """

    low: float
    high: float
    runs: float
    stacks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """What a run that a stack was learned from says of configurations near it.

    regime  Model and device that it was of.
    place  Where its configuration lies (`cost.confidence.uncertainty.places_of`).
    ratio  Factor on the expected rate of that configuration; of others the power of it that their likeness is.
    """

    regime: str
    place: tuple[float, ...]
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteErrors:
    """log(measured / projected) on a cluster that no fit has seen:

        log(mean_ratio) + site + group + configuration + stack + device + exchange + host

    mean_ratio  Geometric mean of measured / projected over publishers that are neither the device's vendor nor the
        software's author.
    site  Standard deviation of what all runs of one publisher on one cluster share.
    group  Standard deviation of what all runs of one model on one device share there.
    configuration  Standard deviation of what one configuration has of its own; two rows of a ranking differ by this
        alone.
    stack_share  Standard deviation that a named stack brings along, over half its 90 % band in logarithms.
    software  Standard deviation of a mixture over stacks that the software itself has no part in.
    device  Standard deviation on a device whose rate no run of such a family identified.
    exchange  Standard deviation of a step that is nothing but exposed exchanges.
    transport  The same beside it where they travel over a transport that no run of a fit used (`NAME@efa`).
    host  Standard deviation of a step that is nothing but launches and fixed host time.
    quantile  Half a 90 % band over the standard deviation, of software that has a file or that words point to.
    quantile_unnamed  The same of software of which nothing but a configuration is known.
    memory_low  5th percentile of measured / projected bytes that have to fit.
    memory_high  95th percentile of measured / projected bytes that have to fit.
    new_families  Families of models that no run identified the rate of the cluster's device for.
    """

    mean_ratio: float
    site: float
    group: float
    configuration: float
    stack_share: float
    software: float
    device: float
    exchange: float
    transport: float = 0.0  # files of earlier releases have none
    host: float
    quantile: float
    quantile_unnamed: float = 0.0  # files of earlier releases have none
    memory_low: float
    memory_high: float
    new_families: tuple[str, ...] = ()

    def of(self, stack: "Stack") -> "SiteErrors":
        """With the quantile of what is known of the software."""
        is_unnamed = stack.is_assumed and not stack.has_words
        return replace(self, quantile=max(self.quantile, self.quantile_unnamed)) if is_unnamed else self


class MeasuredSwitches(Protocol):
    """Which switches measured runs had on together, and how much of other gains to expect."""

    def measured_part(self, device: str, model: Model, table: Candidates) -> Candidates:
        """The table with switches as in the nearest combination that was measured."""
        ...

    def expected_share(self, model: Model, step_s: Floats, measured_part_s: Floats) -> Floats:
        """Expected over projected rate of rows, from their step and that of their measured part, in seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One framework release on one vendor's libraries. Every value is sourced or fitted, with its date, in YAML.

    Names of fields are unique over all groups, so that `gemm_efficiency` stands for `efficiencies.gemm_efficiency`
    wherever a user names a number (`--set stack.gemm_efficiency=0.9`).

    errors  Error bands by regime (`moe/sm100/fp8`) and, for unseen regimes, by family, from runs left out of the fit;
        by family and of peaks (memory) where this stack was assumed and another one ran.
    own_runs  Of a learned stack: the runs that it was learned from, by their names.
    is_assumed  The stack of the run is not known and this one stands in for it, which widens every band.
    has_words  Where it is assumed: words of the run point to it, and not its configuration alone.
    variant  Which of the variants of its file this is; empty: the file as it stands. Fits and error bands are of the
        name.
    varied  The fields in which the variant differs from the file, or that a learned stack's runs had otherwise, with
        the values.
    runs_file  Path of the site's own runs that `learn` wrote beside the stack's file; empty where there are none.
    measured_switches  What expected rates rest on; the stacks of a space carry it to wherever candidates are priced.
    """

    name: str
    kernels: Kernels
    precision: Precision
    communication: Communication
    experts: ExpertLayers
    sharding: ReplicaTraffic
    host: HostOverheads
    memory: KeptMemory
    efficiencies: Efficiencies

    errors: dict[str, ErrorBand] = field(default_factory=dict, hash=False)
    own_runs: dict[str, OwnRun] = field(default_factory=dict, hash=False)
    is_assumed: bool = False
    has_words: bool = False
    variant: str = ""
    varied: Mapping[str, Any] = field(default_factory=dict, hash=False)
    runs_file: str = field(default="", compare=False, repr=False)
    measured_switches: MeasuredSwitches | None = field(default=None, compare=False, repr=False)

    @property
    def reference(self) -> str:
        """What names it in a space file: `torchtitan`, `torchtitan@2025`."""
        return f"{self.name}@{self.variant}" if self.variant else self.name

    @property
    def title(self) -> str:
        """Its name for a reader, marked where it was assumed."""
        return f"{self.reference} (assumed)" if self.is_assumed else self.reference

    def __post_init__(self) -> None:
        traffic, replicas = self.communication, self.sharding
        shares: tuple[float, ...] = (traffic.tensor_overlap, traffic.context_overlap, self.experts.expert_overlap)
        shares += (traffic.switched_tensor_overlap, self.experts.batch_expert_overlap, replicas.shard_overlap)
        shares += (traffic.tensor_async_overlap, traffic.pipeline_blocking)
        shares += (replicas.gradient_overlap, replicas.param_gather_overlap)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(f"stack {self.name!r}: every overlap is a share in 0..1")


def _groups() -> dict[str, type]:
    """Group -> its dataclass."""
    hints = typing.get_type_hints(Stack)
    return {f.name: hints[f.name] for f in fields(Stack) if is_dataclass(hints[f.name])}


GROUPS: Mapping[str, type] = _groups()
"""Every group of a stack file -> its dataclass."""

GROUP_OF: Mapping[str, str] = {f.name: group for group, cls in GROUPS.items() for f in fields(cls)}
"""Every number or habit of a stack -> the group that it stands in."""


def with_numbers(stack: Stack, numbers: Mapping[str, Any]) -> Stack:
    """The stack with some numbers or switches replaced, each given by the name of its field (`gemm_efficiency`).

    Raises KeyError for a name that is no field of a group, ValueError for an overlap outside 0..1.
    """
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in numbers.items():
        by_group.setdefault(GROUP_OF[name], {})[name] = value
    changed = {group: replace(stack.__getattribute__(group), **values) for group, values in by_group.items()}
    return replace(stack, **changed)


def number_of(stack: Stack, name: str) -> Any:
    """One number or switch of a stack by the name of its field. Raises KeyError for a name that is no field."""
    return stack.__getattribute__(GROUP_OF[name]).__getattribute__(name)
