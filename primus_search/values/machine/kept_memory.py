"""What a stack keeps in a device's memory: bytes, copies, pools and slack."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMemory:
    """Group `memory` of a stack file.

    weight_bytes  Bytes of a resident weight: 2 beside FP32 masters, 4 where weights are the masters.
    element_bytes  Bytes of an activation element, and of a weight or gradient in flight (4 where trained in FP32).
    fused_logit_bytes  Bytes per logit alive at the worst moment of head and loss with a fused loss.
    keeps_softmax  A fused loss holds what separate kernels hold: an FP32 softmax beside the logits, kept for backward.
    has_layer_buffers  Layers are in buffers of Megatron-FSDP, whose strategy shards the optimizer alone or nothing.
    pads_dealt_matrices  Buffers have room for whole matrices in every shard where dist_muon deals them.
    unfused_logit_bytes  Likewise with separate softmax and log: BF16 logits, FP32 copies, their gradient.
    loss_chunks  Pieces of a micro-batch that head and loss run through one after the other, forward and backward, so
        that logits of one piece exist at a time; 1: all at once.
    split_logit_bytes  `unfused_logit_bytes` where the vocabulary is split over tensor-parallel ranks; 0: the same.
    split_fused_logit_bytes  `fused_logit_bytes` where the vocabulary is split; 0: the same.
    score_bytes  Bytes kept per attention score without a flash kernel: softmax in BF16 (2), or in FP32 and its BF16
        cast (6).
    fp8_cache_bytes  Bytes per parameter of the copies in FP8 of a BF16 weight that are kept where weights are cast once
        per step: 1 by rows, 2 by columns as well.
    saves_fp8_inputs  Under an FP8 recipe a linear keeps its input in one byte; otherwise in BF16.
    keeps_fused_qkv  Values stay a view of the joint QKV product, which keeps it alive beside rotated copies.
    caches_dummy_gradients  One weight-gradient placeholder per distinct linear shape lives for the whole run (TE).
    expert_copies  Permuted copies of the routed tokens kept for backward beyond the expert input, all-to-all.
    deepep_expert_copies  Permuted copies kept with DeepEP.
    has_room_for_every_row  Shapes are fixed ahead: a device has room for every token of its expert-parallel group at
        its experts.
    room_copies  Rows of such experts at the worst moment over those that fill the room, by all-to-all; 0: those routed.
    deepep_room_copies  The same with DeepEP.
    capacity_mask_bytes  Bytes per token and place of its sequence's padded experts of the masks whose products dispatch
        and combine; 0: rows are indexed.
    masked_copies  Copies of a device's expert rows, one for each of its experts, where `masks_expert_rows`.
    masks_expert_rows  A grouped product runs as dense products of masked rows.
    query_split_keys  Keys per part of attention's backward whose query gradients lie apart in FP32 until they are added
        in order (deterministic attention); 0: they are added as they come.
    keeps_fp8_activations  Under FP8, experts keep the cast of an activation whose recompute drops the BF16 one: their
        GEMM saves what it reads. Otherwise it saves its BF16 input, which is dropped (`save_original_input` of
        Transformer Engine).
    shares_attention_output  Under an FP8 recipe other than delayed scaling, the projection behind attention saves the
        BF16 output that the kernel keeps anyway (`save_original_input` of Transformer Engine), in place of its cast.
    latent_kv_padding  Values are padded to the query/key head size for MLA attention.
    sharded_gradient_bytes  Bytes per parameter of the main gradient under FSDP, which is not the buffer of the
        distributed optimizer.
    shard_gather_layers  Layers whose gathered weights FSDP holds at once (current and prefetched).
    shard_gradient_bytes  Bytes per parameter of unreduced gradients while FSDP reduces a layer.
    shard_gradient_layers  Layers whose unreduced gradients are held at once.
    shard_queue_params  Parameters whose reduced gradients Megatron-FSDP and HSDP hold until more wait; half as many are
        prefetched.
    deepep_buffer_copies  Copies of the tokens a device routes that DeepEP's communication buffers have room for.
    group_buffer_copies  Copies of the tokens of every rank of an expert group that HybridEP's buffers have room for;
        they take the place of DeepEP's (0: DeepEP).
    recomputes_norms  A compiled backward makes outputs of norms again from their inputs, which are kept anyway.
    hides_expert_layers  Modules of a layer with experts are compiled inside its checkpoint, which then sees none of
        their operations: selective checkpointing by operation keeps the layer's input alone.
    activation_share  Allocator slack: reserved but unallocated bytes per allocated byte that comes and goes.
    tight_slack  Share of that slack that stays when the device is full and the allocator frees its cache.
    whole_graph_spread  Standard deviation of log(measured / projected bytes) that a graph of the whole iteration of
        experts brings along, from one published pair: what a side stream frees is not used again while it is captured.
    fixed_bytes  Workspaces that do not grow with anything.
    peaks_seen  Published peaks that this section was compared with; 0: none, so that it is doubtful.
    driver_bytes  What the driver shows beyond torch, the device's context and its communicators.
    device_share  Share of the device that the framework's allocator may take at most: XLA's pool; 1: all that context
        and communicators leave.
    """

    weight_bytes: float
    element_bytes: float
    fused_logit_bytes: float
    keeps_softmax: bool = False  # as of stacks of earlier releases
    has_layer_buffers: bool = False
    pads_dealt_matrices: bool = False
    unfused_logit_bytes: float
    loss_chunks: float
    split_logit_bytes: float
    split_fused_logit_bytes: float
    score_bytes: float
    fp8_cache_bytes: float = 1.0  # as of stacks of earlier releases
    saves_fp8_inputs: bool
    keeps_fused_qkv: bool
    caches_dummy_gradients: bool
    expert_copies: float
    deepep_expert_copies: float
    has_room_for_every_row: bool
    room_copies: float = 1.0  # stacks of earlier releases have no such numbers
    deepep_room_copies: float = 0.0
    capacity_mask_bytes: float = 0.0
    masked_copies: float = 0.0
    masks_expert_rows: bool = False
    query_split_keys: float = 0.0
    whole_graph_spread: float = 0.0
    keeps_fp8_activations: bool
    shares_attention_output: bool
    latent_kv_padding: bool
    sharded_gradient_bytes: float
    shard_gather_layers: float
    shard_gradient_bytes: float
    shard_gradient_layers: float
    shard_queue_params: float
    deepep_buffer_copies: float
    group_buffer_copies: float
    recomputes_norms: bool
    hides_expert_layers: bool
    activation_share: float
    tight_slack: float
    fixed_bytes: float
    peaks_seen: float
    driver_bytes: float
    device_share: float
