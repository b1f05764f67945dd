"""What one micro-batch costs in each virtual stage, and between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from primus_search.base.errors import ScheduleError
from primus_search.base.guards.values import LARGEST
from primus_search.schedule.table import Placement, rank_of_stage

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCosts:
    """Costs with one entry per virtual stage; every array is read-only and as long as the placement has stages.

    `comm[s]` is the time from the end of a pass of stage s to the earliest start of stage s + 1 (and back, for
    gradients); 0 where both are on one rank. `activation[s]` is in units of one micro-batch through one full rank.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    comm: Floats
    activation: Floats
    overlap: float

    @property
    def fused(self) -> Floats:
        """Time of input and weight gradient in one pass."""
        return self.backward + self.weight

    @property
    def duration(self) -> Floats:
        """Time by [kind, stage], rows in the order of `Kind`."""
        return np.stack([self.forward, self.backward, self.weight, self.fused])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """Time of one micro-batch through one FULL rank stage, in any one unit.

    A scalar is a full rank's share, so a chunk costs 1/vpp of it; an array gives every virtual stage its own time.
    `comm` is the time of one hop between two ranks: a scalar, or one entry per hop s -> s + 1 (p * vpp - 1 of
    them); it is never divided by vpp and is 0 between stages of one rank. `last_head_extra = x` makes the last
    virtual stage cost F * (1/vpp + x), likewise B and W: the output head. `activation`: what a virtual stage keeps
    per micro-batch, in units of a full rank stage (1/vpp each unless given). `overlap` is the share of the shorter
    pass that an overlapped F&B pair hides: 0 is no credit, 1 is max(F, B + W).
    """

    forward: ArrayLike = 1.0
    backward: ArrayLike = 1.0
    weight: ArrayLike = 1.0
    comm: ArrayLike = 0.0
    last_head_extra: float = 0.0
    activation: ArrayLike | None = None
    overlap: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "weight", "comm", "activation"):
            given = self.__getattribute__(name)
            if given is None:
                continue
            values = np.array(given, dtype=np.float64)
            if values.ndim > 1:
                raise ScheduleError(
                    f"costs.{name}: {values.ndim} dimensions; give a scalar or one entry per virtual stage"
                )
            if not np.all((values >= 0.0) & (values <= LARGEST)):
                raise ScheduleError(f"costs.{name}: {given}; times are at least 0 and at most {LARGEST:g}")
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if not 0.0 <= self.overlap <= 1.0:
            raise ScheduleError(f"costs.overlap: {self.overlap}; the hidden share lies in 0..1")
        if not self.last_head_extra >= 0.0:
            raise ScheduleError(f"costs.last_head_extra: {self.last_head_extra}; an extra share is not negative")

    def per_stage(self, placement: Placement, stages: int, virtual_stages: int) -> StageCosts:
        """These costs for every virtual stage of a placement."""
        n = stages * virtual_stages
        ranks = rank_of_stage(placement, stages, virtual_stages)
        copies = len(ranks) // n
        crosses = ranks[:-1] != ranks[1:]
        comm = np.zeros(len(ranks))
        hops = _spread("costs.comm", self.comm, n - 1, per="hop between virtual stages")
        comm[:-1] = np.where(crosses, np.tile(np.append(hops, 0.0), copies)[:-1], 0.0)
        own = {name: self._stages(name, n, virtual_stages) for name in ("forward", "backward", "weight")}
        kept = 1.0 if self.activation is None else self.activation
        own["activation"] = _spread("costs.activation", kept, n, parts=virtual_stages)
        arrays = {name: np.tile(values, copies) for name, values in own.items()} | {"comm": comm}
        for values in arrays.values():
            values.setflags(write=False)
        return StageCosts(overlap=self.overlap, **arrays)

    def _stages(self, name: str, n: int, vpp: int) -> Floats:
        given: ArrayLike = self.__getattribute__(name)
        out = _spread(f"costs.{name}", given, n, parts=vpp)
        if np.ndim(given) == 0:
            out[-1] += self.last_head_extra * float(np.asarray(given))
        elif self.last_head_extra:
            raise ScheduleError("costs.last_head_extra: only with scalar costs; an array already has its last stage")
        return out


def _spread(name: str, given: ArrayLike, wanted: int, *, parts: int = 1, per: str = "virtual stage") -> Floats:
    """One entry per stage or hop: a scalar over so many parts in each, or the entries that are given."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim == 0:
        return np.full(wanted, float(values) / parts)
    if len(values) != wanted:
        raise ScheduleError(f"{name}: {len(values)} entries; give a scalar or {wanted}, one per {per}")
    return values.copy()
