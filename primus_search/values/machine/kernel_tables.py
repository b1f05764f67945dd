"""Measured calls of one kind (a GEMM in BF16, forward; an all-reduce), which projections take before any law.

`measured_correction` interpolates between them. A table is a CSV beside the hardware file, written by
`primus-search calibrate --device`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

GROUPED = "grouped_gemm"
"""Kind of a call that multiplies for all experts of a rank, in tables, ranges and files of points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Seconds of one kind of call at measured shapes; a shape is as many sizes as the kind has, all positive.

    Shapes by kind (kinds are joined with '/'):
        gemm/<recipe>/fwd|bwd       m, n, k of the forward product; bwd is both gradients together
        grouped_gemm/<recipe>/...   groups, rows of each, n, k; likewise
        attention/<family>/...      batch times heads, sequence, head dimension; causal, whole sequences
        all_reduce, all_gather, reduce_scatter, all_to_all, send    ranks, bytes as the cost model counts them
    """

    kind: str
    shapes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shapes or len(self.shapes) != len(self.seconds):
            raise ValueError(f"{self.kind}: a table needs one duration for each of its shapes, and at least one")
        if min(self.seconds) <= 0.0 or min(min(shape) for shape in self.shapes) <= 0.0:
            raise ValueError(f"{self.kind}: sizes and seconds are positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of a device or a network, at most one of each kind."""

    tables: tuple[KernelTable, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables)

    def __iter__(self) -> Iterator[KernelTable]:
        return iter(self.tables)

    def of(self, kind: str) -> KernelTable | None:
        """The table of that kind, if it was measured."""
        return next((table for table in self.tables if table.kind == kind), None)


NO_TABLES = Tables()
