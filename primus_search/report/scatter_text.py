"""A scatter plot as text: points in a frame, with values along both axes."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

Point = tuple[float, float]
ROWS_PER_TICK = 3
COLUMNS_PER_TICK = 12
EDGES = 4
"""Lines of the frame, of the values below it and of the words."""


def scatter(marked: Mapping[str, Sequence[Point]], across: str, up: str, width: int, height: int) -> list[str]:
    """The lines of a plot of points (x, y) by their mark, later marks over earlier ones.

    across, up     what x and y are, with their units
    width, height  columns and lines of the whole plot, at least 40 and 6
    """
    x, y = (_bounds([point[axis] for points in marked.values() for point in points]) for axis in (0, 1))
    rows = height - EDGES
    ticks = {row: _at(y, (rows - 1 - row) / (rows - 1)) for row in range(0, rows, ROWS_PER_TICK)}
    labels = dict(zip(ticks, _numbers(list(ticks.values())), strict=True))
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    field = [[" "] * columns for _ in range(rows)]
    for mark, points in marked.items():
        for point in points:
            place = rows - 1 - round(_share(y, point[1]) * (rows - 1))
            field[place][round(_share(x, point[0]) * (columns - 1))] = mark
    edges = "".join("┬" if at % COLUMNS_PER_TICK == 0 else "─" for at in range(columns))
    return [
        " " * margin + f"┌{'─' * columns}┐",
        *(
            f"{labels.get(row, ''):>{margin}}{'┤' if row in labels else '│'}{''.join(line)}│"
            for row, line in enumerate(field)
        ),
        " " * margin + f"└{edges}┘",
        " " * (margin + 1) + _below(x, columns),
        up + f"{across:^{width - 2 * len(up)}}".rstrip(),
    ]


def _bounds(values: Sequence[float]) -> Point:
    """Least and greatest value, apart from each other."""
    least, most = min(values), max(values)
    return (least, most) if most > least else (least - 1.0, least + 1.0)


def _share(bounds: Point, value: float) -> float:
    return (value - bounds[0]) / (bounds[1] - bounds[0])


def _at(bounds: Point, share: float) -> float:
    return bounds[0] + share * (bounds[1] - bounds[0])


def _numbers(values: Sequence[float]) -> list[str]:
    """Evenly spaced values with the digits that tell them apart."""
    digits = max(0, ceil(-log10(abs(values[1] - values[0]))) + 1)
    return [f"{value:,.{digits}f}" for value in values]


def _below(x: Point, columns: int) -> str:
    """Values under the ticks of the lower edge, each with its middle under its tick."""
    places = range(0, columns, COLUMNS_PER_TICK)
    line = [" "] * (columns + 1)
    for place, text in zip(places, _numbers([_at(x, place / (columns - 1)) for place in places]), strict=True):
        start = min(max(place - floor(len(text) / 2), 0), columns + 1 - len(text))
        line[start : start + len(text)] = text
    return "".join(line).rstrip()
