"""Layers of a model: experts and other feed-forwards, and what makes two layers cost differently."""

from dataclasses import dataclass

from primus_search.values.model.mixer import Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The routed and shared experts of every MoE layer of a model.

    has_router_bias     a bias of the router that is trained or kept beside it
    is_router_bias_buffer  that bias is updated by a rule and no parameter (DeepSeek-V3): not in published counts
    has_shared_gate     a learned scalar gate of the shared experts (Qwen)
    latent_hidden       size of the latent space that routed experts work in, 0: the hidden size (Nemotron-3, Kimi-K3)
    has_latent_norm     a norm of the latent vectors
    parallel_ffn_hidden inner size of a dense MLP beside the experts (Gemma 4, Arctic), 0: none
    has_router_scales   a scale per channel before the router and one per expert behind it (Gemma 4)
    num_groups          groups of experts that routing picks `top_groups` of; 0: routing is not limited to groups
    """

    num_experts: int
    top_k: int
    expert_ffn_hidden: int
    shared_ffn_hidden: int = 0
    has_router_bias: bool = False
    has_shared_gate: bool = False
    is_router_bias_buffer: bool = False
    latent_hidden: int = 0
    has_latent_norm: bool = False
    parallel_ffn_hidden: int = 0
    has_router_scales: bool = False
    num_groups: int = 0
    top_groups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp:
    """A dense MLP of a size of its own, in a model whose layers differ."""

    ffn_hidden: int


@dataclass(frozen=True, slots=True)
class NoFeedForward:
    """A layer that is a mixer alone (Nemotron-H)."""


FeedForward = DenseMlp | NoFeedForward


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What makes two layers of one model cost differently: its mixer, its feed-forward, how far attention looks back.

    window        tokens attention looks back, 0: all of them
    mixer         the layer's mixer where the layers of a model differ; None: the attention that the model declares
    feed_forward  a dense MLP of another size or none; None: the model's experts or MLP, as `is_moe` says
    """

    is_moe: bool
    window: int
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
