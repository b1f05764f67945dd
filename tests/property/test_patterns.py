"""No line takes a regular expression forever: its time grows with the length of the line, not with its square."""

import re
import time

import pytest

from tests.support.hostile_lines import Pattern, Pump, hostile, line, patterns_of

LENGTHS = (200, 1_500, 12_000)
"""The first ones find a search of cubic time before it takes minutes."""
MOST_GROWTH = 2.5
"""Of the time from a length to twice as many characters; 2 for a linear pattern, 4 for a quadratic one."""
TINY_S = 2e-3
"""A search that takes less on the longer line is not looked at: clocks and caches would decide."""

PATTERNS = patterns_of("primus_search")


def growth(pattern: Pattern, pump: Pump, length: int) -> float:
    """How many times longer a search takes on a line twice as long; 0 where it takes no time."""
    short, long = line(pump, length), line(pump, 2 * length)
    if _seconds(pattern, long, 1) < TINY_S:
        return 0.0
    ratios = []
    for _ in range(3):  # another process may slow one of the two down
        ratios.append(_seconds(pattern, long, 3) / max(_seconds(pattern, short, 3), 1e-9))
        if ratios[-1] <= MOST_GROWTH:
            break
    return min(ratios)


def _seconds(pattern: Pattern, text: str, repeats: int) -> float:
    """Processor seconds of a search, the least of some."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        pattern.search(text)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_a_pattern_grows_no_faster_than_its_line(name: str) -> None:
    for length in LENGTHS:
        for pump in hostile(PATTERNS[name]):
            found = growth(PATTERNS[name], pump, length)
            assert found <= MOST_GROWTH, f"{found:.1f} times from {length} characters on: {line(pump, 60)!r}"


def test_patterns_are_found_by_import_and_in_the_source() -> None:
    assert len(PATTERNS) > 100
    assert any("_CLOCK" in name for name in PATTERNS) and any(".py:" in name for name in PATTERNS)


@pytest.mark.parametrize("text", [r"\s+#.*$", r"[a-z]+\d{2,3}", r"(?m)(?:^|;)\s*(\w+)=", r"(\d+:)?(\d+):(\d+)$"])
def test_a_slow_pattern_is_noticed(text: str) -> None:
    pattern = re.compile(text)
    assert any(growth(pattern, pump, LENGTHS[1]) > MOST_GROWTH for pump in hostile(pattern))
