"""The frontier in the terminal: each point is in its place, the values along the axes are those of the points."""

from collections.abc import Mapping
from typing import Any

import pytest

from primus_search.exploration.expected import RATE
from primus_search.exploration.ranking_table import PROJECTED
from primus_search.report.frontier_text import plot

TRACED = "traced"


def row(memory_gb: float, tokens_per_s: float, memory_evidence: str = PROJECTED) -> dict[str, Any]:
    return {
        "memory_bytes": memory_gb * 1e9,
        RATE: tokens_per_s,
        "time_evidence": PROJECTED,
        "memory_evidence": memory_evidence,
    }


def drawn(rows: list[dict[str, Any]], best: Mapping[str, Any] | None = None, width: int = 60) -> list[str]:
    lines = plot(rows, best, width).splitlines()
    assert max(map(len, lines)) == width
    return lines


def field(lines: list[str]) -> list[str]:
    """What is inside the frame, without the values at its left."""
    inside = [line.split("┤" if "┤" in line else "│", 1)[1] for line in lines if line.endswith("│")]
    return [line.removesuffix("│") for line in inside]


def test_corners_hold_the_least_and_the_greatest_point() -> None:
    lines = drawn([row(10.0, 1000.0), row(110.0, 4000.0)])
    inside = field(lines)
    assert inside[0].endswith(".") and inside[-1].startswith(".")
    values = [float(line.split("┤")[0]) for line in lines if "┤" in line]
    assert (values[0], values[-1]) == (4000.0, 1000.0)
    across = next(line for line in lines if line.split()[0] == "10.0").split()
    assert float(across[-1]) == 110.0
    assert any("tokens/s/GPU" in line and "memory, GB" in line for line in lines)


def test_the_chosen_row_covers_the_mark_of_its_evidence() -> None:
    rows = [row(1.0, 1.0, TRACED), row(2.0, 2.0, TRACED)]
    inside = field(drawn(rows, best=rows[1]))
    assert "".join(inside).count("t") == 1
    assert inside[0].endswith("#")


def test_the_title_names_the_evidence_that_is_drawn() -> None:
    lines = drawn([row(1.0, 1.0), row(2.0, 2.0, TRACED)])
    assert lines[0].strip() == "frontier: . projected  t memory traced  # chosen"


@pytest.mark.parametrize("points", [[(5.0, 7.0)], [(5.0, 7.0)] * 3, [(0.1, 0.5), (0.1000001, 12_345_678.0)]])
def test_points_on_one_line_have_a_plot(points: list[tuple[float, float]]) -> None:
    rows = [row(*point) for point in points]
    assert "#" in "".join(field(drawn(rows, best=rows[0], width=40)))


def test_a_plot_holds_nothing_of_the_one_before() -> None:
    first = drawn([row(10.0, 1000.0), row(110.0, 4000.0)])
    drawn([row(1.0, 7.0, TRACED)])
    assert drawn([row(10.0, 1000.0), row(110.0, 4000.0)]) == first
