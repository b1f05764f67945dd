"""One HTML page with every projected run beside its measurement; needs nothing but a browser."""

import html
import math
from typing import Any

_STYLE = """body{font:14px system-ui;margin:2em;max-width:70em}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"""


def page(title: str, figures: dict[str, Any]) -> str:
    """The page; everything that came from the file is escaped."""
    rows = sorted(figures["per_row"], key=_error, reverse=True)
    parts = [
        "<!doctype html><meta charset=utf-8>",
        f"<title>validate {html.escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>",
        _paragraph(figures),
        _table(["group", "runs", "median", "p90", "bias", "in 90 %"], [_group(g) for g in figures["groups"]]),
        _table(["run", "projected tok/s/GPU", "measured", "error"], [_run(row) for row in rows]),
        _table(["run", "said", "probability of fitting", "needs GB", "device GB"], _doubtful(figures)),
        _table(["run", "assumed"], [[a["id"], a["what"]] for a in figures["assumed"]]),
        _table(["skipped run", "reason"], [[s["id"], s["reason"]] for s in figures["skipped_reasons"]]),
    ]
    return "\n".join(parts) + "\n"


def number(value: float, form: str = ".2f") -> str:
    """A figure, or a dash where it does not exist (no group is large enough, no row is there)."""
    return "-" if math.isnan(value) else format(value, form)


def _paragraph(figures: dict[str, Any]) -> str:
    memory = figures["memory"]
    return (
        f"<p>{figures['rows']} runs: median error {number(figures['median_abs_error'], '.1%')}, 90th percentile "
        f"{number(figures['p90_abs_error'], '.1%')}, bias {number(figures['bias'], '+.1%')}, Kendall "
        f"{number(figures['kendall'])}; 90 % intervals cover {number(figures['coverage_90'], '.1%')}. Of "
        f"{memory['ran']} runs that ran {number(memory['false_oom'], '.1%')} are said to run out of memory, of "
        f"{memory['ran_out']} that did {number(memory['false_fit'], '.1%')} to fit.</p>"
    )


def _doubtful(figures: dict[str, Any]) -> list[list[str]]:
    """Runs that ran out of memory, and those that ran and are not said to fit."""
    return [
        [
            f"{row['id']} ({'ran' if row['ran'] else 'ran out of memory'})", row["verdict"],
            f"{row['fit_probability']:.0%}", f"{row['needed_GB']:.1f}", f"{row['device_GB']:.1f}",
        ]
        for row in figures["memory_per_row"] if not row["ran"] or row["verdict"] != "FITS"
    ]  # fmt: skip


def _error(row: dict[str, Any]) -> float:
    return abs(float(row["predicted_tokens_per_s_per_gpu"]) / float(row["measured_tokens_per_s_per_gpu"]) - 1.0)


def _run(row: dict[str, Any]) -> list[str]:
    predicted, measured = row["predicted_tokens_per_s_per_gpu"], row["measured_tokens_per_s_per_gpu"]
    return [row["id"], f"{predicted:,.0f}", f"{measured:,.0f}", f"{predicted / measured - 1.0:+.1%}"]


def _group(group: dict[str, Any]) -> list[str]:
    name = f"{group['grouping']}: {group['group']}"
    figures = (group["median_abs_error"], group["p90_abs_error"], group["bias"], group["coverage_90"])
    return [name, str(group["rows"]), *(f"{value:.1%}" for value in figures)]


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>\n{body}</table>"
