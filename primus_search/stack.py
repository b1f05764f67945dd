"""The software stack: which kernels, fusions, overlaps and overheads a training framework brings to a device.

A stack is an input like the hardware: `hardware/stacks/*.yaml`, one file per framework generation, every value with
its source or the date of its fit. Shares lie in 0..1: 0 hides nothing, 1 hides all that there is time to hide behind.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMemory:
    """What a framework keeps on the device beyond what the arithmetic needs; formulas are in `cost/memory`.

    weight_bytes            resident weight (2 beside FP32 masters, 4 where weights are the masters)
    element_bytes           an activation element, and a weight or gradient in flight (4 where trained in FP32)
    fused_logit_bytes       bytes per logit alive at the worst moment of head and loss with a fused loss
    unfused_logit_bytes     likewise with separate softmax and log: BF16 logits, FP32 copies, their gradient
    split_logit_bytes       unfused_logit_bytes where the vocabulary is split over tensor-parallel ranks; 0: the same
    split_fused_logit_bytes fused_logit_bytes likewise
    loss_chunks             pieces of a micro-batch that head and loss run through one after the other, forward and
                            backward, so that logits of one piece exist at a time; 1: all at once
    score_bytes             bytes kept per attention score without a flash kernel: softmax in BF16 (2), or in FP32 and
                            its BF16 cast (6)
    saves_fp8_inputs        under an FP8 recipe a linear keeps its input in one byte; otherwise in BF16
    keeps_fused_qkv         values stay a view of the joint QKV product, which keeps it alive beside rotated copies
    caches_dummy_gradients  one weight-gradient placeholder per distinct linear shape lives for the whole run (TE)
    expert_copies           permuted copies of the routed tokens kept for backward beyond the expert input, all-to-all
    deepep_expert_copies    likewise with DeepEP
    has_room_for_every_row  without DeepEP a device has room for every token of its expert-parallel group at its experts
    latent_kv_padding       values are padded to the query/key head size for MLA attention
    sharded_gradient_bytes  main gradient under FSDP, which is not the buffer of the distributed optimizer
    shard_gather_layers     layers whose gathered weights FSDP holds at once (current and prefetched)
    shard_gradient_bytes    bytes per parameter of unreduced gradients while FSDP reduces a layer
    shard_gradient_layers   layers whose unreduced gradients are held at once
    deepep_buffer_copies    copies of the tokens a device routes that DeepEP's communication buffers have room for
    group_buffer_copies     copies of the tokens of every rank of an expert group that HybridEP's buffers have room for;
                            they take the place of DeepEP's (0: DeepEP)
    offloaded_modules       modules of every layer whose inputs wait on the host (`cost.memory.activations.INPUTS`)
    recomputes_norms        a compiled backward makes outputs of norms again from their inputs, which are kept anyway
    hides_expert_layers     modules of a layer with experts are compiled inside its checkpoint, which then sees none of
                            their operations: selective checkpointing by operation keeps the layer's input alone
    activation_share        allocator slack: reserved but unallocated bytes per allocated byte that comes and goes
    static_share            likewise per byte of weights, gradients and optimizer state
    tight_slack             share of that slack that stays when the device is full and the allocator frees its cache
    fixed_bytes             workspaces that do not grow with anything
    peaks_seen              published peaks that this section was compared with; 0: none, so that it is doubtful
    driver_bytes            what the driver shows beyond torch, the device's context and its communicators
    device_share            share of the device that the framework's allocator may take at most: XLA's pool; 1: all that
                            context and communicators leave
    """

    weight_bytes: float = 2.0
    element_bytes: float = 2.0
    fused_logit_bytes: float = 2.0
    unfused_logit_bytes: float = 10.0
    loss_chunks: float = 1.0
    split_logit_bytes: float = 0.0
    split_fused_logit_bytes: float = 0.0
    score_bytes: float = 2.0
    saves_fp8_inputs: bool = True
    keeps_fused_qkv: bool = True
    caches_dummy_gradients: bool = True
    expert_copies: float = 1.0
    deepep_expert_copies: float = 0.0
    has_room_for_every_row: bool = False
    latent_kv_padding: bool = False
    sharded_gradient_bytes: float = 4.0
    shard_gather_layers: float = 2.0
    shard_gradient_bytes: float = 6.0
    shard_gradient_layers: float = 2.0
    deepep_buffer_copies: float = 4.0
    group_buffer_copies: float = 0.0
    offloaded_modules: tuple[str, ...] = ()
    recomputes_norms: bool = False
    hides_expert_layers: bool = False
    activation_share: float = 0.0
    static_share: float = 0.0
    tight_slack: float = 0.1
    fixed_bytes: float = 0.0
    peaks_seen: float = 0.0
    driver_bytes: float = 0.0
    device_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Where measured / projected figures lie: 5 % of left-out runs below `low`, 5 % above `high`.

    runs     its own runs among them, near-duplicates included
    """

    low: float
    high: float
    runs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One framework release on one vendor's libraries. Every value is sourced or fitted, with its date, in YAML.

    Kernels
    attention_kernel        kernel family of `cost.attention`: unfused, flash1 to flash3, cudnn, cudnn_fp8, aiter, ck
    has_fused_norm          norm (and its FP8 cast) in one kernel; otherwise one pass over memory per operation
    has_fused_activation    gated activation in one kernel
    has_fused_rope          rotary embedding in one kernel for queries and keys
    has_fused_residual      bias, dropout and residual add in one kernel
    has_fused_loss          cross-entropy fused with its gradient, unless the candidate says otherwise
    has_fused_router        top-k, softmax and auxiliary loss of the router fused
    permutation             of tokens to experts and back: one fused kernel; separate gather, weighting and scatter; or
                            indexed as torch's grouped experts are (`cost.routing`)
    gathers_before_experts  ranks of a split expert (etp > 1) gather tokens before routing and all dispatch the same;
                            otherwise each dispatches its own and they gather what arrived
    has_product_per_expert  a grouped linear launches a product and its casts expert by expert, on several streams
    expert_gemm_share       rate of the framework's grouped BF16 products over a dense one of the same tiles; 0: the
                            device's own grouped kernels
    expert_fp8_gemm_share   likewise of FP8 products, casts apart
    has_fused_graphed_experts  under a graph of the whole step gated MXFP8 experts are one kernel per product, which
                            writes the activation (backward: its gradient) and the casts of the next product as well
    has_fused_optimizer     one multi-tensor optimizer kernel
    has_fused_fp8_cast      a norm takes part in the cast of its output to FP8 (docs/cost/fp8.md)
    has_fused_activation_cast  likewise the activation between the two products of an MLP
    has_gradient_accumulation_fusion  weight-gradient GEMM adds into the main gradient itself
    caches_fp8_weights      weights are cast once per step, not once per micro-batch
    has_dropout             residual and attention dropout are applied (GPT-3 era recipes)
    natural_imbalance       tokens of the busiest expert rank over the mean where routing is not balanced by force
    expert_padding_factor   rows the expert GEMMs work on over rows routed, from padding to a kernel's tile

    Numbers as the framework keeps them, in bytes
    gradient_bytes          main gradient that accumulates over micro-batches
    gradient_comm_bytes     gradient as reduced between replicas
    fp16_gradient_bytes     both where a run trains in FP16; 0: as in BF16
    master_weight_bytes     optimizer's copy of the weights; 0 where the model's own weights are updated
    moment_bytes            each of the two Adam moments
    has_fp8_param_gather    weights travel as FP8 when the recipe is FP8

    Communication
    cp_comm                 context parallel attention: ring of point-to-point, all-to-all over heads, or all-gather
    tensor_overlap          share of tensor-parallel traffic hidden behind its GEMM
    copies_gathered         what is gathered or scattered along the sequence is rearranged by a copy: torch's
                            collectives join along the first dimension, the batch, and no compiler joins the copy
                            to what comes next
    tensor_async_overlap    share of the traffic that tensor parallelism starts beside a backward GEMM and that it hides
    has_fp8_tensor_gather   tensor-parallel gathers move FP8 activations when the recipe is FP8
    has_fp8_dispatch        tokens travel to their experts as FP8 when the recipe is FP8; they come back as BF16
    context_overlap         share of ring attention's traffic hidden behind attention
    switched_tensor_overlap share hidden where a run switches on user-buffer or asynchronous tensor parallelism
    expert_overlap          share of dispatch and combine hidden by batch-level overlap (0 unless switched on)
    batch_expert_overlap    that share where a run switches the overlap on
    shared_expert_overlap   shared experts run while tokens travel
    shard_overlap           share of FSDP gathers and scatters that prefetch hides
    gathers_ends            embedding and head are gathered once and their gradients scattered, every micro-batch
    gradient_bucket_params  parameters whose gradients travel together; the last bucket of a step hides behind nothing
    gradient_overlap        share of gradient reduction hidden where the candidate overlaps it
    param_gather_overlap    share of the distributed optimizer's weight gather hidden behind the next forward
    pipeline_blocking       share of a pipeline hop during which the sending rank computes nothing (0: asynchronous)
    comm_contention         slow-down of compute while traffic runs beside it, per second hidden

    Overheads
    host_launch_s           host time to launch one kernel; a layer cannot run faster than its launches
    host_moe_s              host time of router, dispatcher and expert bookkeeping of one MoE layer, per direction
    host_dispatch_factor    that time with a fused dispatcher (DeepEP, HybridEP) over that with an all-to-all
    host_overlap_factor     that time under an FP8 recipe while two micro-batches run interleaved to hide their dispatch
                            (the four nodes of a layer enter the recipe's context one by one: docs/cost/layer.md);
                            where a file says nothing as megatron_core_2026
    pass_s                  host time per pass of a virtual stage of a pipeline: Python, posting and waiting for sends
    cuda_graph              what is replayed as a graph: none, router (and preparation), partial (attention, too), full
    router_graph_share      share of a layer's launches that a graph of router and preparation replays
    partial_graph_share     likewise one of attention, norms and residuals as well
    host_syncs_per_moe_layer  times the host waits for token counts in one MoE layer; each sync-free stage removes one
    host_sync_s             what one such wait costs: the drained queue has to fill again
    step_s                  fixed time per optimizer step: data, logging, clipping, Python
    broadcast_s             where owners of ZeRO-1 shards broadcast their weights one after the other: time of each
    straggler_per_doubling  growth of the step per doubling of the number of nodes

    Efficiency against the kernel laws (1.0 = as the microbenchmark)
    gemm_efficiency, attention_efficiency, grouped_gemm_efficiency, memory_efficiency, fp8_efficiency,
    network_efficiency

    memory                  what it keeps on the device
    errors                  error bands of its projections by regime (`moe/sm100/fp8`) and, where it was never seen, by
                            family, from runs left out of the fit; by family and of peaks (memory) where this stack
                            was assumed and another one ran
    is_assumed              nobody said that it is this one: what is not known of the software widens every band
    """

    name: str
    attention_kernel: str
    has_fused_norm: bool = True
    has_fused_activation: bool = True
    has_fused_rope: bool = True
    has_fused_residual: bool = True
    has_fused_loss: bool = True
    has_fused_router: bool = True
    permutation: Literal["fused", "separate", "indexed"] = "fused"
    gathers_before_experts: bool = False
    has_product_per_expert: bool = False
    expert_gemm_share: float = 0.0
    expert_fp8_gemm_share: float = 0.0
    has_fused_graphed_experts: bool = False
    has_fused_optimizer: bool = True
    has_fused_fp8_cast: bool = True
    has_fused_activation_cast: bool = False
    has_gradient_accumulation_fusion: bool = True
    caches_fp8_weights: bool = True
    has_dropout: bool = False
    expert_padding_factor: float = 1.0
    natural_imbalance: float = 1.15

    gradient_bytes: float = 4.0
    gradient_comm_bytes: float = 4.0
    fp16_gradient_bytes: float = 0.0
    master_weight_bytes: float = 4.0
    moment_bytes: float = 4.0
    has_fp8_param_gather: bool = False

    cp_comm: Literal["p2p", "a2a", "all_gather"] = "p2p"
    tensor_overlap: float = 0.0
    copies_gathered: bool = False
    tensor_async_overlap: float = 0.0
    has_fp8_tensor_gather: bool = False
    has_fp8_dispatch: bool = False
    context_overlap: float = 0.5
    switched_tensor_overlap: float = 0.7
    expert_overlap: float = 0.0
    batch_expert_overlap: float = 0.7
    shared_expert_overlap: bool = False
    shard_overlap: float = 0.9
    gathers_ends: bool = False
    gradient_bucket_params: float = 40e6
    gradient_overlap: float = 0.9
    param_gather_overlap: float = 0.9
    pipeline_blocking: float = 0.0
    comm_contention: float = 0.0

    host_launch_s: float = 4e-6
    host_moe_s: float = 1e-3
    host_dispatch_factor: float = 0.95
    host_overlap_factor: float = 1.35
    pass_s: float = 0.0
    cuda_graph: Literal["none", "router", "partial", "full"] = "none"
    router_graph_share: float = 0.25
    partial_graph_share: float = 0.5
    host_syncs_per_moe_layer: float = 3.0
    host_sync_s: float = 50e-6
    step_s: float = 0.0
    broadcast_s: float = 0.0
    straggler_per_doubling: float = 0.0

    gemm_efficiency: float = 1.0
    attention_efficiency: float = 1.0
    grouped_gemm_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    fp8_efficiency: float = 1.0
    network_efficiency: float = 1.0

    memory: StackMemory = StackMemory()
    errors: dict[str, ErrorBand] = field(default_factory=dict, hash=False)
    is_assumed: bool = False

    @property
    def title(self) -> str:
        """Its name for a reader, who is told where nobody named it."""
        return f"{self.name} (assumed)" if self.is_assumed else self.name

    def __post_init__(self) -> None:
        shares: tuple[float, ...] = (self.tensor_overlap, self.context_overlap, self.expert_overlap, self.shard_overlap)
        shares += (self.switched_tensor_overlap, self.batch_expert_overlap)
        shares += (self.tensor_async_overlap, self.gradient_overlap, self.param_gather_overlap, self.pipeline_blocking)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(f"stack {self.name!r}: every overlap is a share in 0..1")
