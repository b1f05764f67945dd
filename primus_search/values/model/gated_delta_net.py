"""Gated DeltaNet: linear attention with a decaying state that is corrected by the delta rule."""

from dataclasses import dataclass

from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix


def delta_rule_flops(num_heads: int, key_dim: int, value_dim: int, chunk: int) -> float:
    """FLOPs per token of the chunked (gated) delta rule in its WY form, forward.

    Formula, per head with chunk C, key K, value V: scores of keys and of queries C K each (causal), the triangular
    inverse C^2 / 3 and its products with keys and values C (K + V), the output inside the chunk C V, and three
    products with the state, 2 K V each.
    Source: Yang et al. 2024 (arXiv:2406.06484) section 3; Yang, Kautz, Hatamizadeh 2024 (arXiv:2412.06464) section 3.
    """
    inside = chunk * (2 * key_dim + key_dim + value_dim + value_dim) + chunk * chunk / 3.0
    return num_heads * (inside + 6.0 * key_dim * value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """The linear-attention mixer of Qwen3-Next and Qwen3.5: queries and keys, values, an output gate, two scalars.

    A short convolution runs over queries, keys and values; the output is normalised per head and gated.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    chunk: int = 64

    @property
    def name(self) -> str:
        return f"Gated DeltaNet {self.num_value_heads}/{self.num_key_heads}"

    @property
    def num_heads(self) -> int:
        return self.num_value_heads

    @property
    def key_out(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_out(self) -> int:
        return self.num_value_heads * self.value_dim

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        keys = WeightMatrix(group="input", n=2 * self.key_out, k=hidden, split=Split.COLUMN, limit=self.num_key_heads)
        values = WeightMatrix(
            group="input", n=2 * self.value_out + 2 * self.num_value_heads, k=hidden, split=Split.COLUMN
        )
        return keys, values, WeightMatrix(group="output", n=hidden, k=self.value_out, split=Split.ROW)

    def vectors(self, hidden: int) -> tuple[int, int]:
        convolution = (2 * self.key_out + self.value_out) * self.conv_kernel
        return convolution + 2 * self.num_value_heads, self.value_dim

    def core(self, hidden: int) -> MixingWork:
        heads, convolved = self.num_value_heads, 2 * self.key_out + self.value_out
        return MixingWork(
            convolved=convolved, turned=2 * self.key_out, gated=self.value_out, scanned=convolved + self.value_out,
            chunk=self.chunk, state=heads * self.key_dim * self.value_dim,
            copied=convolved + 2 * heads * self.key_dim + self.value_out, before_gate=self.value_out,
            rows=heads * (2.0 + self.chunk / 2),
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        chunk = min(self.chunk, seq_length)
        return delta_rule_flops(self.num_value_heads, self.key_dim, self.value_dim, chunk)
