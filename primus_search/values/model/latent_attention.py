"""Multi-head latent attention (MLA), with compressed queries or without, with an indexer or without."""

from dataclasses import dataclass
from functools import partial

from primus_search.values.model.indexer import Indexer
from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix, attended_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes of multi-head latent attention: low-rank queries, one compressed key/value vector per token.

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
class LatentMixer:
    """MLA as the mixer of a layer.

    has_bias         biases of the down-projections and of the output (attention_bias of DeepSeek)
    has_output_gate  a gate on the output, from the hidden state (Kimi-K3)
    has_latent_norm  norms of the compressed queries, keys and values
    """

    num_heads: int
    latent: LatentAttention
    has_bias: bool = False
    has_output_gate: bool = False
    indexer: Indexer | None = None

    @property
    def name(self) -> str:
        selected = f", top {self.indexer.top_k:,}" if self.indexer else ""
        return f"latent attention {self.num_heads}{selected}"

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        a, heads = self.latent, self.num_heads
        q_out, v_out = heads * a.qk_head_dim, heads * a.v_head_dim
        queries: tuple[WeightMatrix, ...] = (WeightMatrix(group="queries", n=q_out, k=hidden, split=Split.COLUMN),)
        if a.q_lora_rank:
            queries = (
                WeightMatrix(group="q down", n=a.q_lora_rank, k=hidden, split=Split.WHOLE),
                WeightMatrix(group="q up", n=q_out, k=a.q_lora_rank, split=Split.COLUMN),
            )
        kv_out = heads * (a.qk_nope_head_dim + a.v_head_dim)
        rest = (
            WeightMatrix(group="kv down", n=a.kv_lora_rank + a.qk_rope_head_dim, k=hidden, split=Split.WHOLE),
            WeightMatrix(group="kv up", n=kv_out, k=a.kv_lora_rank, split=Split.COLUMN),
            WeightMatrix(group="output", n=hidden, k=v_out, split=Split.ROW),
        )
        gate = (WeightMatrix(group="gate", n=v_out, k=hidden, split=Split.COLUMN),) if self.has_output_gate else ()
        return queries + rest + gate + (self.indexer.projections(hidden) if self.indexer else ())

    def vectors(self, hidden: int) -> tuple[int, int]:
        a = self.latent
        whole = a.q_lora_rank + a.kv_lora_rank
        if self.has_bias:
            whole += a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim + hidden
        return 0, whole + (self.indexer.vector_params if self.indexer else 0)

    def core(self, hidden: int) -> MixingWork:
        """Under an indexer keys and values per head are never made: its absorbed form reads latents."""
        a, heads = self.latent, self.num_heads
        gate = heads * a.v_head_dim if self.has_output_gate else 0
        both = partial(MixingWork, turned=4 * heads * a.qk_head_dim, gated=gate, rows=heads)
        keys_values = heads * (a.qk_nope_head_dim + a.v_head_dim)
        if self.indexer is None:
            copied, passing = heads * (2 * a.qk_head_dim + a.v_head_dim), keys_values + heads * a.qk_head_dim
            return both(copied=copied, before_gate=gate, passing=passing)
        copied = heads * (a.kv_lora_rank + a.qk_rope_head_dim)
        return both(copied=copied, before_gate=heads * a.kv_lora_rank + gate, passing=keys_values)

    def mixing_flops(self, seq_length: int) -> float:
        """Products of queries with keys and of scores with values.

        With an indexer, queries attend in the latent space to one key/value head, because each query reads keys of its
        own: 2 A (2 Rkv + Rr) per selected key. The up-projections of keys and values then act on queries and outputs,
        with the FLOPs that the projections count. Source: Megatron-Core 0.20 absorbed MLA; arXiv:2512.02556.
        """
        a = self.latent
        if self.indexer is None:
            return 2.0 * self.num_heads * (a.qk_head_dim + a.v_head_dim) * attended_tokens(seq_length, 0)
        per_key = 2.0 * self.num_heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim)
        return per_key * attended_tokens(seq_length, self.indexer.top_k) + self.indexer.scoring_flops(seq_length)
