"""What a test draws anew every day, where it walks a list itself; parameters of tests have the mark `daily(n)`."""

import os
import random
from collections.abc import Collection
from datetime import date
from typing import Any, TypeVar
from zlib import crc32

import pytest

DAY = "TEST_DAY"
"""Variable of the environment with the day whose samples are drawn."""
DAYS = 6
"""Days within which every long test has its turn."""
TODAY_OR_ALL = [False, pytest.param(True, marks=pytest.mark.full)]
"""Parameters of a test that walks a list: what the day draws, and under `full` the whole of it."""

One = TypeVar("One")


def today_or_all(few: int, many: int) -> list[Any]:
    """Parameters of a test that draws anew in each run: so many examples, and under `full` so many more."""
    return [few, pytest.param(many, marks=pytest.mark.full)]


def drawn(name: str, ones: Collection[One], count: int, *, whole: bool = False) -> list[One]:
    """So many of them as the day and the name draw, in their order; `whole`: all."""
    if whole or count >= len(ones):
        return list(ones)
    places = set(random.Random(os.environ[DAY] + name).sample(range(len(ones)), count))
    return [one for place, one in enumerate(ones) if place in places]


def is_turn(name: str) -> bool:
    """Whether the day is the one of `DAYS` on which a long test of this name runs."""
    return (date.fromisoformat(os.environ[DAY]).toordinal() + crc32(name.encode())) % DAYS == 0
