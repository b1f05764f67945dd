"""What a framework keeps on the device beyond what the arithmetic needs; formulas are in `cost/memory`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMemory:
    """Group `memory` of a stack file."""

    weight_bytes: float
    """Bytes of a resident weight: 2 beside FP32 masters, 4 where weights are the masters."""

    element_bytes: float
    """Bytes of an activation element, and of a weight or gradient in flight (4 where trained in FP32)."""

    fused_logit_bytes: float
    """Bytes per logit alive at the worst moment of head and loss with a fused loss."""

    unfused_logit_bytes: float
    """Likewise with separate softmax and log: BF16 logits, FP32 copies, their gradient."""

    loss_chunks: float
    """Pieces of a micro-batch that head and loss run through one after the other, forward and backward, so that logits
    of one piece exist at a time; 1: all at once."""

    split_logit_bytes: float
    """`unfused_logit_bytes` where the vocabulary is split over tensor-parallel ranks; 0: the same."""

    split_fused_logit_bytes: float
    """`fused_logit_bytes` where the vocabulary is split; 0: the same."""

    score_bytes: float
    """Bytes kept per attention score without a flash kernel: softmax in BF16 (2), or in FP32 and its BF16 cast (6)."""

    saves_fp8_inputs: bool
    """Under an FP8 recipe a linear keeps its input in one byte; otherwise in BF16."""

    keeps_fused_qkv: bool
    """Values stay a view of the joint QKV product, which keeps it alive beside rotated copies."""

    caches_dummy_gradients: bool
    """One weight-gradient placeholder per distinct linear shape lives for the whole run (TE)."""

    expert_copies: float
    """Permuted copies of the routed tokens kept for backward beyond the expert input, all-to-all."""

    deepep_expert_copies: float
    """Permuted copies kept with DeepEP."""

    has_room_for_every_row: bool
    """Without DeepEP a device has room for every token of its expert-parallel group at its experts."""

    keeps_fp8_activations: bool
    """Under FP8, experts keep the cast of an activation whose recompute drops the BF16 one: their GEMM saves what it
    reads. Otherwise it saves its BF16 input, which is dropped (`save_original_input` of Transformer Engine)."""

    shares_attention_output: bool
    """Under an FP8 recipe other than delayed scaling, the projection behind attention saves the BF16 output that the
    kernel keeps anyway (`save_original_input` of Transformer Engine), in place of its cast."""

    latent_kv_padding: bool
    """Values are padded to the query/key head size for MLA attention."""

    sharded_gradient_bytes: float
    """Bytes per parameter of the main gradient under FSDP, which is not the buffer of the distributed optimizer."""

    shard_gather_layers: float
    """Layers whose gathered weights FSDP holds at once (current and prefetched)."""

    shard_gradient_bytes: float
    """Bytes per parameter of unreduced gradients while FSDP reduces a layer."""

    shard_gradient_layers: float
    """Layers whose unreduced gradients are held at once."""

    deepep_buffer_copies: float
    """Copies of the tokens a device routes that DeepEP's communication buffers have room for."""

    group_buffer_copies: float
    """Copies of the tokens of every rank of an expert group that HybridEP's buffers have room for; they take the place
    of DeepEP's (0: DeepEP)."""

    recomputes_norms: bool
    """A compiled backward makes outputs of norms again from their inputs, which are kept anyway."""

    hides_expert_layers: bool
    """Modules of a layer with experts are compiled inside its checkpoint, which then sees none of their operations:
    selective checkpointing by operation keeps the layer's input alone."""

    activation_share: float
    """Allocator slack: reserved but unallocated bytes per allocated byte that comes and goes."""

    tight_slack: float
    """Share of that slack that stays when the device is full and the allocator frees its cache."""

    fixed_bytes: float
    """Workspaces that do not grow with anything."""

    peaks_seen: float
    """Published peaks that this section was compared with; 0: none, so that it is doubtful."""

    driver_bytes: float
    """What the driver shows beyond torch, the device's context and its communicators."""

    device_share: float
    """Share of the device that the framework's allocator may take at most: XLA's pool; 1: all that context and
    communicators leave."""
