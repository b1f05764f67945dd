"""Mixers with a state: Mamba-2, Gated DeltaNet, Kimi delta attention, Lightning attention, gated short convolution."""

from dataclasses import dataclass

from primus_search.values.model.mixer import Mixer, MixingWork, WeightMatrix, column, row, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A Mamba-2 mixer: H heads of size P with a state of N numbers per channel, B and C shared by G groups.

    Source: Dao and Gu 2024 (arXiv:2405.21060), section 6 for the chunked algorithm, section 7 for the block.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    conv_kernel: int = 4
    chunk: int = 128
    has_conv_bias: bool = True
    has_bias: bool = False

    @property
    def name(self) -> str:
        return f"Mamba-2 {self.num_heads} x {self.head_dim}, state {self.state_dim}"

    @property
    def inner(self) -> int:
        """Channels of the scan."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.num_groups * self.state_dim

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        inputs = self.inner + self.conv_channels + self.num_heads
        return (column("input", inputs, hidden), row("output", hidden, self.inner))

    def vectors(self, hidden: int) -> tuple[int, int]:
        convolution = self.conv_channels * (self.conv_kernel + (1 if self.has_conv_bias else 0))
        split = convolution + 3 * self.num_heads + self.inner
        if not self.has_bias:
            return split, 0
        return split + self.inner + self.conv_channels + self.num_heads, hidden

    def core(self, hidden: int) -> MixingWork:
        return MixingWork(
            convolved=self.conv_channels, gated=self.inner, scanned=self.conv_channels + self.inner, chunk=self.chunk,
            state=self.inner * self.state_dim, before_gate=2 * self.inner, rows=1,
            exchanged=(self.inner, self.inner, self.num_heads, self.inner), groups=self.num_groups,
            group_width=self.state_dim,
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        """Chunked scan, per token: C B^T and its product with x inside a chunk (causal), states in and out.

        Formula: Q G N + Q H P + 4 H P N, Q the chunk's length.
        """
        chunk = min(self.chunk, seq_length)
        inside = chunk * (self.num_groups * self.state_dim + self.inner)
        return float(inside + 4 * self.inner * self.state_dim)


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
        keys = column("input", 2 * self.key_out, hidden, limit=self.num_key_heads)
        values = column("input", 2 * self.value_out + 2 * self.num_value_heads, hidden)
        return keys, values, row("output", hidden, self.value_out)

    def vectors(self, hidden: int) -> tuple[int, int]:
        convolution = (2 * self.key_out + self.value_out) * self.conv_kernel
        return convolution + 2 * self.num_value_heads, self.value_dim

    def core(self, hidden: int) -> MixingWork:
        heads, convolved = self.num_value_heads, 2 * self.key_out + self.value_out
        return MixingWork(
            convolved=convolved, turned=2 * self.key_out, gated=self.value_out, scanned=convolved + self.value_out,
            chunk=self.chunk, state=heads * self.key_dim * self.value_dim,
            copied=convolved + 2 * heads * self.key_dim + self.value_out, before_gate=self.value_out,
            rows=heads * (2.0 + self.chunk / 2), exchanged=(convolved + self.value_out + 2 * heads, self.value_out),
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        chunk = min(self.chunk, seq_length)
        return delta_rule_flops(self.num_value_heads, self.key_dim, self.value_dim, chunk)


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
            column("input", 2 * self.inner + self.value_out + self.num_heads, hidden),
            whole("decay down", self.decay_rank, hidden),
            column("decay up", self.inner, self.decay_rank),
            row("output", hidden, self.value_out),
        ]
        if self.gate_rank:
            found.append(whole("decay down", self.gate_rank, hidden))
            found.append(column("gate up", self.value_out, self.gate_rank))
        else:
            found.append(column("input", self.value_out, hidden))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention:
    """The linear attention of MiniMax-Text-01: joint queries, keys, values; a normalised and gated output.

    Source: MiniMax-01 (arXiv:2501.08313) section 2.2; Qin et al. 2024 (arXiv:2401.04658) for the blocked algorithm.
    """

    num_heads: int
    head_dim: int
    block: int = 256

    @property
    def name(self) -> str:
        return f"lightning attention {self.num_heads}"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        return (column("input", 4 * self.inner, hidden), row("output", hidden, self.inner))

    def vectors(self, hidden: int) -> tuple[int, int]:
        return self.inner, 0

    def core(self, hidden: int) -> MixingWork:
        return MixingWork(
            turned=3 * self.inner, gated=self.inner, scanned=4 * self.inner, chunk=self.block,
            state=self.inner * self.head_dim, copied=3 * self.inner, before_gate=self.inner,
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        """Scores and values inside a block (causal), and the products with the state: 2 B d + 4 d^2 per head."""
        block = min(self.block, seq_length)
        return float(self.num_heads * (2 * block * self.head_dim + 4 * self.head_dim**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Mixer):
    """Two gates and an input from one projection, a depthwise causal convolution of `kernel` tokens, a projection out.

    Source: LFM2 technical report (arXiv:2511.23404) section 2; modules of transformers 5.23 `lfm2`.
    """

    kernel: int
    has_bias: bool = False

    @property
    def name(self) -> str:
        return f"short convolution {self.kernel}"

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        return (column("input", 3 * hidden, hidden), row("output", hidden, hidden))

    def vectors(self, hidden: int) -> tuple[int, int]:
        split = hidden * self.kernel
        return (split + 4 * hidden, hidden) if self.has_bias else (split, 0)

    def core(self, hidden: int) -> MixingWork:
        return MixingWork(copied=2 * hidden)
