"""How a framework runs the router, the dispatch of tokens and the experts of a MoE layer."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Group `experts` of a stack file."""

    has_fused_router: bool
    """Top-k, softmax and auxiliary loss of the router fused."""

    permutation: Literal["fused", "separate", "indexed"]
    """Permutation of tokens to experts and back: one fused kernel; separate gather, weighting and scatter; or indexed
    as torch's grouped experts are (`cost.parts.routing`)."""

    gathers_before_experts: bool
    """Ranks of a split expert (etp > 1) gather tokens before routing and all dispatch the same; otherwise each
    dispatches its own and they gather what arrived."""

    has_product_per_expert: bool
    """A grouped linear launches a product and its casts expert by expert, on several streams."""

    expert_gemm_share: float
    """Rate of the framework's grouped BF16 products over a dense one of the same tiles; 0: the device's own grouped
    kernels."""

    expert_fp8_gemm_share: float
    """Rate of its grouped FP8 products over a dense one, casts apart; 0: the device's own grouped kernels."""

    has_fused_graphed_experts: bool
    """Under a graph of the whole step gated MXFP8 experts are one kernel per product, which writes the activation
    (backward: its gradient) and the casts of the next product as well."""

    natural_imbalance: float
    """Tokens of the busiest expert rank over the mean where routing is not balanced by force."""

    ragged_exchange_share: float
    """Rate of an all-to-all of unequal pieces that leaves a domain, over one of equal pieces."""

    expert_overlap: float
    """Share of dispatch and combine hidden by batch-level overlap (0 unless switched on)."""

    batch_expert_overlap: float
    """`expert_overlap` of a run that switches batch-level overlap on."""

    shared_expert_overlap: bool
    """Shared experts run while tokens travel."""
