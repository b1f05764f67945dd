"""Multi-head and grouped-query attention, over everything before or a window or chunk of it."""

from dataclasses import dataclass
from typing import Literal

from primus_search.values.model.indexer import Indexer
from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix, attended_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention of `num_heads` queries on `num_kv_heads` keys and values.

    v_head_dim        size of a value head where it differs from the keys'; 0: the same
    window            tokens a query sees; 0: all before it
    chunk             attention inside chunks of that many tokens (Llama 4); 0: none
    qk_norm           a norm of queries and keys over each head, or over all heads together (OLMo 2, MiniMax-M2)
    has_output_gate   queries come with a gate of their size on the output (Qwen3-Next, Qwen3.5)
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

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        q_out = self.num_heads * self.head_dim * (2 if self.has_output_gate else 1)
        queries = WeightMatrix(group="qkv", n=q_out, k=hidden, split=Split.COLUMN)
        keys = WeightMatrix(group="qkv", n=self.kv_out, k=hidden, split=Split.COLUMN, limit=self.num_kv_heads)
        output = WeightMatrix(group="output", n=hidden, k=self.num_heads * self.value_dim, split=Split.ROW)
        own = (queries, output) if self.reuses_kv else (queries, keys, output)
        return own + (self.indexer.projections(hidden) if self.indexer else ())

    def vectors(self, hidden: int) -> tuple[int, int]:
        q_out = self.num_heads * self.head_dim
        split = self.num_heads if self.has_sinks else 0
        if self.has_qkv_bias:
            split += q_out * (2 if self.has_output_gate else 1) + self.kv_out
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
