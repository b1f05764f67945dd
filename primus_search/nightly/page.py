"""Pages of a night: the report and the trend, each one self-contained HTML file without scripts; all text escaped."""

import html
from collections.abc import Sequence
from typing import Any

from primus_search.nightly.check import Check
from primus_search.nightly.figures import Figures
from primus_search.nightly.run import Night
from primus_search.nightly.words import cause_line, limit, move
from primus_search.units import GB

STYLE = """
:root{color-scheme:light dark;--line:#8886;--good:#1a7f37;--bad:#cf222e;--ink:#0969da}
@media(prefers-color-scheme:dark){:root{--good:#3fb950;--bad:#f85149;--ink:#58a6ff}}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5em auto;max-width:70em;padding:0 1em}
table{border-collapse:collapse;width:100%;font-size:14px}div.wide{overflow-x:auto}
td,th{border-bottom:1px solid var(--line);padding:.25em .6em;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}
figure{display:inline-block;margin:.6em 1em .6em 0;max-width:100%}figcaption{font-size:13px}
svg{max-width:100%;height:auto;border:1px solid var(--line)}svg text{font:11px system-ui,sans-serif;fill:currentColor}
"""
WIDTH, HEIGHT, EDGE = 420, 150, 8
MOST_NIGHTS = 365


def report(night: Night) -> str:
    """The night as a page: verdict, failures with their causes, frontiers against the baseline, every check."""
    word, css = ("passed", "good") if night.passed else ("REGRESSION", "bad")
    title = f"Nightly sweep {night.sweep.name}: {word}"
    body = [f'<h1>Nightly sweep {_e(night.sweep.name)}: <span class="{css}">{word}</span></h1>']
    body.append(f"<p>{_e(night.started)}, commit {_e(night.state.commit or 'unknown')}, {night.seconds:.0f} s. ")
    body.append('<a href="trend.html">Trend</a></p>')
    if night.failed:
        body += ["<h2>What failed</h2>", _checks(night.failed), "<h2>What changed it</h2>", _causes(night)]
    if night.changes:
        items = "".join(f"<li>{_e(line)}</li>" for line in night.changes)
        body.append(
            f"<details><summary>{len(night.changes)} changes since the baseline</summary><ul>{items}</ul></details>"
        )
    body += ["<h2>Frontiers: memory per GPU against tokens/s/GPU</h2>", _frontiers(night)]
    body += ["<h2>All figures</h2>", _checks(night.checks)]
    reasons = "".join(f"<li>{_e(r.date)} {_e(r.commit)}: {_e(r.text)}</li>" for r in night.baseline.reasons)
    body.append(f"<h2>Why the baseline is what it is</h2><ul>{reasons}</ul>")
    return _page(title, body)


def trend(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Every figure over the nights of a history; a night that failed is marked."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault((row["where"], row["figure"]), []).append(row)
    body = [f"<h1>Trend of sweep {_e(name)}</h1>", '<p><a href="report.html">Last night</a></p>']
    where = ""
    for (place, figure), found in series.items():
        if place != where:
            body.append(f"<h2>{_e(place)}</h2>")
            where = place
        body.append(_trend_figure(figure, found[-MOST_NIGHTS:]))
    return _page(f"Trend of {name}", body)


def _page(title: str, body: Sequence[str]) -> str:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    csp = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    return (
        f'<!doctype html><html lang="en"><head>{head}{csp}<title>{_e(title)}</title><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _checks(checks: Sequence[Check]) -> str:
    rows = []
    for c in checks:
        verdict = '<span class="good">ok</span>' if c.passed else f'<span class="bad">failed</span> {_e(c.note)}'
        cells = f"<td>{_e(c.where)}</td><td>{_e(c.name)}</td><td>{_e(c.before)}</td><td>{_e(c.after)}</td>"
        rows.append(f'<tr>{cells}<td class="n">{move(c)}</td><td class="n">{limit(c)}</td><td>{verdict}</td></tr>')
    head = (
        '<th>where</th><th>figure</th><th>baseline</th><th>today</th><th class="n">move</th><th class="n">allowed</th>'
    )
    return f'<div class="wide"><table><tr>{head}<th>verdict</th></tr>{"".join(rows)}</table></div>'


def _causes(night: Night) -> str:
    parts = []
    for where, entry, cluster in dict.fromkeys((c.where, c.entry, c.cluster) for c in night.failed):
        found = [c for c in night.causes if c.entry == entry and c.cluster == cluster]
        items = "".join(f"<li>{_e(cause_line(c))}</li>" for c in found) or "<li>nothing that is recorded</li>"
        parts.append(f"<h3>{_e(where)}</h3><ul>{items}</ul>")
    return "".join(parts)


def _frontiers(night: Night) -> str:
    parts = []
    for entry in night.sweep.entries:
        old = night.baseline.state.entries.get(entry.name, ())
        for number, now in enumerate(night.state.entries[entry.name]):
            was = old[number] if number < len(old) else None
            parts.append(_frontier(f"{entry.name}, {now.cluster}", was, now))
    return "".join(parts)


def _frontier(title: str, was: Figures | None, now: Figures) -> str:
    """Today's frontier as points, the baseline's as a dashed line."""
    points = [*now.frontier, *(was.frontier if was else ())]
    if not points:
        return ""
    right, top = max(m for m, _ in points), max(t for _, t in points)
    place = _scale(0.0, right, 0.0, top)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="var(--ink)"><title>{m / GB:.1f} GB, {t:,.0f} tokens/s/GPU'
        f"</title></circle>"
        for m, t in now.frontier
        for x, y in [place(m, t)]
    )
    line = " ".join("{:.1f},{:.1f}".format(*place(m, t)) for m, t in was.frontier) if was else ""
    old = f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-dasharray="4 3"/>' if line else ""
    words = f'<text x="{EDGE}" y="14">{top:,.0f} tokens/s/GPU</text>'
    words += f'<text x="{WIDTH - EDGE}" y="{HEIGHT - 4}" text-anchor="end">{right / GB:.0f} GB</text>'
    caption = f"{_e(title)}; dashed: baseline"
    return _figure(caption, old + dots + words)


def _trend_figure(name: str, rows: Sequence[dict[str, Any]]) -> str:
    values = [row["value"] for row in rows]
    low, high = min(values), max(values)
    margin = (high - low) or abs(high) or 1.0
    place = _scale(0, max(len(rows) - 1, 1), low - 0.2 * margin, high + 0.2 * margin)
    places = [place(i, value) for i, value in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--{"good" if row["passed"] else "bad"})">'
        f"<title>{_e(row['started'])} {_e(row['commit'])}: {row['value']:,.6g}</title></circle>"
        for (x, y), row in zip(places, rows, strict=True)
    )
    drawn = f'<polyline points="{line}" fill="none" stroke="var(--ink)"/>{dots}'
    return _figure(f"{_e(name)}: {values[-1]:,.6g} (from {low:,.6g} to {high:,.6g}, {len(rows)} nights)", drawn)


def _scale(left: float, right: float, bottom: float, top: float) -> Any:
    width, height = (right - left) or 1.0, (top - bottom) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = EDGE + (x - left) / width * (WIDTH - 2 * EDGE)
        return across, HEIGHT - EDGE - (y - bottom) / height * (HEIGHT - 2 * EDGE)

    return place


def _figure(caption: str, drawn: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
    return f"<figure><svg {box}>{drawn}</svg><figcaption>{caption}</figcaption></figure>"


def _e(text: str) -> str:
    return html.escape(str(text))
