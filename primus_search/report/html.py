"""`report.html` of a run folder: one page without scripts, from the files that are already there."""

import csv
import html
import json
from pathlib import Path

ROWS = 100
STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 6px}"
)


def write_report(folder: Path) -> Path:
    """Write `report.html` beside `run.json`; everything shown is escaped."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    facts = {name: run[name] for name in ("space", "model", "hardware", "nodes", "gpus", "method", "exact")}
    facts |= {name: f"{run[name]:,}" for name in ("raw", "legal", "feasible")}
    parts = [
        f"<h1>{html.escape(str(run['space']))}</h1>",
        _table([list(facts), [str(value) for value in facts.values()]]),
        "<h2>Funnel</h2>",
        _table(
            [
                ["stage", "rows", "rows/s"],
                *([s["name"], f"{s['rows']:,}", f"{s['rows_per_s']:,.0f}"] for s in run["stages"]),
            ]
        ),
        "<h2>Ranking</h2>",
        _table(_csv(folder / "ranking.csv")[: ROWS + 1]),
        "<h2>Frontier of memory against throughput</h2>",
        _table(_csv(folder / "pareto.csv")),
    ]
    page = f"<!doctype html><meta charset=utf-8><title>{html.escape(str(run['space']))}</title><style>{STYLE}</style>"
    target = folder / "report.html"
    temporary = folder / ".report.html.tmp"
    temporary.write_text(page + "\n".join(parts) + "\n", encoding="utf-8")
    temporary.replace(target)
    return target


def _csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def _table(rows: list[list[str]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><tr>{head}</tr>{body}</table>"
