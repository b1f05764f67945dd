"""The folder of a sweep's nights: summary.md, report.html, junit.xml, nightly.json, history.parquet, trend.html."""

import io
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from primus_search.analysis.labels import counted
from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import locked, write_whole
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB, SECONDS_PER_DAY
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.folder import StoreError
from primus_search.nightly.causes import Cause
from primus_search.nightly.night_run import Check, Night

MOST_CHANGES = 40


def default_folder(name: str) -> Path:
    """Where nights of a sweep go by default."""
    return Path("results/runs/nightly") / name


def write_night(folder: Path, night: Night) -> None:
    """All files of a night, each whole or not at all; the history grows by one night."""
    try:
        with locked(folder):
            rows = append(folder / "history.parquet", night)
            texts = {
                "summary.md": markdown(night),
                "report.html": report(night),
                "junit.xml": junit(night),
                "nightly.json": json.dumps(summary(night), indent=2) + "\n",
                "trend.html": trend(night, rows),
            }
            for name, text in texts.items():
                write_whole(folder / name, text)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error.strerror}") from error


# --- words: Markdown, JUnit XML for continuous integration, JSON -----------------------------------------------------


def markdown(night: Night) -> str:
    """The summary a person reads first: verdict, what failed and why, then every figure."""
    text = rendered(
        "nightly_summary.md",
        night=night,
        causes=list(cause_lines(night)),
        grouped=grouped_causes(night),
        most=MOST_CHANGES,
        source=shlex.quote(_text(str(night.sweep.source))),
        move=move,
        limit=limit,
        cell=_cell,
    )
    return text.removesuffix("\n")


def junit(night: Night) -> str:
    """One test case per check, in the form continuous integration reads."""
    words = {"move": move, "limit": limit, "causes_of": causes_of, "cause_line": cause_line}
    return _text(rendered("nightly_junit.xml", night=night, **words))


def summary(night: Night) -> dict[str, Any]:
    """What `nightly --json` prints."""
    return {
        "sweep": night.sweep.name,
        "passed": night.passed,
        "started": night.started,
        "seconds": round(night.seconds, 3),
        "commit": night.state.commit,
        "versions": night.state.versions,
        "baseline": [asdict(reason) for reason in night.baseline.reasons],
        "checks": [asdict(check) for check in night.checks],
        "causes": [asdict(cause) for cause in night.causes],
        "changes": list(night.changes),
    }


def move(check: Check) -> str:
    """How far a figure moved, as a reader wants it."""
    if check.name in ("rows", "memory_rows"):
        return f"{check.move:+.0f}"
    return f"{check.move:+.2%}"


def limit(check: Check) -> str:
    """What may pass unremarked."""
    return "none" if check.limit == 0 else f"{check.limit:.2%}"


def causes_of(night: Night, check: Check) -> list[Cause]:
    """The causes found for the place that a check is about."""
    return [cause for cause in night.causes if cause.where == check.where]


def cause_line(cause: Cause) -> str:
    """One cause in one line: `accelerator: gemm.tile_overhead 0.1 -> 0.103 moved tokens_per_s by -1.20%`."""
    moved = "" if cause.move is None else f" moved tokens_per_s by {cause.move:+.2%}"
    return f"{cause.kind}: {cause.what}{moved}" + (f"; {cause.note}" if cause.note else "")


def grouped_causes(night: Night) -> list[str]:
    """Each cause once, with how many failed checks it stands behind: `2 causes, 11 checks`, then a line for each."""
    found: dict[str, tuple[set[str], float]] = {}
    for check in night.failed:
        for cause in causes_of(night, check):
            titles, most = found.get(name := f"{cause.kind}: {cause.what}", (set(), 0.0))
            found[name] = (titles | {check.title}, max(most, cause.move or 0.0, key=abs))
    ordered = sorted(found.items(), key=lambda item: -len(item[1][0]))
    behind = set().union(*(titles for titles, _ in found.values()))
    lines = [f"{name}: {counted(len(titles), 'check')}, up to {most:+.2%}" for name, (titles, most) in ordered]
    return [f"{counted(len(found), 'cause')}, {counted(len(behind), 'check')}", *lines] if found else []


def cause_lines(night: Night) -> Iterator[tuple[str, list[str]]]:
    """Every place where a check failed, and its causes, one line each."""
    for where in dict.fromkeys(check.where for check in night.failed):
        found = [cause_line(cause) for cause in night.causes if cause.where == where]
        yield where, found or ["nothing that is recorded"]


def _cell(text: str) -> str:
    """Text that cannot leave its cell or become markup."""
    return _text(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _text(text: str) -> str:
    """Text without characters that XML forbids."""
    return "".join(c for c in text if c in "\t\n" or " " <= c < "\ud800" or "\ue000" <= c <= "\ufffd" or c > "\uffff")


# --- the history of a sweep: one row per figure and night, appended to a Parquet file --------------------------------


COLUMNS = ("started", "commit", "where", "figure", "value", "passed")
TREND = {
    "tokens_per_s": ("tokens/s/GPU", 1.0),
    "memory": ("memory, GB", 1.0),
    "frontier": ("frontier, tokens/s/GPU", 1.0),
    "median_abs_error": ("median error of tokens/s, %", 100.0),
    "p90_abs_error": ("90th percentile error of tokens/s, %", 100.0),
    "memory_median_abs_error": ("median error of memory, %", 100.0),
    "projection work": ("instructions of Python per projection", 1.0),
}
"""Checks worth a trend: what their figure is called there, and its scale."""


def append(path: Path, night: Night) -> list[dict[str, Any]]:
    """Add a night to the file and return every row of it. A file that is no history is refused, not replaced."""
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    try:
        if path.exists():
            rows = pyarrow.parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        what = f"is no history of a nightly sweep ({str(error).splitlines()[0]}); move it away"
        raise InputError([Problem(str(path), what)]) from error
    for check in night.checks:
        if check.name in TREND:
            figure, scale = TREND[check.name]
            own = (night.started, night.state.commit, check.where, figure, check.value * scale, check.passed)
            rows.append(dict(zip(COLUMNS, own, strict=True)))
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content, compression="zstd")
    write_whole(path, content.getvalue())
    return rows


# --- pages of a night: the report and the trend, each one self-contained HTML file without scripts; all text escaped


MOST_NIGHTS = 365


def report(night: Night) -> str:
    """The night as a page: verdict, failures with their causes, frontiers against the baseline, every check."""
    plots = []
    for where, pair in night.pairs.items():
        was, found = (
            [(row["memory_bytes"], row[RATE]) for row in sorted(run.frontier, key=lambda row: row["memory_bytes"])]
            for run in (pair.before, pair.after)
        )
        right, top = (max(column) for column in zip(*was, *found, strict=True))
        corners = {"top": f"{top:,.0f} tokens/s/GPU", "right": f"{right / GB:.0f} GB"}
        dots = [(m, t, "ink", f"{m / GB:.1f} GB, {t:,.0f} tokens/s/GPU") for m, t in found]
        drawn = {"box": (0.0, right, 0.0, top), "line": was, "dots": dots, "is_dashed": True}
        plots.append({"caption": f"{where}; dashed: baseline"} | drawn | corners)
    words = {"causes": list(cause_lines(night)), "grouped": grouped_causes(night), "move": move, "limit": limit}
    return rendered("nightly_report.html", night=night, plots=plots, **words)


def trend(night: Night, rows: Sequence[dict[str, Any]]) -> str:
    """Every figure over the nights of a history, by date, within the band that passes; a failed night is marked."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault((row["where"], row["figure"]), []).append(row)
    bands = {(c.where, TREND[c.name][0]): _band(c) for c in night.checks if c.name in TREND}
    places: dict[str, list[dict[str, Any]]] = {}
    for (place, figure), found in series.items():
        found, band = found[-MOST_NIGHTS:], bands.get((place, figure))
        dots = [
            (_day(row["started"], at), row["value"], "good" if row["passed"] else "bad",
             f"{row['started']} {row['commit']}: {row['value']:,.6g}")
            for at, row in enumerate(found)
        ]  # fmt: skip
        values = [row["value"] for row in found]
        low, high = min([*values, *(band or ())]), max([*values, *(band or ())])
        margin = 0.2 * ((high - low) or abs(high) or 1.0)
        low, high = low - margin, high + margin
        caption = f"{figure}: {values[-1]:,.6g} (from {min(values):,.6g} to {max(values):,.6g}, {len(found)} nights)"
        axes = {"top": f"{high:,.6g}", "bottom": f"{low:,.6g}", "right": found[-1]["started"][:10]}
        axes["left"] = found[0]["started"][:10] if len(found) > 1 else ""
        drawn = {"caption": caption, "box": (dots[0][0], dots[-1][0], low, high), "line": dots, "dots": dots}
        places.setdefault(place, []).append(drawn | axes | {"band": band})
    return rendered("nightly_trend.html", name=night.sweep.name, places=places, grouped=grouped_causes(night))


def _day(started: str, at: int) -> float:
    """Days of a night, so that nights without a run leave a gap; its place where a history has other dates."""
    try:
        return datetime.fromisoformat(started).timestamp() / SECONDS_PER_DAY
    except ValueError:
        return float(at)


def _band(check: Check) -> tuple[float, float]:
    """What passes of a figure, about its baseline: a share of rates and bytes, a difference of errors."""
    scale = TREND[check.name][1]
    is_share = not check.name.endswith("_error") and check.move > -1.0
    baseline = check.value / (1.0 + check.move) if is_share else check.value - check.move
    width = check.limit * (baseline if is_share else 1.0)
    return ((baseline - width) * scale, (baseline + width) * scale)
