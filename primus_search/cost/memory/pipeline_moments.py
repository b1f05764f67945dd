"""Pipelines as memory sees them: numbers for those that differ in what their ranks hold, and the moments of each.

Two candidates share a number when schedule, stages, layout, relief of layers and the micro-batches that tell peaks
apart agree. New pipelines of one order are walked through together, however many settings of recompute they have.
"""

import numpy as np

from primus_search.base.errors import ScheduleError
from primus_search.cost.memory.held_microbatches import telling_microbatches
from primus_search.cost.memory.rank_moments import Pipeline, Relief, Units, memory_kinds, rank_moments
from primus_search.space.memo import Canonical, KeyNumbers, Rows, WordNumbers, alike, distinct
from primus_search.values.candidates import Candidates, Floats, Ints, Recompute
from primus_search.values.job import Job

NEVER = 1e15
"""Layers, micro-batches, ... of a pipeline that cannot run: finite, and more than any device holds."""


def relief_of(c: Candidates) -> Relief:
    """What every row recomputes and offloads."""
    is_full = (c.recompute & int(Recompute.FULL)) != 0
    return Relief.of(is_full, c.recompute_method, c.recompute_num_layers, c.offload_layers)


def pipeline_of(job: Job, c: Candidates, row: int, microbatches: int) -> Pipeline:
    """The pipeline of a row; micro-batches beyond what changes a peak count as one."""
    order = c.order(row, job.launcher)
    return Pipeline(order, telling_microbatches(order, microbatches), c.layouts[int(c.pipeline_layout[row])])


def moment_columns(c: Candidates, microbatches: Ints, words: WordNumbers) -> Canonical:
    """Columns that are equal where two rows hold the same at every moment of their pipelines."""
    is_full = (c.recompute & int(Recompute.FULL)) != 0
    recompute = is_full * (1 + c.recompute_method + 2 * c.recompute_num_layers)
    relief = {"recompute": recompute, "recompute_method": None, "recompute_num_layers": None}
    return {**words.columns(c), "microbatches": microbatches, **relief}


class PipelineMoments:
    """The worst moments of the pipelines of a memo: those of row i are `units` first[n] .. first[n + 1], n = number[i].

    Rows that differ in what moments do not see, such as micro-batches beyond a few, have the same `number`.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._width = job, Units(len(memory_kinds(job.model))).width
        self._units, self.number = Rows(self._width), Rows(dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Drop every pipeline."""
        self._pipelines: dict[Pipeline, int] = {}
        self._reliefs = KeyNumbers()
        self.first: Ints = np.zeros(1, dtype=np.int64)
        self._units.clear()
        self.number.clear()

    def append(self, numbers: Ints) -> None:
        """Add rows by what `added` made of them."""
        self.number.append(numbers)

    @property
    def units(self) -> Floats:
        """(moments, units)"""
        return self._units.data

    def added(self, c: Candidates, microbatches: Ints) -> Ints:
        """The number of every row's pipeline; moments of new ones are worked out."""
        same, first = distinct([c.schedule, *c.order_counts, c.pipeline_layout, microbatches])
        pipelines = [pipeline_of(self._job, c, i, int(microbatches[i])) for i in first.tolist()]
        pipeline = np.array([self._pipelines.setdefault(p, len(self._pipelines)) for p in pipelines])[same]
        relief = relief_of(c)
        # Sorted, so that what is new of one pipeline gets numbers in a row.
        order = np.argsort(pipeline, kind="stable")
        columns = [column[order] for column in (pipeline, relief.again, relief.group, relief.offload)]
        numbers, new = self._reliefs.encode(columns)
        fresh = order[new]
        for members in (fresh[rows] for rows in alike(pipeline[fresh][None])):
            self._append(pipelines[same[members[0]]], relief.take(members))
        out = np.empty_like(numbers)
        out[order] = numbers
        return out

    def _append(self, pipeline: Pipeline, relief: Relief) -> None:
        """Add the moments of one pipeline under some settings."""
        try:
            moments = rank_moments(self._job.model, pipeline, relief, across=True)
            first, units = moments.first, moments.units
        except ScheduleError:
            # No order serves this shape (too few micro-batches, a layout of other stages): fits on no device.
            first = np.arange(len(relief.again) + 1)
            units = np.full((len(relief.again), self._width), NEVER)
        self.first = np.concatenate([self.first, self._units.size + first[1:]])
        self._units.append(units)
