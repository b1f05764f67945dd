"""No line takes a regular expression forever: its time grows with the length of the line, not with its square."""

import re
import time

import pytest

from primus_search.files.known_keys import key_table
from primus_search.launch.read.launcher_table import launchers
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.hostile_lines import Pattern, Pump, hostile, line, patterns_of

LENGTHS = (50, 400, 3_000)
"""The first ones find a search of cubic time before it takes minutes."""
LONGEST_OF_THE_DAY = 50
"""Patterns that are tried on the longest lines each day."""
TIMES_LONGER = 8
MOST_GROWTH = 22.6
"""Of the time, from a line to one that many times longer: between 8 for a linear pattern and 64 for a quadratic one,
by as wide a factor from either."""
TINY_S = 2e-3
"""A search that takes less on the longer line is not looked at: clocks and caches would decide."""


@pytest.fixture(scope="module")
def patterns() -> dict[str, Pattern]:
    """Every pattern of the package and of its tables; not while tests are collected, as it imports all modules."""
    return patterns_of("primus_search") | patterns_of_tables()


def patterns_of_tables() -> dict[str, Pattern]:
    """Patterns that stand in the tables of launchers and of other files, by their text."""
    others = key_table("other_files")
    texts = [one for row in (*others["devices"], *others["kinds"]) for one in row[:-1]]
    texts += [one for launcher in launchers().values() for one in (launcher.program, *launcher.parts.values())]
    return {text: re.compile(text.removeprefix("!"), re.MULTILINE) for text in texts if text}


def growth(pattern: Pattern, pump: Pump, length: int) -> float:
    """How many times longer a search takes on a longer line; 0 where it takes no time."""
    short, long = line(pump, length), line(pump, TIMES_LONGER * length)
    long_s = _seconds(pattern, long, 1)
    if long_s < TINY_S:
        return 0.0
    found = long_s / max(_seconds(pattern, short, 2), 1e-9)
    if found > MOST_GROWTH:  # another process may have slowed the longer line down
        found = min(found, _seconds(pattern, long, 3) / max(_seconds(pattern, short, 3), 1e-9))
    return found


def _seconds(pattern: Pattern, text: str, repeats: int) -> float:
    """Processor seconds of a search, the least of some."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        pattern.search(text)
        found.append(time.process_time() - began)
    return min(found)


def slowness(name: str, pattern: Pattern, lengths: tuple[int, ...]) -> str:
    """The first line on which the time of a pattern grows too fast; empty where there is none."""
    for length in lengths:
        for pump in hostile(pattern):
            found = growth(pattern, pump, length)
            if found > MOST_GROWTH:
                return f"{name}: {found:.1f} times from {length} characters on: {line(pump, 60)!r}"
    return ""


@pytest.mark.in_turn("patterns")
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_the_time_of_a_pattern_grows_no_faster_than_its_line(patterns: dict[str, Pattern], whole: bool) -> None:
    longest = drawn("patterns", patterns, LONGEST_OF_THE_DAY, whole=whole)
    lengths = {name: LENGTHS if name in longest else LENGTHS[:-1] for name in patterns}
    assert [said for name, pattern in patterns.items() if (said := slowness(name, pattern, lengths[name]))] == []


@pytest.mark.in_turn("patterns")
def test_patterns_are_found_by_import_and_in_the_source(patterns: dict[str, Pattern]) -> None:
    assert len(patterns) > 100
    assert any("_CLOCK" in name for name in patterns) and any(".py:" in name for name in patterns)
    assert {"train_iters", "main_ppo"} <= {mark for mark in ("train_iters", "main_ppo") if mark in " ".join(patterns)}


@pytest.mark.daily(1)
@pytest.mark.parametrize("text", [r"\s+#.*$", r"[a-z]+\d{2,3}", r"(?m)(?:^|;)\s*(\w+)=", r"(\d+:)?(\d+):(\d+)$"])
def test_a_slow_pattern_is_noticed(text: str) -> None:
    pattern = re.compile(text)
    assert any(growth(pattern, pump, LENGTHS[1]) > MOST_GROWTH for pump in hostile(pattern))
