"""Zero-bubble variants of fused orders: split BW into B and W and run W where a rank would idle.

Every zero-bubble schedule here is an order of forwards and input gradients, which is a pattern, plus weight gradients,
which depend on the costs and on the memory. This module does the second part for all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primus_search.schedule import kernels
from primus_search.schedule.costs import Floats
from primus_search.schedule.registry import Request
from primus_search.schedule.table import Table


def patiences(p: int) -> tuple[Floats, ...]:
    """How much of a W must fit into a gap before it runs there, per rank; all are tried, the fastest is kept.

    A late input gradient delays all ranks before this one, so the first ranks can afford less patience.
    """
    ramp = np.arange(p) / max(1, p - 1)
    return (np.ones(p), ramp, np.full(p, 0.5), 0.5 * ramp, np.minimum(1.0, np.arange(p)), np.zeros(p), np.full(p, -1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Woven:
    """An order with W passes placed, not yet a table: most of them lose against another one."""

    makespan: float
    span: float
    pattern: Table
    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    micro_batch: NDArray[np.int32]

    def table(self) -> Table:
        """The table."""
        return Table(
            name=self.pattern.name,
            stages=self.pattern.stages,
            microbatches=self.pattern.microbatches,
            virtual_stages=self.pattern.virtual_stages,
            placement=self.pattern.placement,
            offsets=self.offsets,
            kind=self.kind,
            stage=self.stage,
            micro_batch=self.micro_batch,
            overlaps_next=np.zeros(len(self.kind), dtype=np.bool_),
        )


def weave(request: Request, pattern: Table, memory_limit: float, patience: Floats) -> Woven | None:
    """A fused order with its weight gradients placed; None when the pattern itself exceeds the limit."""
    links = pattern.links
    verdict, _, offsets, kind, stage, micro, makespan, span = kernels.weave(
        pattern.offsets, pattern.kind, pattern.stage, pattern.micro_batch, links.source, links.hop, pattern.stages,
        request.costs.duration, request.costs.comm, request.costs.activation, memory_limit, patience,
    )  # fmt: skip
    if verdict != kernels.GOOD:
        return None
    return Woven(makespan=makespan, span=span, pattern=pattern, offsets=offsets, kind=kind, stage=stage,
                 micro_batch=micro)  # fmt: skip
