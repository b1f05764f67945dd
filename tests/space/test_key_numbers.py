"""Numbers of distinct keys: those of a dictionary, whatever the columns hold and however they come."""

import numpy as np
import pytest

from primus_search.space.memo import KeyNumbers

ENDS = np.iinfo(np.int64)
RANGES = [(0, 2), (1, 9), (-3, 4), (0, 5000), (ENDS.min, ENDS.max), (ENDS.max - 5, ENDS.max), (ENDS.min, ENDS.min + 9)]


@pytest.mark.parametrize("seed", range(40))
def test_rows_have_the_number_of_their_first_sight(seed: int) -> None:
    rng, numbers = np.random.default_rng(seed), KeyNumbers()
    known: dict[tuple[int, ...], int] = {}
    kinds = rng.integers(0, len(RANGES) + 2, size=rng.integers(1, 30))
    for _ in range(rng.integers(1, 9)):
        rows = int(rng.integers(0, 700))
        columns = [_column(rng, kind, rows) for kind in kinds]
        before = len(known)
        keys = [*zip(*(column.tolist() for column in columns), strict=True)]
        expected = [known.setdefault(key, len(known)) for key in keys]
        codes, first = numbers.encode(columns)
        assert codes.tolist() == expected
        assert first.tolist() == [expected.index(number) for number in range(before, len(known))]
        assert numbers.size == len(known)


def _column(rng: np.random.Generator, kind: int, rows: int) -> np.ndarray:
    if kind == len(RANGES):
        return rng.choice([0.0, -0.0, 1.5, np.inf, -1e-300], size=rows).view(np.int64)
    if kind > len(RANGES):
        return rng.random(rows) < 0.5
    low, high = RANGES[kind]
    few = rng.integers(low, high, size=3, endpoint=True)
    return rng.choice(few, size=rows)
