"""Long tests have their turn in `make test`: each on one day of `DAYS`, spread over all of them."""

from collections import Counter
from datetime import date, timedelta

import pytest

from tests.support.daily import DAY, DAYS, is_turn

NAMES = [f"tests/room/test_file.py::test_{number}" for number in range(200)]


def test_every_long_test_has_one_turn_within_the_days(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: Counter[str] = Counter()
    for day in range(DAYS):
        monkeypatch.setenv(DAY, f"{date(2026, 11, 28) + timedelta(day)}")
        today = [name for name in NAMES if is_turn(name)]
        assert 0.5 < len(today) * DAYS / len(NAMES) < 2.0
        turns.update(today)
    assert turns == dict.fromkeys(NAMES, 1)
