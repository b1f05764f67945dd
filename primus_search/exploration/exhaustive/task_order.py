"""The order in which a search takes the outer cells of a cluster: a task is a range, and costs what is new in it.

Two things are dear: the layers of cells that lay ranks out alike (tp, cp, ep, micro-batch size, ...), and the orders of
a pipeline (schedule, ranks, micro-batches). A large space pays for its layers. So cells that share layers stand
together, and cells that share layers share tp * cp / micro_batch_size, hence at every depth of pipeline the number of
micro-batches: sorted by that ratio, hardly two tasks have a layer or an order in common, whoever does them. What is
best lies in few tasks, too. A small space pays for its orders: it is walked as it is numbered, pipeline by pipeline.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from primus_search.cost.project import HOP_READS, SHAPE_READS
from primus_search.space import Enumerator
from primus_search.space.enumerate import OUTER
from primus_search.values.candidates import Ints

SMALL_ROWS = 400_000
"""Rows up to which a space costs its orders and hardly its layers; a second process hardly pays."""

CELL_READS = HOP_READS
"""The outer axes that a layer's seconds depend on; `pp`, which decides what FSDP gathers, sees each layer once."""


PIPELINE_READS = (SHAPE_READS - {"pipeline_layout"}).intersection(OUTER)
"""What an order depends on, besides micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """The outer cells of one cluster in the order of the search, and the candidates before each.

    cells   outer cells                               starts  candidates before each of them, and the size
    first   number of the first candidate of each     marks   where tasks like to begin, the most wanted last
    """

    cells: Ints
    starts: Ints
    first: Ints
    marks: tuple[Ints, ...]

    @classmethod
    def of(cls, enumerator: Enumerator) -> Self:
        """The order of a cluster's candidates; it depends on the space alone."""
        if enumerator.size <= SMALL_ROWS:
            cells = np.arange(len(enumerator.starts) - 1)
            pipelines, _ = enumerator.outer_numbers(PIPELINE_READS)
            return cls._ordered(enumerator, cells, [pipelines])
        layers, _ = enumerator.outer_numbers(CELL_READS)
        ratio = enumerator.microbatches / enumerator.blocks[0].values["pp"]
        return cls._ordered(enumerator, np.lexsort((layers, ratio)), [layers, ratio])

    @classmethod
    def _ordered(cls, enumerator: Enumerator, cells: Ints, kinds: list[np.ndarray]) -> Self:
        lengths = np.diff(enumerator.starts)[cells]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        changes = [np.flatnonzero(np.diff(kind[cells])) + 1 for kind in kinds]
        marks = [starts, *(starts[np.concatenate([[0], change, [len(cells)]])] for change in changes)]
        return cls(cells=cells, starts=starts, first=enumerator.starts[cells], marks=tuple(marks))

    @property
    def is_small(self) -> bool:
        """Whether all tasks of the cluster are as good as each other to begin with."""
        return bool(self.starts[-1] <= SMALL_ROWS)

    def numbers(self, places: Ints) -> Ints:
        """The numbers of the candidates that stand at these places of the order."""
        at = np.searchsorted(self.starts, places, side="right") - 1
        return self.first[at] + places - self.starts[at]

    def group_of(self, start: int) -> int:
        """The stretch between two of the most wanted marks in which a task begins; inside one, orders are the same."""
        return int(np.searchsorted(self.marks[-1], start, side="right")) - 1

    def cuts(self, rows: int) -> Ints:
        """Where tasks of about `rows` begin and end: at the most wanted mark nearby, else where a cell begins."""
        size = int(self.starts[-1])
        cuts = np.arange(rows, size, rows)
        for marks in self.marks:
            after = np.searchsorted(marks, cuts).clip(1, len(marks) - 1)
            near = np.where(cuts - marks[after - 1] < marks[after] - cuts, marks[after - 1], marks[after])
            cuts = np.where(np.abs(near - cuts) <= rows // 4, near, cuts)
        return np.unique(np.concatenate([[0], cuts, [size]]))
