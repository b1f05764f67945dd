"""Kernel families and fusions that a framework brings to a device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Group `kernels` of a stack file."""

    attention_kernel: str
    """Kernel family of `laws.attention`: unfused, flash1 to flash3, cudnn, cudnn_fp8, aiter, ck."""

    has_fused_norm: bool
    """Norm (and its FP8 cast) in one kernel; otherwise one pass over memory per operation."""

    latent_attention_kernel: str
    """Kernel family of latent attention, whose query and value heads differ in size; empty: `attention_kernel`."""

    has_fused_activation: bool
    """Gated activation in one kernel."""

    has_fused_rope: bool
    """Rotary embedding in one kernel for queries and keys."""

    has_fused_latent_rope: bool
    """The same of latent attention, whose heads are rotated in part."""

    has_fused_residual: bool
    """Bias, dropout and residual add in one kernel."""

    has_fused_loss: bool
    """Cross-entropy fused with its gradient, unless the candidate says otherwise."""

    has_fused_optimizer: bool
    """One multi-tensor optimizer kernel."""

    has_fused_fp8_cast: bool
    """A norm takes part in the cast of its output to FP8 (docs/cost/fp8.md)."""

    has_fused_activation_cast: bool
    """The activation between the two products of an MLP takes part in the cast of its output to FP8."""

    has_gradient_accumulation_fusion: bool
    """Weight-gradient GEMM adds into the main gradient itself."""

    has_dropout: bool
    """Residual and attention dropout are applied (GPT-3 era recipes)."""
