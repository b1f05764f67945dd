"""The transformer: its sizes, its parameter counts and its FLOPs. Both counts live here and nowhere else.

Symbols used in the formulas: H hidden, A heads, G key/value heads, d head dim, F ffn hidden, E experts, K top-k,
Fe expert ffn hidden, Fs shared-expert ffn hidden, V vocabulary, S sequence length, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): low-rank queries, one compressed key/value vector per token.

    Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1. `q_lora_rank` 0 means that queries are not compressed.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The routed and shared experts of every MoE layer of a model."""

    num_experts: int
    top_k: int
    expert_ffn_hidden: int
    shared_ffn_hidden: int = 0
    has_router_bias: bool = False
    has_shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What makes two layers of one model cost differently: experts or not, and how far attention looks back.

    window 0 means full causal attention.
    """

    is_moe: bool
    window: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer. Sizes are those of the whole model, before any parallelism.

    vocab_size        rows of the embedding as trained by the framework, that is after padding
    moe_layers        one flag per layer; empty means: every layer if `moe` is given, none otherwise
    windows           one attention window per layer in tokens, 0 = full; empty means full everywhere
    learned_positions rows of a learned position table, 0 for rotary or ALiBi
    has_linear_bias   bias on every linear (GPT-3, MPT, GPT-OSS); has_qkv_bias: on Q, K, V only (Qwen2)
    activation_clamp  largest gate and up value the activation lets through, 0 = no limit (GPT-OSS, arXiv:2508.10925)
    num_norms         norms per layer over the hidden size (2; 4 where a model also normalises block outputs)
    num_mtp_layers    multi-token-prediction modules after the last layer (DeepSeek-V3, arXiv:2412.19437 section 2.2)
    """

    name: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    latent: LatentAttention | None = None
    moe: MixtureOfExperts | None = None
    moe_layers: Sequence[bool] = ()
    windows: Sequence[int] = ()
    is_gated: bool = True
    is_tied: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    has_linear_bias: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_attention_sinks: bool = False
    activation_clamp: float = 0.0
    num_norms: int = 2
    learned_positions: int = 0
    num_mtp_layers: int = 0
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moe_layers", tuple(self.moe_layers) or (self.moe is not None,) * self.num_layers)
        object.__setattr__(self, "windows", tuple(self.windows) or (0,) * self.num_layers)
        if len(self.moe_layers) != self.num_layers or len(self.windows) != self.num_layers:
            raise ValueError("moe_layers and windows need one entry per layer")
        if any(self.moe_layers) and self.moe is None:
            raise ValueError("moe_layers names MoE layers, but the model has no experts")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")

    # --- structure -------------------------------------------------------------------------------------------------

    @property
    def is_moe(self) -> bool:
        return self.moe is not None and any(self.moe_layers)

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        return tuple(LayerKind(m, w) for m, w in zip(self.moe_layers, self.windows, strict=True))

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layer kinds, in order of first appearance; MTP layers are of the last layer's kind."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def qk_head_dim(self) -> int:
        return self.latent.qk_head_dim if self.latent else self.head_dim

    @property
    def v_head_dim(self) -> int:
        return self.latent.v_head_dim if self.latent else self.head_dim

    @property
    def num_mlp_matrices(self) -> int:
        """Weight matrices of one MLP: gate, up and down where the activation is gated, else up and down."""
        return 3 if self.is_gated else 2

    # --- parameters (counts) ---------------------------------------------------------------------------------------

    @property
    def norm_params(self) -> int:
        """Parameters of one norm over the hidden size: a scale, and a shift for LayerNorm."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @cached_property
    def attention_params(self) -> int:
        """Parameters of one layer's attention: projections, their biases, and norms inside attention."""
        heads, hidden = self.num_heads, self.hidden
        if self.latent:
            m = self.latent
            q_out = heads * m.qk_head_dim
            queries = m.q_lora_rank * (hidden + 1 + q_out) if m.q_lora_rank else hidden * q_out
            keys_values = hidden * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
            keys_values += m.kv_lora_rank * heads * (m.qk_nope_head_dim + m.v_head_dim)
            return queries + keys_values + heads * m.v_head_dim * hidden
        q_out, kv_out = heads * self.head_dim, self.num_kv_heads * self.head_dim
        count = hidden * (q_out + 2 * kv_out) + q_out * hidden
        if self.has_linear_bias or self.has_qkv_bias:
            count += q_out + 2 * kv_out
        count += hidden if self.has_linear_bias else 0
        count += 2 * self.head_dim if self.has_qk_norm else 0
        return count + (heads if self.has_attention_sinks else 0)

    def mlp_params(self, ffn_hidden: int) -> int:
        """Parameters of one MLP (dense, one expert, or all shared experts as one) of the given inner size."""
        count = self.num_mlp_matrices * self.hidden * ffn_hidden
        if self.has_linear_bias:
            count += (self.num_mlp_matrices - 1) * ffn_hidden + self.hidden
        return count

    @cached_property
    def dense_mlp_params(self) -> int:
        return self.mlp_params(self.ffn_hidden)

    @cached_property
    def expert_params(self) -> int:
        """Parameters of ONE routed expert; 0 for a dense model."""
        return self.mlp_params(self.moe.expert_ffn_hidden) if self.moe else 0

    @cached_property
    def shared_expert_params(self) -> int:
        """Parameters of the shared experts of one MoE layer together; 0 where there are none."""
        if self.moe is None or not self.moe.shared_ffn_hidden:
            return 0
        return self.mlp_params(self.moe.shared_ffn_hidden) + (self.hidden if self.moe.has_shared_gate else 0)

    @cached_property
    def router_params(self) -> int:
        """Parameters of one MoE layer's router; never sharded."""
        if self.moe is None:
            return 0
        return self.moe.num_experts * (self.hidden + (1 if self.moe.has_router_bias else 0))

    def layer_params(self, kind: LayerKind) -> int:
        """All parameters of one layer of that kind, every expert included."""
        count = self.attention_params + self.num_norms * self.norm_params
        if not kind.is_moe:
            return count + self.dense_mlp_params
        assert self.moe is not None
        return count + self.router_params + self.shared_expert_params + self.moe.num_experts * self.expert_params

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding and of a learned position table."""
        return (self.vocab_size + self.learned_positions) * self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the output matrix; also when tied, since a pipeline keeps a copy on its last stage."""
        return self.vocab_size * self.hidden

    @cached_property
    def mtp_params(self) -> int:
        """Parameters of one multi-token-prediction module: a layer, the 2H x H join, and its three norms."""
        return self.layer_params(self.layers[-1]) + 2 * self.hidden**2 + 3 * self.norm_params

    @cached_property
    def total_params(self) -> int:
        """Parameters as published: without multi-token-prediction modules, a tied matrix counted once."""
        count = sum(self.layer_params(kind) for kind in self.layers) + self.embedding_params + self.norm_params
        return count + (0 if self.is_tied else self.head_params)

    @cached_property
    def active_params(self) -> int:
        """Parameters one token meets: as `total_params`, with top-k of the experts of each MoE layer."""
        if self.moe is None:
            return self.total_params
        idle = (self.moe.num_experts - self.moe.top_k) * self.expert_params
        return self.total_params - sum(self.moe_layers) * idle

    # --- FLOPs (per token, forward) --------------------------------------------------------------------------------

    def attended_tokens(self, seq_length: int, window: int) -> float:
        """Mean number of keys one query meets under a causal mask, per token; a window cuts it short.

        Formula: mean over positions i of min(i, w): S/2 for full attention, w - w^2/(2S) for a window w < S.
        """
        if window == 0 or window >= seq_length:
            return seq_length / 2.0
        return window - window * window / (2.0 * seq_length)

    def attention_flops(self, seq_length: int, window: int) -> float:
        """FLOPs per token of one layer's score and value products (no projections), causal."""
        per_key = 2.0 * self.num_heads * (self.qk_head_dim + self.v_head_dim)
        return per_key * self.attended_tokens(seq_length, window)

    def layer_flops(self, kind: LayerKind, seq_length: int) -> float:
        """Forward FLOPs per token of one layer: two per parameter of a matrix met, plus attention."""
        matrices = float(self.attention_params)
        if kind.is_moe:
            assert self.moe is not None
            matrices += self.router_params + self.shared_expert_params + self.moe.top_k * self.expert_params
        else:
            matrices += self.dense_mlp_params
        return 2.0 * matrices + self.attention_flops(seq_length, kind.window)

    def flops_per_token(self, seq_length: int) -> float:
        """Model FLOPs per trained token: forward plus twice that backward, head and MTP included, no recompute.

        The convention of Megatron-Bridge (causal attention counted half); the base of every MFU printed here.
        """
        forward = sum(self.layer_flops(kind, seq_length) for kind in self.layers) + 2.0 * self.head_params
        mtp = self.layer_flops(self.layers[-1], seq_length) + 4.0 * self.hidden**2 + 2.0 * self.head_params
        return 3.0 * (forward + self.num_mtp_layers * mtp)
