"""Distinct combinations of columns are numbered in their order, whatever the bounds of the columns."""

import tracemalloc

import numpy as np
import pytest

from primus_search.space.enumerate import densified


@pytest.mark.parametrize("rows", [0, 1, 40, 3000])
@pytest.mark.parametrize("bounds", [(2,), (3, 5), (7, 60, 9), (50, 900, 800, 70, 3)])
def test_numbers_are_those_of_sorting(rows: int, bounds: tuple[int, ...]) -> None:
    rng = np.random.default_rng(rows)
    columns = [rng.integers(0, bound, rows) for bound in bounds]
    number, example = densified(list(zip(columns, bounds, strict=True)), rows)
    keys = np.stack(columns, axis=1)
    distinct, first, expected = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    assert number.tolist() == expected.ravel().tolist()
    assert example.tolist() == first.tolist()
    assert len(example) == len(distinct)


def test_few_rows_take_no_room_for_all_combinations() -> None:
    columns = [(np.arange(1000) % bound, bound) for bound in (400, 300, 130)]  # 15.6 million combinations
    tracemalloc.start()
    densified(columns, 1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
