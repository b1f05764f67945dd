"""The folder of a sweep's nights: summary.md, report.html, junit.xml, nightly.json, history.parquet, trend.html."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import write_whole
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.exploration import StoreError
from primus_search.nightly.figures import ClusterFigures
from primus_search.nightly.night_run import Night
from primus_search.nightly.summary import cause_lines, junit, limit, markdown, move, summary


def default_folder(name: str) -> Path:
    """Where nights of a sweep go unless told otherwise."""
    return Path("results/runs/nightly") / name


def write_night(folder: Path, night: Night) -> None:
    """All files of a night, each whole or not at all; the history grows by one night."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = append(folder / "history.parquet", night)
        texts = {"summary.md": markdown(night), "report.html": report(night), "junit.xml": junit(night)}
        texts |= {
            "nightly.json": json.dumps(summary(night), indent=2) + "\n",
            "trend.html": trend(night.sweep.name, rows),
        }
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error.strerror}") from error


# --- the history of a sweep: one row per figure and night, appended to a Parquet file ------------------------------


COLUMNS = ("started", "commit", "where", "figure", "value", "passed")


def rows_of(night: Night) -> list[dict[str, Any]]:
    """Every figure of a night worth a trend."""
    found: list[tuple[str, str, float, bool]] = []
    for entry in night.sweep.entries:
        for number, one in enumerate(night.state.entries[entry.name]):
            where = f"{entry.name}, {one.cluster}"
            passed = all(c.passed for c in night.checks if c.entry == entry.name and c.cluster == number)
            found.append((where, "tokens/s/GPU", one.tokens_per_s_per_gpu, passed))
            found.append((where, "memory, GB", one.memory_bytes / GB, passed))
            found.append((where, "frontier, tokens/s/GPU", one.hypervolume, passed))
    accuracy = night.state.accuracy
    if accuracy:
        passed = all(c.passed for c in night.checks if c.entry == "accuracy")
        found.append(("accuracy", "median error of tokens/s, %", accuracy.median_abs_error * 100, passed))
        found.append(("accuracy", "90th percentile error of tokens/s, %", accuracy.p90_abs_error * 100, passed))
        found.append(("accuracy", "median error of memory, %", accuracy.memory_median_abs_error * 100, passed))
    if night.sweep.speed:
        passed = all(c.passed for c in night.checks if c.entry == "speed")
        found.append(("speed", "rows per pass of the NumPy reference", night.state.speed, passed))
    base = {"started": night.started, "commit": night.state.commit}
    return [base | {"where": w, "figure": f, "value": v, "passed": p} for w, f, v, p in found]


def append(path: Path, night: Night) -> list[dict[str, Any]]:
    """Add a night to the file and return every row of it. A file that is no history is refused, not replaced."""
    import pyarrow
    import pyarrow.parquet

    rows = (_read(path) if path.exists() else []) + rows_of(night)
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content, compression="zstd")
    write_whole(path, content.getvalue())
    return rows


def _read(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        what = f"is no history of a nightly sweep ({str(error).splitlines()[0]}); move it away"
        raise InputError([Problem(str(path), what)]) from error
    return rows


# --- pages of a night: the report and the trend, each one self-contained HTML file without scripts; all text escaped


WIDTH, HEIGHT, EDGE = 420, 150, 8
MOST_NIGHTS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a drawing, in its pixels."""

    x: str
    y: str
    colour: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One drawing: a line, dots, and what stands at its corners and below it."""

    caption: str
    dots: Sequence[Dot]
    line: str
    is_dashed: bool = False
    top: str = ""
    right: str = ""
    width: int = WIDTH
    height: int = HEIGHT


def report(night: Night) -> str:
    """The night as a page: verdict, failures with their causes, frontiers against the baseline, every check."""
    plots = list(_frontiers(night))
    return rendered(
        "nightly_report.html", night=night, causes=list(cause_lines(night)), plots=plots, move=move, limit=limit
    )


def trend(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Every figure over the nights of a history; a night that failed is marked."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault((row["where"], row["figure"]), []).append(row)
    places: dict[str, list[Plot]] = {}
    for (place, figure), found in series.items():
        places.setdefault(place, []).append(_trend(figure, found[-MOST_NIGHTS:]))
    return rendered("nightly_trend.html", name=name, places=places)


def _frontiers(night: Night) -> Iterator[Plot]:
    for entry in night.sweep.entries:
        old = night.baseline.state.entries.get(entry.name, ())
        for number, now in enumerate(night.state.entries[entry.name]):
            was = old[number].frontier if number < len(old) else ()
            if now.frontier or was:
                yield _frontier(f"{entry.name}, {now.cluster}; dashed: baseline", was, now)


def _frontier(caption: str, was: Sequence[tuple[float, float]], now: ClusterFigures) -> Plot:
    """Today's frontier as points, the baseline's as a dashed line."""
    points = [*now.frontier, *was]
    right, top = max(m for m, _ in points), max(t for _, t in points)
    place = _scale(0.0, right, 0.0, top)
    titles = [f"{m / GB:.1f} GB, {t:,.0f} tokens/s/GPU" for m, t in now.frontier]
    return Plot(
        caption=caption,
        dots=[_dot(place(*point), "ink", title) for point, title in zip(now.frontier, titles, strict=True)],
        line=_line([place(m, t) for m, t in was]),
        is_dashed=True,
        top=f"{top:,.0f} tokens/s/GPU",
        right=f"{right / GB:.0f} GB",
    )


def _trend(name: str, rows: Sequence[dict[str, Any]]) -> Plot:
    values = [row["value"] for row in rows]
    low, high = min(values), max(values)
    margin = (high - low) or abs(high) or 1.0
    place = _scale(0, max(len(rows) - 1, 1), low - 0.2 * margin, high + 0.2 * margin)
    places = [place(i, value) for i, value in enumerate(values)]
    colours = ["good" if row["passed"] else "bad" for row in rows]
    titles = [f"{row['started']} {row['commit']}: {row['value']:,.6g}" for row in rows]
    return Plot(
        caption=f"{name}: {values[-1]:,.6g} (from {low:,.6g} to {high:,.6g}, {len(rows)} nights)",
        dots=[_dot(*one) for one in zip(places, colours, titles, strict=True)],
        line=_line(places),
    )


def _dot(place: tuple[float, float], colour: str, title: str) -> Dot:
    return Dot(x=f"{place[0]:.1f}", y=f"{place[1]:.1f}", colour=colour, title=title)


def _line(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _scale(left: float, right: float, bottom: float, top: float) -> Callable[[float, float], tuple[float, float]]:
    width, height = (right - left) or 1.0, (top - bottom) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = EDGE + (x - left) / width * (WIDTH - 2 * EDGE)
        return across, HEIGHT - EDGE - (y - bottom) / height * (HEIGHT - 2 * EDGE)

    return place
