"""Measured seconds before modelled ones: between measured shapes a law is corrected by what was measured near them.

Formula: seconds = law(x) * exp(near(x) * sum_i w_i log(measured_i / law(x_i)) / sum_i w_i)
    x_i measured shapes, d_i = |log2 x - log2 x_i| their distance in octaves, w_i = d_i^-4
    near(x) = 1 up to `reach` octaves from the nearest measured shape, falling to 0 at twice that
    reach   = the largest distance from a measured shape to its nearest neighbour: how far apart the sweep stepped
At a measured shape the result is the measurement; the law carries the form in between (waves, ramps, traffic), so only
its slowly varying error is interpolated; far outside the law stands alone.

Source: inverse-distance weighting, Shepard 1968 (doi:10.1145/800186.810616); correcting a model instead of the raw
durations is usual for kernels, whose rates vary far less than their durations.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from primus_search.values.candidates import Floats, Fp8
from primus_search.values.machine.kernel_tables import KernelTable, Tables

SHARPNESS = 4.0
LEAST_REACH = 1.0  # octaves
_TINY = 1e-12


def measured_over_law(table: KernelTable | None, law: Callable[..., Floats], *sizes: ArrayLike) -> Floats | float:
    """Factor for the law at these sizes: 1 where nothing was measured near them or there is no table."""
    if table is None:
        return 1.0
    known = _known(table)
    modelled = np.asarray(law(*np.array(table.shapes).T), np.float64)
    errors = np.log(np.array(table.seconds) / modelled)
    distance = _distances(known, sizes)
    weights = 1.0 / (distance**SHARPNESS + _TINY)
    blended = (weights * errors).sum(axis=-1) / weights.sum(axis=-1)
    result: Floats | float = np.exp(blended * _nearness(known, distance.min(axis=-1)))
    return result


RECIPES = {recipe: "bf16" if recipe is Fp8.NONE else recipe.name.lower() for recipe in Fp8}
"""How tables name the precision of their operands."""


def corrected(
    seconds: Floats,
    tables: Tables,
    family: str,
    direction: str,
    code: np.ndarray,
    law: Callable[..., Floats],
    *sizes: ArrayLike,
) -> Floats:
    """The law's seconds, rows of each recipe corrected by the table `family/recipe/direction` where there is one.

    law  takes the recipe's code and a shape
    """
    for recipe, word in RECIPES.items():
        table = tables.of(f"{family}/{word}/{direction}")
        if table is not None:
            factor = measured_over_law(table, partial(law, np.int64(recipe)), *sizes)
            seconds = np.where(code == recipe, seconds * factor, seconds)
    return seconds


def is_measured(table: KernelTable | None, *sizes: ArrayLike) -> np.ndarray:
    """Whether these sizes lie among the measured ones."""
    if table is None:
        return np.zeros(np.broadcast_shapes(*(np.shape(size) for size in sizes)), dtype=np.bool_)
    known = _known(table)
    result: np.ndarray = _distances(known, sizes).min(axis=-1) <= _reach(known)
    return result


def _known(table: KernelTable) -> Floats:
    return np.log2(np.array(table.shapes, np.float64))


def _distances(known: Floats, sizes: tuple[ArrayLike, ...]) -> Floats:
    """Octaves from every wanted shape to every measured one, measured ones on the last axis."""
    columns = np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes))
    wanted = np.log2(np.maximum(np.stack(columns, axis=-1), _TINY))
    result: Floats = np.linalg.norm(wanted[..., None, :] - known, axis=-1)
    return result


def _reach(known: Floats) -> float:
    if len(known) == 1:
        return LEAST_REACH
    gaps = np.linalg.norm(known[:, None, :] - known, axis=-1)
    np.fill_diagonal(gaps, np.inf)
    return max(float(gaps.min(axis=1).max()), LEAST_REACH)


def _nearness(known: Floats, nearest: Floats) -> Floats:
    reach = _reach(known)
    return np.clip(2.0 - nearest / reach, 0.0, 1.0)
