"""Mixers with attention: multi-head and grouped-query, latent (MLA), compressed (DeepSeek-V4); the indexer of keys."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from primus_search.values.model.mixer import MixingWork, WeightMatrix, attended_tokens, column, row, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Scores of DeepSeek sparse attention (DSA, `block` 1) or of block-sparse attention (MiniMax-M3).

    top_k       keys a query may read, whole blocks counted by token
    query_rank  width of the compressed queries that the indexer's queries are made of; 0: from the hidden state
    block       tokens of one selected block
    has_weights a learned weight per head and token; norm_params: parameters of its norms
    has_own     false in a layer that reuses the selection of an earlier one (GLM-5.2) and has no weights of its own

    Source: DeepSeek-V3.2 (arXiv:2512.02556) section 2.1 for shapes: per query and key, one product of `head_dim` and
    a ReLU for each of `num_heads` heads with one shared key.
    """

    num_heads: int
    head_dim: int
    top_k: int
    query_rank: int = 0
    block: int = 1
    has_weights: bool = True
    norm_params: int = 0
    has_own: bool = True

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        """Queries, one shared key and the weights of heads; replicated over tensor-parallel ranks."""
        if not self.has_own:
            return ()
        queries = whole("index queries", self.num_heads * self.head_dim, self.query_rank or hidden)
        keys = whole("index keys", self.head_dim, hidden)
        weights = whole("index keys", self.num_heads, hidden)
        return (queries, keys, weights) if self.has_weights else (queries, keys)

    @property
    def vector_params(self) -> int:
        return self.norm_params if self.has_own else 0

    def scoring_flops(self, seq_length: int) -> float:
        """FLOPs per token to score all earlier tokens."""
        if not self.has_own:
            return 0.0
        return 2.0 * self.num_heads * self.head_dim * attended_tokens(seq_length, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention of `num_heads` queries on `num_kv_heads` keys and values.

    v_head_dim        size of a value head where it differs from the keys'; 0: the same
    window            tokens a query sees; 0: all before it
    chunk             attention inside chunks of that many tokens (Llama 4); 0: none
    qk_norm           a norm of queries and keys over each head, or over all heads together (OLMo 2, MiniMax-M2)
    has_output_gate   queries come with a gate on the output, of their size (Qwen3-Next, Qwen3.5)
    is_gated_by_head  that gate is one number per head (Laguna)
    has_shared_kv     keys serve as values too (Gemma 4 global layers)
    reuses_kv         keys and values are those of an earlier layer (cross-layer sharing)
    indexer           selection of the keys a query reads, for sparse attention
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    window: int = 0
    chunk: int = 0
    qk_norm: Literal["none", "head", "all"] = "none"
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_sinks: bool = False
    has_output_gate: bool = False
    is_gated_by_head: bool = False
    has_shared_kv: bool = False
    reuses_kv: bool = False
    indexer: Indexer | None = None

    @property
    def name(self) -> str:
        reach = f", window {self.window:,}" if self.window else f", chunks of {self.chunk:,}" if self.chunk else ""
        reach = f", top {self.indexer.top_k:,}" if self.indexer else reach
        return f"attention {self.num_heads}/{self.num_kv_heads}{reach}"

    @property
    def value_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    @property
    def kv_out(self) -> int:
        """Columns of the key and value projections together."""
        if self.reuses_kv:
            return 0
        return self.num_kv_heads * (self.head_dim + (0 if self.has_shared_kv else self.value_dim))

    @property
    def gate_out(self) -> int:
        """Columns of the gate's projection."""
        return self.num_heads * (1 if self.is_gated_by_head else self.head_dim) if self.has_output_gate else 0

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        queries = column("qkv", self.num_heads * self.head_dim + self.gate_out, hidden)
        keys = column("qkv", self.kv_out, hidden, limit=self.num_kv_heads)
        output = row("output", hidden, self.num_heads * self.value_dim)
        own = (queries, output) if self.reuses_kv else (queries, keys, output)
        return own + (self.indexer.projections(hidden) if self.indexer else ())

    def vectors(self, hidden: int) -> tuple[int, int]:
        q_out = self.num_heads * self.head_dim
        split = self.num_heads if self.has_sinks else 0
        if self.has_qkv_bias:
            split += q_out + (0 if self.is_gated_by_head else self.gate_out) + self.kv_out
        if self.qk_norm == "all":
            split += q_out + (0 if self.reuses_kv else self.num_kv_heads * self.head_dim)
        whole = hidden if self.has_output_bias else 0
        if self.qk_norm == "head":
            whole += self.head_dim * (1 if self.reuses_kv else 2)
        return split, whole + (self.indexer.vector_params if self.indexer else 0)

    def core(self, hidden: int) -> MixingWork:
        heads = self.num_heads + (0 if self.reuses_kv else self.num_kv_heads)
        gate = self.num_heads * self.value_dim if self.has_output_gate else 0
        turned = heads * self.head_dim * (1 if self.qk_norm == "none" else 2)
        return MixingWork(
            turned=turned, gated=gate, copied=heads * self.head_dim, before_gate=gate, rows=self.num_heads
        )

    def mixing_flops(self, seq_length: int) -> float:
        per_key = 2.0 * self.num_heads * (self.head_dim + self.value_dim)
        if self.indexer is not None:
            selected = attended_tokens(seq_length, self.indexer.top_k)
            return per_key * selected + self.indexer.scoring_flops(seq_length)
        if self.chunk and self.chunk < seq_length:
            return per_key * self.chunk / 2.0
        return per_key * attended_tokens(seq_length, self.window)


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
    has_sinks        a learned sink per head
    """

    num_heads: int
    latent: LatentAttention
    has_bias: bool = False
    has_sinks: bool = False
    has_output_gate: bool = False
    indexer: Indexer | None = None

    @property
    def name(self) -> str:
        selected = f", top {self.indexer.top_k:,}" if self.indexer else ""
        return f"latent attention {self.num_heads}{selected}"

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        a, heads = self.latent, self.num_heads
        q_out, v_out = heads * a.qk_head_dim, heads * a.v_head_dim
        queries: tuple[WeightMatrix, ...] = (column("queries", q_out, hidden),)
        if a.q_lora_rank:
            queries = (whole("q down", a.q_lora_rank, hidden), column("q up", q_out, a.q_lora_rank))
        kv_out = heads * (a.qk_nope_head_dim + a.v_head_dim)
        rest = (
            whole("kv down", a.kv_lora_rank + a.qk_rope_head_dim, hidden),
            column("kv up", kv_out, a.kv_lora_rank),
            row("output", hidden, v_out),
        )
        gate = (column("gate", v_out, hidden),) if self.has_output_gate else ()
        return queries + rest + gate + (self.indexer.projections(hidden) if self.indexer else ())

    def vectors(self, hidden: int) -> tuple[int, int]:
        a = self.latent
        whole = a.q_lora_rank + a.kv_lora_rank
        if self.has_bias:
            whole += a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim + hidden
        split = self.num_heads if self.has_sinks else 0
        return split, whole + (self.indexer.vector_params if self.indexer else 0)

    def core(self, hidden: int) -> MixingWork:
        """Under an indexer keys and values per head are never made: its absorbed form reads latents."""
        a, heads = self.latent, self.num_heads
        gate = heads * a.v_head_dim if self.has_output_gate else 0
        up = ("q up" if a.q_lora_rank else "queries", "kv up")
        both = partial(MixingWork, turned=4 * heads * a.qk_head_dim, gated=gate, rows=heads, up=up)
        keys_values = heads * (a.qk_nope_head_dim + a.v_head_dim)
        if self.indexer is None:
            copied, passing = heads * (2 * a.qk_head_dim + a.v_head_dim), keys_values + heads * a.qk_head_dim
            return both(copied=copied, before_gate=gate, passing=passing)
        copied = heads * (a.kv_lora_rank + a.qk_rope_head_dim)
        own = (self.indexer.head_dim,) if self.indexer.has_own else ()
        gathered = (a.kv_lora_rank + a.qk_rope_head_dim, *own)
        return both(copied=copied, before_gate=heads * a.kv_lora_rank + gate, passing=keys_values, gathered=gathered)

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


OVERLAP_RATIO = 4
"""Compression ratio at which blocks overlap, so that the compressor has two halves, and an indexer selects blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Compressed sparse attention (CSA, ratio 4) and heavily compressed attention (HCA, ratio 128); ratio 0: a window.

    Queries go through a low rank; keys and values are one head shared by all; the output goes through `o_groups`
    blocks of rank `o_lora_rank`. `ratio` tokens are compressed into one entry; under CSA the indexer selects `top_k`
    entries, under HCA all are read. Every layer reads the last `window` tokens as they are.

    Source: modules of transformers 5.23 `deepseek_v4` for shapes; DeepSeek-V4 technical report for the parts' names.
    """

    num_heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int = 0
    index_heads: int = 0
    index_dim: int = 0
    top_k: int = 0

    @property
    def name(self) -> str:
        kind = {0: f"window {self.window:,}", OVERLAP_RATIO: f"CSA 1/{self.ratio}, top {self.top_k:,}"}
        return f"shared-key attention {self.num_heads}, {kind.get(self.ratio, f'HCA 1/{self.ratio}')}"

    @property
    def is_indexed(self) -> bool:
        return self.ratio == OVERLAP_RATIO

    @property
    def compressor_width(self) -> int:
        """Columns of the compressor's keys and of its gate."""
        return self.head_dim * (2 if self.is_indexed else 1)

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        inner = self.num_heads * self.head_dim
        found = [
            whole("q down", self.q_lora_rank, hidden),
            column("q up", inner, self.q_lora_rank),
            whole("kv", self.head_dim, hidden),
            column("output down", self.o_lora_rank, inner // self.o_groups, limit=self.o_groups, copies=self.o_groups),
            row("output up", hidden, self.o_groups * self.o_lora_rank),
        ]
        if self.ratio:
            found.append(whole("compressor", 2 * self.compressor_width, hidden))
        if self.is_indexed:
            found += [
                whole("index keys", 4 * self.index_dim + self.index_heads, hidden),
                whole("index queries", self.index_heads * self.index_dim, self.q_lora_rank),
            ]
        return tuple(found)

    def vectors(self, hidden: int) -> tuple[int, int]:
        whole = self.q_lora_rank + self.head_dim
        if self.ratio:
            whole += self.ratio * self.compressor_width + self.head_dim
        if self.is_indexed:
            whole += self.ratio * 2 * self.index_dim + self.index_dim
        return self.num_heads, whole

    def entries(self, seq_length: int) -> float:
        """Mean number of compressed entries one query reads."""
        if not self.ratio:
            return 0.0
        mean = attended_tokens(seq_length // self.ratio, 0)
        return attended_tokens(seq_length // self.ratio, self.top_k) if self.is_indexed else mean

    def core(self, hidden: int) -> MixingWork:
        inner = self.num_heads * self.head_dim
        return MixingWork(turned=2 * inner, copied=inner, rows=self.num_heads, up=("q up", "kv"))

    def mixing_flops(self, seq_length: int) -> float:
        per_key = 4.0 * self.num_heads * self.head_dim
        keys = attended_tokens(seq_length, self.window) + self.entries(seq_length)
        scored = attended_tokens(seq_length // self.ratio, 0) if self.is_indexed else 0.0
        return per_key * keys + 2.0 * self.index_heads * self.index_dim * scored
