"""Lightning attention: linear attention with a fixed decay per head, in blocks."""

from dataclasses import dataclass

from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix


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
        return (
            WeightMatrix(group="input", n=4 * self.inner, k=hidden, split=Split.COLUMN),
            WeightMatrix(group="output", n=hidden, k=self.inner, split=Split.ROW),
        )

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
