"""Mamba-2: a state-space model computed in chunks (SSD)."""

from dataclasses import dataclass

from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix


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
        return (
            WeightMatrix(group="input", n=inputs, k=hidden, split=Split.COLUMN),
            WeightMatrix(group="output", n=hidden, k=self.inner, split=Split.ROW),
        )

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
        )  # fmt: skip

    def mixing_flops(self, seq_length: int) -> float:
        """Chunked scan, per token: C B^T and its product with x inside a chunk (causal), states in and out.

        Formula: Q G N + Q H P + 4 H P N, Q the chunk's length.
        """
        chunk = min(self.chunk, seq_length)
        inside = chunk * (self.num_groups * self.state_dim + self.inner)
        return float(inside + 4 * self.inner * self.state_dim)
