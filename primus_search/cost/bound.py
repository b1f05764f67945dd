"""A bound on the step of many candidates at once: those that differ only in what their layers cost and hide.

Every second of a layer only lengthens a pipeline, so the least seconds that any member has of each piece give a
makespan none of them can beat; the most seconds give the largest window that gradient traffic could hide behind, and
the least traffic of any member is what it must at least pay.

    step of a member >= (bound(least layers) + exposed(least traffic, most windows) + least optimizer) * stragglers
"""

import numpy as np

from primus_search.candidates import Bools, Floats, Ints
from primus_search.cost.factor import Rows
from primus_search.cost.pipeline import ROUNDING, Shapes
from primus_search.cost.project import Projector
from primus_search.cost.replicas import REPLICA_TERMS
from primus_search.cost.terms import Terms
from primus_search.cost.work import Part, Pass

WINDOW_SLACK = 1e-9
"""Windows are widened by this share: they are summed in another order than those of a single candidate."""


class Ends:
    """The least and the most of the terms of each bundle's members, one row per distinct set of members."""

    def __init__(self, terms: Terms) -> None:
        pieces, kinds = terms.num_pieces, terms.num_kinds
        passes = pieces * len(Pass)
        total = passes + pieces * len(Part) + kinds
        self._terms = terms
        # Of a layer row, what a makespan is made of: passes and recompute; the split into parts is not.
        self._columns = np.concatenate([np.arange(passes), np.arange(total - kinds, total)])
        self.low, self.high = Rows(passes + kinds), Rows(passes + kinds)
        self.replicas = Rows(REPLICA_TERMS + 1)

    def add_layers(self, codes: Ints, first: Ints) -> Ints:
        """Rows for sets of layer rows: set i has codes[first[i]:first[i + 1]]; returns their numbers."""
        members = self._terms.layers.data[codes][:, self._columns]
        numbers = np.arange(self.low.size, self.low.size + len(first))
        self.low.append(np.minimum.reduceat(members, first, axis=0))
        self.high.append(np.maximum.reduceat(members, first, axis=0))
        return numbers

    def add_replicas(self, codes: Ints, overlaps: Bools, first: Ints) -> Ints:
        """Rows for sets of replica rows and whether any of them overlaps its traffic with compute."""
        members = self._terms.replicas.data[codes]
        numbers = np.arange(self.replicas.size, self.replicas.size + len(first))
        helps = np.maximum.reduceat(overlaps.astype(np.float64), first)
        self.replicas.append(np.column_stack([np.minimum.reduceat(members, first, axis=0), helps]))
        return numbers


def step_bound(
    projector: Projector, ends: Ends, *, shape: Ints, layers: Ints, replicas: Ints, microbatches: Ints, hops: Floats
) -> Floats:
    """Seconds that no candidate of a bundle can beat; `layers` and `replicas` are rows of `ends`."""
    from primus_search.cost import kernels

    shapes: Shapes = projector.terms.shapes
    out = np.empty((len(shape), 3))
    kernels.enclose(shape, layers, microbatches, hops, ends.low.data, ends.high.data, *shapes.arrays, out)
    pipeline_s = out[:, 0] * (1.0 - ROUNDING)
    backward_s, forward_s = out[:, 1] * (1.0 + WINDOW_SLACK), out[:, 2] * (1.0 + WINDOW_SLACK)
    terms = ends.replicas.data[replicas]
    overlaps = terms[:, REPLICA_TERMS] > 0.0
    return projector.total_of(pipeline_s, *projector.after_of(terms, overlaps, forward_s, backward_s))
