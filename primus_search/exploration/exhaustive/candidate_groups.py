"""Number of the group that a candidate competes in: one parallel layout and precision."""

import numpy as np

from primus_search.exploration.exhaustive.shortlist import PRECISIONS, UNGROUPED
from primus_search.space.enumerate import Enumerator
from primus_search.values.candidates import Ints
from primus_search.values.knobs import KNOBS, Kind

LAYOUT = frozenset(knob.name for knob in KNOBS if knob.kind is Kind.DEGREE)
"""Degrees of parallelism: how ranks share the work."""
PRECISION = "fp8"


class Groups:
    """Number of the group of every candidate of a cluster, see `shortlist.PRECISIONS`.

    Candidates whose pipeline order depends on costs are in no group: finding their order takes longer than a slow
    layout deserves.
    """

    def __init__(self, enumerator: Enumerator) -> None:
        layout, _ = enumerator.outer_numbers(LAYOUT)
        self._first = np.where(enumerator.is_quick, layout * PRECISIONS, UNGROUPED - PRECISIONS)
        self._precision = enumerator.blocks[1].values[PRECISION].astype(np.int64)

    def of(self, cells: Ints, inner: Ints) -> Ints:
        """Group of each pair of an outer cell and an inner combination, below 0 for none."""
        return self._first[cells] + self._precision[inner]
