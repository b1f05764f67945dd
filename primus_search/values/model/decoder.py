"""The model: its sizes, its parameter counts and its FLOPs, summed over its layers; the feed-forward of a layer.

Symbols used in the formulas: H hidden, A heads, G key/value heads, d head dim, F ffn hidden, E experts, K top-k,
Fe expert ffn hidden, Fs shared-expert ffn hidden, V vocabulary, S sequence length, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from primus_search.values.model.adapters import Adapters, adapted_matrices, adapter_params
from primus_search.values.model.attention_mixers import Attention, LatentAttention, LatentMixer
from primus_search.values.model.constants import Constants
from primus_search.values.model.layer_kinds import DenseMlp, FeedForward, LayerKind, MixtureOfExperts, NoFeedForward
from primus_search.values.model.mixer import Mixer, NoMixer, mixer_params
from primus_search.values.model.tower import Tower


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only language model. Sizes are those of the whole model, before any parallelism.

    The attention fields declare the mixer of every layer for which `mixers` has none, `moe` and `ffn_hidden` the
    feed-forward of every layer for which `feed_forwards` has none.

    vocab_size        rows of the embedding as trained by the framework, that is after padding
    moe_layers        one flag per layer; empty means: every layer if `moe` is given, none otherwise
    windows           one attention window per layer in tokens, 0 = full; empty means full everywhere
    learned_positions rows of a learned position table, 0 for rotary or ALiBi
    has_linear_bias   bias on every linear (GPT-3, MPT, GPT-OSS); has_qkv_bias: on Q, K, V only (Qwen2)
    activation_clamp  largest gate and up value the activation lets through, 0 = no limit (GPT-OSS, arXiv:2508.10925)
    activation_params scalars that the activation of a dense MLP learns (2 of xIELU, arXiv:2411.13010)
    num_norms         norms per layer over the hidden size (2; 4 where a model also normalises block outputs)
    num_mtp_layers    multi-token-prediction modules after the last layer (DeepSeek-V3, arXiv:2412.19437 section 2.2)
    mtp_layers        layers of which a module has one alike, in its order (Nemotron 3: attention, experts); empty: last
    mixers            one mixer or None per layer; empty: the declared attention everywhere
    feed_forwards     one feed-forward or None per layer; empty: experts or the MLP as `moe_layers` says
    constants         what changes results alone: epsilon, rotation, routing
    vocab_padding     rows of `vocab_size` that only pad it; not in published counts
    hyper_streams     parallel residual streams of hyper-connections (DeepSeek-V4), 0: one plain residual
    per_layer_embedding  width of an embedding that every layer adds (Gemma 3n, Gemma 4 E), 0: none
    towers            encoders of other inputs; on the first stage where the workload has tokens of theirs
    adapters          low-rank adapters, which alone are trained: every other weight is frozen; None: all are trained
    ignored           keys of the imported file that the user left out knowingly (`--ignore`)
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
    activation_params: int = 0
    num_norms: int = 2
    learned_positions: int = 0
    num_mtp_layers: int = 0
    mtp_layers: Sequence[int] = ()
    mixers: Sequence[Mixer | None] = ()
    feed_forwards: Sequence[FeedForward | None] = ()
    hyper_streams: int = 0
    per_layer_embedding: int = 0
    towers: tuple[Tower, ...] = ()
    adapters: Adapters | None = None
    constants: Constants = field(default=Constants(), compare=False)
    vocab_padding: int = field(default=0, compare=False)
    source: str = field(default="", compare=False)
    ignored: Sequence[str] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moe_layers", tuple(self.moe_layers) or (self.moe is not None,) * self.num_layers)
        object.__setattr__(self, "windows", tuple(self.windows) or (0,) * self.num_layers)
        for per_layer in ("mixers", "feed_forwards"):
            given = tuple(self.__getattribute__(per_layer))
            object.__setattr__(self, per_layer, given if any(one is not None for one in given) else ())
            if given and len(given) != self.num_layers:
                raise ValueError(f"{per_layer} needs one entry per layer")
        if len(self.moe_layers) != self.num_layers or len(self.windows) != self.num_layers:
            raise ValueError("moe_layers and windows need one entry per layer")
        if any(self.moe_layers) and self.moe is None:
            raise ValueError("moe_layers names MoE layers, but the model has no experts")
        alike = tuple(self.layers.index(self.layers[i]) for i in self.mtp_layers) if self.num_mtp_layers else ()
        object.__setattr__(self, "mtp_layers", () if alike == (self.layers.index(self.layers[-1]),) else alike)
        if self.moe is not None and self.moe.top_k > self.moe.num_experts:
            raise ValueError(f"routes tokens to {self.moe.top_k} of {self.moe.num_experts} experts")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")

    # --- structure -------------------------------------------------------------------------------------------------

    @property
    def is_moe(self) -> bool:
        return self.moe is not None and any(self.moe_layers)

    @property
    def family(self) -> str:
        """`dense` or `moe`: models that software and switches act alike on."""
        return "moe" if self.is_moe else "dense"

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        nothing = (None,) * self.num_layers
        given = zip(self.moe_layers, self.windows, self.mixers or nothing, self.feed_forwards or nothing, strict=True)
        return tuple(LayerKind(m, w, mixer, ffn) for m, w, mixer, ffn in given)

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layer kinds, in order of first appearance; those of MTP modules are among them."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def mtp_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers of one MTP module."""
        return tuple(self.layers[i] for i in self.mtp_layers) or self.layers[-1:]

    @property
    def is_uniform(self) -> bool:
        """Whether every layer has the declared attention and feed-forward."""
        return not self.mixers and not self.feed_forwards

    @property
    def is_single_block(self) -> bool:
        """Whether layers are a mixer or a feed-forward alone (Nemotron-H)."""
        return any(isinstance(one, NoFeedForward) for one in self.feed_forwards)

    def _attention(self, window: int) -> Mixer:
        if self.latent:
            return LatentMixer(num_heads=self.num_heads, latent=self.latent, has_sinks=self.has_attention_sinks)
        return Attention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            window=window,
            qk_norm="head" if self.has_qk_norm else "none",
            has_qkv_bias=self.has_linear_bias or self.has_qkv_bias,
            has_output_bias=self.has_linear_bias,
            has_sinks=self.has_attention_sinks,
        )

    def mixer(self, kind: LayerKind) -> Mixer:
        """The mixer of a layer of that kind."""
        if kind.mixer is not None:
            return kind.mixer
        if kind.window not in self._attentions:
            self._attentions[kind.window] = self._attention(kind.window)
        return self._attentions[kind.window]

    def layer_view(self, kind: LayerKind) -> "Model":
        """A model whose declared attention and feed-forward are those of layers of that kind; itself if they are.

        The view of a layer with an attention of its own has that attention's sizes in the model's fields, and its reach
        (window or chunk) in `windows`. Other mixers have no place in those fields; their readers go by `kind.mixer`.
        """
        if kind.mixer is None and kind.feed_forward is None:
            return self
        found = self._views.get(kind)
        if found is None:
            found = self._views[kind] = self._make_view(kind)
        return found

    @cached_property
    def _attentions(self) -> dict[int, Mixer]:
        """Declared attentions by their windows, as far as they were needed."""
        return {}

    @cached_property
    def _views(self) -> dict[LayerKind, "Model"]:
        return {}

    def _make_view(self, kind: LayerKind) -> "Model":
        is_moe = kind.is_moe and not isinstance(kind.feed_forward, NoFeedForward)
        changes: dict[str, object] = {
            "num_layers": 1,
            "moe_layers": (is_moe,),
            "windows": (kind.window,),
            "mixers": (),
            "feed_forwards": (),
            "mtp_layers": (),
            "num_norms": self.layer_norms(kind),
        }
        if not is_moe:
            changes["ffn_hidden"] = self.ffn_hidden_of(kind)
        mixer = kind.mixer
        if isinstance(mixer, LatentMixer):
            changes |= {"num_heads": mixer.num_heads, "num_kv_heads": mixer.num_heads, "latent": mixer.latent}
        elif isinstance(mixer, Attention):
            changes |= {
                "num_heads": mixer.num_heads,
                "num_kv_heads": mixer.num_kv_heads,
                "head_dim": mixer.head_dim,
                "latent": None,
                "windows": (mixer.window or mixer.chunk,),
                "has_qkv_bias": mixer.has_qkv_bias,
                "has_qk_norm": mixer.qk_norm != "none",
                "has_attention_sinks": mixer.has_sinks,
            }
        return replace(self, **changes)  # type: ignore[arg-type]

    @cached_property
    def expert_hidden(self) -> int:
        """Size of the vectors that routed experts read and write: the hidden size, or their latent space."""
        return self.moe.latent_hidden or self.hidden if self.moe else self.hidden

    @cached_property
    def beside_experts_hidden(self) -> int:
        """Inner size of the dense MLPs that every token of a MoE layer uses: shared experts and a parallel MLP."""
        return self.moe.shared_ffn_hidden + self.moe.parallel_ffn_hidden if self.moe else 0

    def ffn_hidden_of(self, kind: LayerKind) -> int:
        """Inner size of the dense MLP of a layer of that kind; 0 where it has none."""
        if isinstance(kind.feed_forward, NoFeedForward) or kind.is_moe:
            return 0
        return kind.feed_forward.ffn_hidden if isinstance(kind.feed_forward, DenseMlp) else self.ffn_hidden

    def feed_forward_name(self, kind: LayerKind) -> str:
        """The feed-forward of a layer of that kind in words."""
        if isinstance(kind.feed_forward, NoFeedForward):
            return "none"
        if not kind.is_moe or self.moe is None:
            return f"MLP {self.ffn_hidden_of(kind):,}"
        return f"{self.moe.num_experts} experts of {self.moe.expert_ffn_hidden:,}, top {self.moe.top_k}"

    def num_blocks(self, kind: LayerKind) -> int:
        """Blocks of a layer that read and write the residual stream: mixer and feed-forward, or one of them."""
        return (not isinstance(kind.mixer, NoMixer)) + (not isinstance(kind.feed_forward, NoFeedForward))

    def layer_norms(self, kind: LayerKind) -> float:
        """Norms over the hidden size in a layer of that kind."""
        return self.num_norms * self.num_blocks(kind) / 2

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
        """Parameters of the declared attention of one layer: projections, their biases, norms inside attention."""
        return mixer_params(self._attention(0), self.hidden)

    def mlp_params(self, ffn_hidden: int) -> int:
        """Parameters of one MLP (dense, one expert, or all shared experts as one) of the given inner size."""
        return self.num_mlp_matrices * self.hidden * ffn_hidden + sum(self.mlp_biases(ffn_hidden))

    def mlp_biases(self, ffn_hidden: int) -> tuple[int, int]:
        """Biases of one MLP: divided by tp, and whole on every rank (Megatron: RowParallelLinear)."""
        if not (self.has_linear_bias and ffn_hidden):
            return 0, 0
        return (self.num_mlp_matrices - 1) * ffn_hidden, self.hidden

    @cached_property
    def dense_mlp_params(self) -> int:
        return self.mlp_params(self.ffn_hidden)

    @cached_property
    def expert_params(self) -> int:
        """Parameters of ONE routed expert; 0 for a dense model."""
        if self.moe is None:
            return 0
        matrices = self.num_mlp_matrices * self.expert_hidden * self.moe.expert_ffn_hidden
        return matrices + sum(self.expert_biases)

    @property
    def expert_biases(self) -> tuple[int, int]:
        """Biases of one routed expert: divided by its tensor parallelism, and whole on each of its ranks."""
        split, whole = self.mlp_biases(self.moe.expert_ffn_hidden if self.moe else 0)
        return split, self.expert_hidden if whole else 0

    @cached_property
    def shared_expert_params(self) -> int:
        """Parameters that every token of one MoE layer uses beside the router: shared experts, a parallel dense MLP,
        the projections into a latent space and out of it; 0 where there are none."""
        if self.moe is None:
            return 0
        count = self.mlp_params(self.moe.shared_ffn_hidden) if self.moe.shared_ffn_hidden else 0
        count += self.hidden if self.moe.has_shared_gate and self.moe.shared_ffn_hidden else 0
        count += self.mlp_params(self.moe.parallel_ffn_hidden) if self.moe.parallel_ffn_hidden else 0
        return count + 2 * self.hidden * self.moe.latent_hidden + self.latent_vectors

    @property
    def latent_vectors(self) -> int:
        """Parameters of the norm and the biases of both projections of a latent space of experts."""
        latent = self.moe.latent_hidden if self.moe else 0
        biases = self.has_linear_bias * (latent + self.hidden) if latent else 0
        return biases + (latent if self.moe and self.moe.has_latent_norm else 0)

    @cached_property
    def router_params(self) -> int:
        """Parameters of one MoE layer's router; never sharded."""
        if self.moe is None:
            return 0
        count = self.moe.num_experts * (self.hidden + (1 if self.moe.has_router_bias else 0))
        return count + (self.hidden + self.moe.num_experts if self.moe.has_router_scales else 0)

    def beside_mixer_params(self, kind: LayerKind) -> tuple[int, int]:
        """Parameters of a layer beside its mixer and its routed experts: divided by tp, and whole on every rank.

        Whole are norms, the router, the gate of shared experts, projections of a latent space of experts (Megatron:
        duplicated) and the output bias of an MLP.
        """
        whole = round(self.layer_norms(kind) * self.norm_params) + self.hyper_params + self.per_layer_params
        if isinstance(kind.feed_forward, NoFeedForward):
            return 0, whole
        if self.moe is not None and kind.is_moe:
            gate = self.hidden if self.moe.has_shared_gate and self.moe.shared_ffn_hidden else 0
            gate += 2 * self.hidden * self.moe.latent_hidden + self.latent_vectors
            return self.shared_expert_params - gate, whole + self.router_params + gate
        bias = self.mlp_biases(self.ffn_hidden_of(kind))[1]
        return self.mlp_params(self.ffn_hidden_of(kind)) - bias, whole + bias + self.activation_params

    def layer_params(self, kind: LayerKind) -> int:
        """All parameters of one layer of that kind, every expert included."""
        count = mixer_params(self.mixer(kind), self.hidden) + sum(self.beside_mixer_params(kind))
        has_experts = self.moe is not None and kind.is_moe and not isinstance(kind.feed_forward, NoFeedForward)
        return count + (self.moe.num_experts * self.expert_params if self.moe and has_experts else 0)

    @property
    def hyper_params(self) -> int:
        """Parameters of the hyper-connections of one layer: two mixing matrices with biases and scales.

        Formula, n streams: 2 * [(2 n + n^2) (n H + 1) + 3]. Source: modules of transformers 5.23 `deepseek_v4`.
        """
        n = self.hyper_streams
        return 2 * ((2 * n + n * n) * (n * self.hidden + 1) + 3) if n else 0

    @property
    def hyper_head_params(self) -> int:
        """Parameters that join the residual streams before the output norm."""
        n = self.hyper_streams
        return n * (n * self.hidden + 1) + 1 if n else 0

    @property
    def per_layer_params(self) -> int:
        """Parameters of one layer's own embedding: its gate, its projection and a norm; the table is the model's."""
        width = self.per_layer_embedding
        return 2 * self.hidden * width + self.hidden if width else 0

    @property
    def per_layer_table_params(self) -> int:
        """Parameters of the table of per-layer embeddings, of the projection beside it and its norm."""
        width = self.per_layer_embedding * self.num_layers
        return (self.vocab_size + self.hidden) * width + self.per_layer_embedding if width else 0

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding and of a learned position table."""
        return (self.vocab_size + self.learned_positions) * self.hidden

    @property
    def input_params(self) -> int:
        """Trained parameters of the first stage besides layers: embeddings, and towers that are not frozen."""
        return (
            self.embedding_params
            + self.per_layer_table_params
            + sum(tower.params for tower in self.towers if tower.is_trained)
        )

    @property
    def head_params(self) -> int:
        """Parameters of the output matrix; also when tied, since a pipeline keeps a copy on its last stage."""
        return self.vocab_size * self.hidden

    @cached_property
    def mtp_params(self) -> int:
        """Parameters of one multi-token-prediction module: its layers, the 2H x H join, and three norms."""
        return sum(map(self.layer_params, self.mtp_kinds)) + 2 * self.hidden**2 + 3 * self.norm_params

    @cached_property
    def total_params(self) -> int:
        """Parameters as published: without multi-token-prediction modules, padding of the vocabulary, biases that are
        buffers, and towers; a tied matrix counted once."""
        count = sum(self.layers.count(kind) * self.layer_params(kind) for kind in self.kinds)
        count += self.embedding_params + self.norm_params + self.hyper_head_params + self.per_layer_table_params
        count -= self.vocab_padding * self.hidden * (1 if self.is_tied else 2)
        if self.moe is not None and self.moe.has_router_bias and self.moe.is_router_bias_buffer:
            count -= self.num_moe_layers * self.moe.num_experts
        return count + (0 if self.is_tied else self.head_params)

    @cached_property
    def trained_params(self) -> int:
        """Parameters that training changes: all of `total_params`, or those of adapters alone, prediction layers'
        among them."""
        if self.adapters is None:
            return self.total_params
        return sum(adapter_params(self, kind) for kind in (*self.layers, *self.mtp_kinds * self.num_mtp_layers))

    @cached_property
    def num_moe_layers(self) -> int:
        """Layers whose feed-forward is experts."""
        return sum(kind.is_moe and not isinstance(kind.feed_forward, NoFeedForward) for kind in self.layers)

    @cached_property
    def active_params(self) -> int:
        """Parameters one token meets: as `total_params`, with top-k of the experts of each MoE layer."""
        if self.moe is None:
            return self.total_params
        idle = (self.moe.num_experts - self.moe.top_k) * self.expert_params
        return self.total_params - self.num_moe_layers * idle

    # --- FLOPs (per token, forward) --------------------------------------------------------------------------------

    def layer_flops(self, kind: LayerKind, seq_length: int) -> float:
        """Forward FLOPs per token of one layer: two per parameter of a matrix met, plus mixing."""
        mixer = self.mixer(kind)
        matrices = float(mixer_params(mixer, self.hidden))
        if kind.is_moe and not isinstance(kind.feed_forward, NoFeedForward):
            assert self.moe is not None
            matrices += self.router_params + self.shared_expert_params + self.moe.top_k * self.expert_params
        elif not isinstance(kind.feed_forward, NoFeedForward):
            matrices += self.mlp_params(self.ffn_hidden_of(kind))
        matrices += self.hyper_params + 2 * self.hidden * self.per_layer_embedding
        return 2.0 * (matrices + self.adapter_params_used(kind)) + mixer.mixing_flops(seq_length)

    def adapter_params_used(self, kind: LayerKind) -> float:
        """Parameters of adapters that one token meets in a layer of that kind."""
        if self.adapters is None:
            return 0.0
        top_k, rank = self.moe.top_k if self.moe else 1, self.adapters.rank
        return float(sum(o.params(rank) * (top_k if o.of_experts else 1) for o in adapted_matrices(self, kind)))

    def flops_per_token(self, seq_length: int) -> float:
        """Model FLOPs per trained token: forward plus twice that backward, head and MTP included, no recompute.

        The convention of Megatron-Bridge (causal attention counted half); the base of every MFU printed here. Of a
        frozen matrix backward has the gradient of its input alone.
        """
        flops = {kind: self.layer_flops(kind, seq_length) for kind in {*self.layers, *self.mtp_kinds}}
        forward = sum(flops[kind] for kind in self.layers) + 2.0 * self.head_params
        forward += 2.0 * self.hidden * self.per_layer_embedding * self.num_layers
        mtp = sum(flops[kind] for kind in self.mtp_kinds)
        mtp += 4.0 * self.hidden**2 + 2.0 * self.head_params
        every = 3.0 * (forward + self.num_mtp_layers * mtp)
        if self.adapters is None:
            return every
        layers = (*self.layers, *self.mtp_kinds * self.num_mtp_layers)
        mixing = sum(self.mixer(kind).mixing_flops(seq_length) for kind in layers)
        return every - (every / 3.0 - mixing - 2.0 * sum(self.adapter_params_used(kind) for kind in layers))


def encoder_model(tower: Tower) -> Model:
    """One encoder layer as a model, whose attention the caller takes as going both ways."""
    return Model(
        name=tower.name,
        num_layers=1,
        hidden=tower.hidden,
        ffn_hidden=tower.ffn_hidden,
        num_heads=tower.num_heads,
        num_kv_heads=tower.num_heads,
        head_dim=tower.head_dim,
        vocab_size=1,
        is_gated=tower.is_gated,
        has_linear_bias=not tower.is_gated,
    )
