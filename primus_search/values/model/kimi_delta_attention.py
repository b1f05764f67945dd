"""Kimi delta attention (KDA): the gated delta rule with a decay for every channel of the key."""

from dataclasses import dataclass

from primus_search.values.model.gated_delta_net import delta_rule_flops
from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaAttention:
    """KDA of Kimi Linear and Kimi-K3: queries, keys, values, a low-rank decay gate, an output gate.

    gate_rank      width of the low-rank output gate; 0: a full projection (Kimi-K3)
    has_gate_bias  a bias behind the low-rank output gate (flash-linear-attention, Primus)
    Source: Kimi Linear (arXiv:2510.26692) section 3; modules of transformers 5.23 `kimi_linear`.
    """

    num_heads: int
    head_dim: int
    value_dim: int = 0
    conv_kernel: int = 4
    gate_rank: int = 0
    has_gate_bias: bool = False
    chunk: int = 64

    @property
    def name(self) -> str:
        return f"Kimi delta attention {self.num_heads}"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def decay_rank(self) -> int:
        """Width between the two projections of the decay gate: one value head."""
        return self.value_dim or self.head_dim

    @property
    def value_out(self) -> int:
        return self.num_heads * (self.value_dim or self.head_dim)

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        found = [
            WeightMatrix(
                group="input", n=2 * self.inner + self.value_out + self.num_heads, k=hidden, split=Split.COLUMN
            ),
            WeightMatrix(group="decay down", n=self.decay_rank, k=hidden, split=Split.WHOLE),
            WeightMatrix(group="decay up", n=self.inner, k=self.decay_rank, split=Split.COLUMN),
            WeightMatrix(group="output", n=hidden, k=self.value_out, split=Split.ROW),
        ]
        if self.gate_rank:
            found.append(WeightMatrix(group="decay down", n=self.gate_rank, k=hidden, split=Split.WHOLE))
            found.append(WeightMatrix(group="gate up", n=self.value_out, k=self.gate_rank, split=Split.COLUMN))
        else:
            found.append(WeightMatrix(group="input", n=self.value_out, k=hidden, split=Split.COLUMN))
        return tuple(found)

    def vectors(self, hidden: int) -> tuple[int, int]:
        convolution = (2 * self.inner + self.value_out) * self.conv_kernel
        bias = self.value_out if self.has_gate_bias else 0
        return convolution + self.inner + self.num_heads + bias, self.value_dim or self.head_dim

    def core(self, hidden: int) -> MixingWork:
        convolved = 2 * self.inner + self.value_out
        return MixingWork(
            convolved=convolved, turned=3 * self.inner, gated=self.value_out, chunk=self.chunk, copied=convolved,
            scanned=3 * self.inner + 2 * self.value_out, state=self.value_out * self.head_dim,
            before_gate=self.value_out, rows=self.num_heads * (2.0 + self.chunk),
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        chunk = min(self.chunk, seq_length)
        return delta_rule_flops(self.num_heads, self.head_dim, self.value_dim or self.head_dim, chunk)
