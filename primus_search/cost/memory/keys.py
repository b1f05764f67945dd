"""Pipelines as memory sees them: numbers for those that differ in what their ranks hold, and the moments of each.

Two candidates share a number when schedule, stages, layout, relief of layers and the micro-batches that tell peaks
apart agree. New pipelines of one order are walked through together, however many settings of recompute they have.
"""

import numpy as np
from numpy.typing import NDArray

from primus_search.candidates import Candidates, Floats, Ints, Recompute
from primus_search.cost.factor import Rows, Vocabulary
from primus_search.cost.memory.live import telling_microbatches
from primus_search.cost.memory.ranks import Pipeline, Relief, Units, memory_kinds, worst_moments
from primus_search.errors import ScheduleError
from primus_search.layout import Layout
from primus_search.model import Model

NEVER = 1e15
"""Layers, micro-batches, ... of a pipeline that cannot run: finite, and more than any device holds."""


def relief_of(c: Candidates) -> Relief:
    """What every row recomputes and offloads."""
    is_full = (c.recompute & int(Recompute.FULL)) != 0
    return Relief.of(is_full, c.recompute_method, c.recompute_num_layers, c.offload_layers)


def pipeline_of(c: Candidates, row: int, microbatches: int) -> Pipeline:
    """The pipeline of a row; micro-batches beyond what changes a peak are not told apart."""
    pp, vpp = int(c.pp[row]), int(c.vpp[row])
    schedule = c.schedules[int(c.schedule[row])] if pp > 1 else "1f1b"
    few = telling_microbatches(schedule, pp, vpp, microbatches)
    return Pipeline(schedule, pp, vpp, few, c.layouts[int(c.pipeline_layout[row])])


class PipelineMoments:
    """The worst moments of every pipeline met so far: those of number i are first[i] .. first[i + 1] of `units`."""

    def __init__(self, model: Model) -> None:
        self._model, self._width = model, Units(len(memory_kinds(model))).width
        self._keys, self._shapes = Vocabulary(), Vocabulary()
        self._words: dict[str | Layout, int] = {}
        self._pipelines: dict[Pipeline, int] = {}
        self._number = np.zeros(0, dtype=np.int64)
        self.first: Ints = np.zeros(1, dtype=np.int64)
        self._units = Rows(self._width)

    @property
    def size(self) -> int:
        """Keys met so far."""
        return self._keys.size

    @property
    def units(self) -> Floats:
        """(moments, units)"""
        return self._units.data

    def codes(self, c: Candidates, microbatches: Ints) -> Ints:
        """The number of every row's pipeline."""
        is_full = (c.recompute & int(Recompute.FULL)) != 0
        recompute = is_full * (1 + c.recompute_method + 2 * c.recompute_num_layers)
        layout, schedule = self._coded(c.layouts)[c.pipeline_layout], self._coded(c.schedules)[c.schedule]
        columns = [c.pp, c.vpp, schedule, layout, microbatches, recompute, c.offload_layers]
        codes, first = self._keys.encode(columns)
        if len(first):
            self._number = np.concatenate([self._number, self._added(c.take(first), microbatches[first])])
        found: Ints = self._number[codes]
        return found

    def _added(self, c: Candidates, microbatches: Ints) -> Ints:
        """Numbers of pipelines, those that are new with their moments."""
        same, first = Vocabulary().encode([c.schedule, c.pp, c.vpp, c.pipeline_layout, microbatches])
        pipelines = [pipeline_of(c, i, int(microbatches[i])) for i in first.tolist()]
        pipeline = np.array([self._pipelines.setdefault(p, len(self._pipelines)) for p in pipelines])[same]
        relief = relief_of(c)
        # Sorted, so that what is new of one pipeline gets numbers in a row.
        order = np.argsort(pipeline, kind="stable")
        columns = [column[order] for column in (pipeline, relief.again, relief.group, relief.offload)]
        numbers, new = self._shapes.encode(columns)
        for members in np.split(order[new], np.flatnonzero(np.diff(pipeline[order[new]])) + 1):
            if len(members):
                self._append(pipelines[same[members[0]]], relief.take(members))
        out = np.empty_like(numbers)
        out[order] = numbers
        return out

    def _append(self, pipeline: Pipeline, relief: Relief) -> None:
        """Add the moments of one pipeline under some settings."""
        try:
            moments = worst_moments(self._model, pipeline, relief)
            first, units = moments.first, moments.units
        except ScheduleError:
            # No order serves this shape (too few micro-batches, a layout of other stages): fits on no device.
            first = np.arange(len(relief.again) + 1)
            units = np.full((len(relief.again), self._width), NEVER)
        self.first = np.concatenate([self.first, self._units.size + first[1:]])
        self._units.append(units)

    def _coded(self, words: tuple[str, ...] | tuple[Layout, ...]) -> NDArray[np.int64]:
        """Numbers of schedules or layouts that stay the same from chunk to chunk."""
        return np.array([self._words.setdefault(word, len(self._words)) for word in words], dtype=np.int64)
