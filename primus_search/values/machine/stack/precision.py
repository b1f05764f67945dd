"""Number formats in which a framework keeps and sends gradients, weights and optimizer state."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Group `precision` of a stack file."""

    gradient_bytes: float
    """Bytes per parameter of the main gradient, which accumulates over micro-batches."""

    gradient_comm_bytes: float
    """Bytes per parameter of the gradient as reduced between replicas."""

    fp16_gradient_bytes: float
    """`gradient_bytes` and `gradient_comm_bytes` of a run in FP16; 0: as in BF16."""

    master_weight_bytes: float
    """Bytes per parameter of the optimizer's copy of the weights; 0 where the model's own weights are updated."""

    moment_bytes: float
    """Bytes per parameter of each of the two Adam moments."""

    has_fp8_param_gather: bool
    """Weights travel as FP8 when the recipe is FP8."""

    caches_fp8_weights: bool
    """Weights are cast once per step, not once per micro-batch."""

    has_fp8_tensor_gather: bool
    """Tensor-parallel gathers move FP8 activations when the recipe is FP8."""

    has_fp8_dispatch: bool
    """Tokens travel to their experts as FP8 when the recipe is FP8; they come back as BF16."""
