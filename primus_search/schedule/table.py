"""The order in which every pipeline rank runs its passes: what an algorithm produces and a simulator consumes.

A table has one flat column per property (kind, stage, micro-batch) and one row per pass; rank `r` owns rows
`offsets[r]:offsets[r + 1]` and runs them top to bottom. Two ranks, two micro-batches, 1F1B:

    rank 0:  F(0,0) F(0,1) BW(0,0) BW(0,1)
    rank 1:  F(1,0) BW(1,0) F(1,1) BW(1,1)

`stage` is the virtual stage: the position of the chunk in the model, 0 .. p * vpp - 1. A bidirectional pipeline
(DualPipe) holds the model twice: virtual stages 0 .. p-1 are the copy that runs down the ranks, p .. 2p-1 the copy
that runs up, each with half of the micro-batches numbered from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import ScheduleError
from primus_search.schedule.simulation import pass_kernels

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class PassKind(IntEnum):
    """What a pass computes: forward, input gradient, weight gradient, or both gradients in one go."""

    F = pass_kernels.F
    B = pass_kernels.B
    W = pass_kernels.W
    BW = pass_kernels.BW


class Placement(StrEnum):
    """Which rank holds virtual stage s of p * vpp: s mod p; down and up again; or two copies in opposite directions."""

    LOOP = "loop"
    V = "v"
    BIDIRECTIONAL = "bidirectional"


@lru_cache(maxsize=4096)
def rank_of_stage(placement: Placement, stages: int, virtual_stages: int) -> NDArray[np.int16]:
    """Pipeline rank of every virtual stage (read-only); both copies, one after the other, when bidirectional."""
    s = np.arange(stages * virtual_stages)
    match placement:
        case Placement.LOOP:
            ranks = s % stages
        case Placement.V:
            lap, inside = s // stages, s % stages
            ranks = np.where(lap % 2 == 0, inside, stages - 1 - inside)
        case Placement.BIDIRECTIONAL:
            ranks = np.concatenate([s, stages - 1 - s])
    out = ranks.astype(np.int16)
    out.setflags(write=False)
    return out


class RankOrder(NamedTuple):
    """The passes of one rank in order; passes i and i + 1 with `overlaps_next[i]` run as one F&B pair."""

    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    micro_batch: NDArray[np.int32]
    overlaps_next: Bools | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What every pass waits for besides its rank: `source[i]` is a row (or -1) whose output crosses hop `hop[i]`.

    `order` lists the rows so that every row comes after what it waits for.
    """

    source: NDArray[np.int32]
    hop: NDArray[np.int16]
    rank: NDArray[np.int16]
    order: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A complete pipeline order. Not slotted: what is derived from the order is computed once and kept."""

    name: str
    stages: int
    microbatches: int
    virtual_stages: int
    placement: Placement
    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    micro_batch: NDArray[np.int32]
    overlaps_next: Bools

    def __post_init__(self) -> None:
        for column in (self.offsets, self.kind, self.stage, self.micro_batch, self.overlaps_next):
            column.setflags(write=False)

    @classmethod
    def from_ranks(
        cls,
        name: str,
        ranks: Sequence[RankOrder],
        *,
        microbatches: int,
        virtual_stages: int = 1,
        placement: Placement = Placement.LOOP,
    ) -> "Table":
        """A table from the order of each rank."""
        sizes = [len(rank.kind) for rank in ranks]
        pairs = [
            np.zeros(n) if one.overlaps_next is None else one.overlaps_next for n, one in zip(sizes, ranks, strict=True)
        ]
        return cls(
            name=name,
            stages=len(ranks),
            microbatches=microbatches,
            virtual_stages=virtual_stages,
            placement=placement,
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            kind=np.concatenate([rank.kind for rank in ranks]).astype(np.int8),
            stage=np.concatenate([rank.stage for rank in ranks]).astype(np.int16),
            micro_batch=np.concatenate([rank.micro_batch for rank in ranks]).astype(np.int32),
            overlaps_next=np.concatenate(pairs).astype(np.bool_),
        )

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def copies(self) -> int:
        """How many copies of the model the ranks hold: 2 when bidirectional, else 1."""
        return 2 if self.placement is Placement.BIDIRECTIONAL else 1

    @property
    def model_stages(self) -> int:
        """Virtual stages one micro-batch goes through: p * vpp."""
        return self.stages * self.virtual_stages

    @property
    def microbatches_per_copy(self) -> int:
        """Micro-batches that go through one copy of the model."""
        return self.microbatches // self.copies

    @property
    def rank_of_stage(self) -> NDArray[np.int16]:
        """Pipeline rank of every virtual stage."""
        return rank_of_stage(self.placement, self.stages, self.virtual_stages)

    @property
    def has_pairs(self) -> bool:
        """Whether any forward overlaps with a backward."""
        return bool(self.overlaps_next.any())

    @property
    def is_finite(self) -> bool:
        """Whether the order can finish."""
        try:
            self.links  # noqa: B018  (asking for the links is what finds a deadlock)
        except ScheduleError:
            return False
        return True

    def rank(self, rank: int) -> RankOrder:
        """The order of one rank."""
        rows = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        return RankOrder(self.kind[rows], self.stage[rows], self.micro_batch[rows], self.overlaps_next[rows])

    def describe(self, row: int) -> str:
        """A row as people write it, such as `F(stage 3, micro-batch 5)`."""
        return _pass(int(self.kind[row]), int(self.stage[row]), int(self.micro_batch[row]))

    @cached_property
    def links(self) -> Links:
        """Dependencies of all rows. Raises `ScheduleError` when the order is incomplete or can never finish."""
        verdict, a, b, c, source, hop, rank, order = pass_kernels.link(
            self.offsets,
            self.kind,
            self.stage,
            self.micro_batch,
            self.overlaps_next,
            self.rank_of_stage,
            self.model_stages,
            self.microbatches_per_copy,
        )
        if verdict != pass_kernels.GOOD:
            raise ScheduleError(f"{self.name} p={self.stages} m={self.microbatches}: {self._reason(verdict, a, b, c)}")
        for column in (source, hop, rank, order):
            column.setflags(write=False)
        return Links(source=source, hop=hop, rank=rank, order=order)

    def _reason(self, verdict: int, a: int, b: int, c: int) -> str:
        """Why the order cannot run; a, b, c are rows, or kind, stage and micro-batch when a pass is missing."""
        if verdict == pass_kernels.MISSING:
            where = int(self.rank_of_stage[b])
            return (
                f"rank {where} never runs {_pass(a, b, c)}; every micro-batch needs F, B and W of every virtual stage"
            )
        rank = int(np.searchsorted(self.offsets, a, side="right")) - 1
        here = f"rank {rank}, {self.describe(a)}"
        match verdict:
            case pass_kernels.OUT_OF_RANGE:
                return (
                    f"{here} does not exist; virtual stages are 0..{len(self.rank_of_stage) - 1}, "
                    f"micro-batches 0..{self.microbatches_per_copy - 1}"
                )
            case pass_kernels.WRONG_RANK:
                return f"{here} belongs to rank {int(self.rank_of_stage[self.stage[a]])}"
            case pass_kernels.DUPLICATE:
                return f"{here} is a duplicate of work already listed as {self.describe(b)}"
            case pass_kernels.BAD_PAIR:
                return f"{here} is marked as overlapped but no backward on the same rank follows a forward"
            case pass_kernels.OWN_LATER:
                return f"{here} waits for {self.describe(b)}, which the same rank runs only later"
        waits_on = int(np.searchsorted(self.offsets, b, side="right")) - 1
        return f"{here} waits for {self.describe(b)} of rank {waits_on}, which can never run: the order is deadlocked"


def _pass(kind: int, stage: int, micro_batch: int) -> str:
    return f"{PassKind(kind).name}(stage {stage}, micro-batch {micro_batch})"
