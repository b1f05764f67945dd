"""Minimum of a quadratic inside bounds."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def bounded_minimum(curvature: Floats, pull: Floats, start: Floats, low: Floats, high: Floats) -> Floats:
    """The point inside the bounds that minimises x'Cx/2 - p'x: what leaves them is held, the rest solved again."""
    free = np.ones(len(start), dtype=np.bool_)
    x = start.copy()
    while free.any():
        held = pull[free] - curvature[np.ix_(free, ~free)] @ x[~free]
        x[free] = np.linalg.solve(curvature[np.ix_(free, free)], held)
        outside = free & ((x < low) | (x > high))
        x = np.clip(x, low, high)
        if not outside.any():
            break
        free &= ~outside
    return x
