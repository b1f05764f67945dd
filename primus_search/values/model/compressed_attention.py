"""Attention of DeepSeek-V4: one shared key/value head, a short window, compressed blocks of the tokens before it."""

from dataclasses import dataclass

from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix, attended_tokens

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
            WeightMatrix(group="q down", n=self.q_lora_rank, k=hidden, split=Split.WHOLE),
            WeightMatrix(group="q up", n=inner, k=self.q_lora_rank, split=Split.COLUMN),
            WeightMatrix(group="kv", n=self.head_dim, k=hidden, split=Split.WHOLE),
            WeightMatrix(
                group="output down",
                n=self.o_lora_rank,
                k=inner // self.o_groups,
                split=Split.COLUMN,
                limit=self.o_groups,
                copies=self.o_groups,
            ),
            WeightMatrix(group="output up", n=hidden, k=self.o_groups * self.o_lora_rank, split=Split.ROW),
        ]
        if self.ratio:
            found.append(WeightMatrix(group="compressor", n=2 * self.compressor_width, k=hidden, split=Split.WHOLE))
        if self.is_indexed:
            found += [
                WeightMatrix(group="index keys", n=4 * self.index_dim + self.index_heads, k=hidden, split=Split.WHOLE),
                WeightMatrix(
                    group="index queries", n=self.index_heads * self.index_dim, k=self.q_lora_rank, split=Split.WHOLE
                ),
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
        return MixingWork(turned=2 * inner, copied=inner, rows=self.num_heads, passing=inner)

    def mixing_flops(self, seq_length: int) -> float:
        per_key = 4.0 * self.num_heads * self.head_dim
        keys = attended_tokens(seq_length, self.window) + self.entries(seq_length)
        scored = attended_tokens(seq_length // self.ratio, 0) if self.is_indexed else 0.0
        return per_key * keys + 2.0 * self.index_heads * self.index_dim * scored
