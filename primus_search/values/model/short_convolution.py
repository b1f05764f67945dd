"""Gated short convolution: the mixer of LFM2's convolution layers."""

from dataclasses import dataclass

from primus_search.values.model.mixer import MixingWork, Split, WeightMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution:
    """Two gates and an input from one projection, a depthwise causal convolution of `kernel` tokens, a projection out.

    Source: LFM2 technical report (arXiv:2511.23404) section 2; modules of transformers 5.23 `lfm2`.
    """

    kernel: int
    has_bias: bool = False

    @property
    def name(self) -> str:
        return f"short convolution {self.kernel}"

    @property
    def num_heads(self) -> int:
        return 0

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        return (
            WeightMatrix(group="input", n=3 * hidden, k=hidden, split=Split.COLUMN),
            WeightMatrix(group="output", n=hidden, k=hidden, split=Split.ROW),
        )

    def vectors(self, hidden: int) -> tuple[int, int]:
        split = hidden * self.kernel
        return (split + 4 * hidden, hidden) if self.has_bias else (split, 0)

    def core(self, hidden: int) -> MixingWork:
        return MixingWork(copied=2 * hidden)

    def mixing_flops(self, seq_length: int) -> float:
        return 0.0
