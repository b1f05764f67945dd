"""The plot of the terminal: every point is in its place, and the values along the axes are those of their ticks."""

import itertools

import pytest

from primus_search.report.scatter_text import scatter


def drawn(points: dict[str, list[tuple[float, float]]], width: int = 60, height: int = 17) -> list[str]:
    lines = scatter(points, "memory, GB", "tokens/s", width, height)
    assert len(lines) == height
    assert max(map(len, lines)) == width
    return lines


def test_corners_hold_the_least_and_the_greatest_point() -> None:
    lines = drawn({".": [(10.0, 1000.0), (110.0, 4000.0)]})
    assert lines[1].startswith("4,000┤") and lines[1].endswith(".│")
    assert lines[13].startswith("1,000┤.")
    assert lines[15].split()[0] == "10"
    assert lines[16].startswith("tokens/s") and "memory, GB" in lines[16]


def test_a_later_mark_covers_an_earlier_one() -> None:
    lines = drawn({"o": [(1.0, 1.0), (2.0, 2.0)], "#": [(2.0, 2.0)]})
    assert "".join(lines[:-1]).count("o") == 1
    assert lines[1].endswith("#│")


@pytest.mark.parametrize("points", [[(5.0, 7.0)], [(5.0, 7.0)] * 3, [(0.1, 0.5), (0.1000001, 12_345_678.0)]])
def test_points_on_one_line_have_a_plot(points: list[tuple[float, float]]) -> None:
    assert any("#" in line for line in drawn({"#": points}, width=40))


def test_values_of_the_ticks_rise_evenly() -> None:
    lines = drawn({".": [(41.3, 4097.0), (159.1, 12157.0)]})
    values = [float(line.split("┤")[0].replace(",", "")) for line in lines if "┤" in line]
    steps = [above - below for above, below in itertools.pairwise(values)]
    assert values[0] == 12157 and values[-1] == 4097
    assert max(steps) - min(steps) <= 1.0
