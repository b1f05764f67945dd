"""Boxes of measured sizes: where a law, or a stack's numbers, were compared with measurements.

The owner of a range is a device or a software stack; its kind names the law and the sizes:

    gemm/<recipe>               m, n, k of the forward product
    attention/<family>          queries of one rank, size of a query/key head
    grouped_gemm/<recipe>       rows of one expert, n, k
    collectives/inside, /across ranks inside one domain; nodes of a group that spans several
    dispatch/inside, /across    likewise, of tokens sent to their experts
    memory/<dense|moe>          peak in GB
    regime/<dense|moe>/<how>    nothing: a run sharded, recomputed and accumulated so (`cost.confidence.regimes`)
    <device>/<dense|moe>/<bf16|low>   of a stack: GPUs and sequence length of the training runs it was fitted to

Recipes are named as in `candidates.Fp8`, BF16 as bf16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OCTAVE = 2.0
"""Laws are smooth: up to this factor beyond the ends of a range still counts as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A box of sizes in which so many points were measured, and where they are from."""

    points: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or any(a > b for a, b in zip(self.low, self.high, strict=False)):
            raise ValueError("low and high need as many sizes, low the smaller ones")

    def outside(self, sizes: Sequence[float]) -> int | None:
        """The position of the first size beyond the box and its octave; None inside."""
        if len(sizes) != len(self.low):
            raise ValueError(f"this range is of {len(self.low)} sizes")
        for i, (size, low, high) in enumerate(zip(sizes, self.low, self.high, strict=True)):
            if not low / OCTAVE <= size <= high * OCTAVE:
                return i
        return None


Ranges = Mapping[str, Mapping[str, Range]]
"""Owner -> kind -> range."""

CAPACITY = "accelerator.hbm_bytes"
"""A number that says how much fits, and nothing about rates."""
