"""One HTML page with every projected run beside its measurement; needs nothing but a browser."""

import math
from collections.abc import Iterator
from typing import Any

from primus_search.html_templates import rendered

Table = tuple[list[str], list[list[str]]]


def page(title: str, figures: dict[str, Any]) -> str:
    """The page; everything that came from the file is escaped."""
    return rendered("validation.html", title=title, figures=figures, number=number, tables=list(_tables(figures)))


def number(value: float, form: str = ".2f") -> str:
    """A figure, or a dash where it does not exist (no group is large enough, no row is there)."""
    return "-" if math.isnan(value) else format(value, form)


def _tables(figures: dict[str, Any]) -> Iterator[Table]:
    """Heads and rows: groups, runs by error, doubtful fits, assumptions, overrides, skipped runs."""
    rows = sorted(figures["per_row"], key=_error, reverse=True)
    yield ["group", "runs", "median", "p90", "bias", "in 90 %"], [_group(group) for group in figures["groups"]]
    yield ["run", "projected tok/s/GPU", "measured", "error"], [_run(row) for row in rows]
    yield ["run", "verdict", "probability of fitting", "needs GB", "device GB"], list(_doubtful(figures))
    yield ["run", "assumed"], [[one["id"], one["what"]] for one in figures["assumed"]]
    listed = figures["overrides"]["per_row"]
    yield (
        ["run", "overrides", "value", "reason"],
        [[one["id"], one["key"], str(one["value"]), one["reason"]] for one in listed],
    )
    yield ["skipped run", "reason"], [[one["id"], one["reason"]] for one in figures["skipped_reasons"]]


def _doubtful(figures: dict[str, Any]) -> Iterator[list[str]]:
    """Runs that ran out of memory, and those that ran and are not projected to fit."""
    for row in figures["memory_per_row"]:
        if not row["ran"] or row["verdict"] != "FITS":
            name = f"{row['id']} ({'ran' if row['ran'] else 'ran out of memory'})"
            sizes = (f"{row['needed_GB']:.1f}", f"{row['device_GB']:.1f}")
            yield [name, row["verdict"], f"{row['fit_probability']:.0%}", *sizes]


def _error(row: dict[str, Any]) -> float:
    return abs(float(row["predicted_tokens_per_s_per_gpu"]) / float(row["measured_tokens_per_s_per_gpu"]) - 1.0)


def _run(row: dict[str, Any]) -> list[str]:
    predicted, measured = row["predicted_tokens_per_s_per_gpu"], row["measured_tokens_per_s_per_gpu"]
    return [row["id"], f"{predicted:,.0f}", f"{measured:,.0f}", f"{predicted / measured - 1.0:+.1%}"]


def _group(group: dict[str, Any]) -> list[str]:
    name = f"{group['grouping']}: {group['group']}"
    figures = (group["median_abs_error"], group["p90_abs_error"], group["bias"], group["coverage_90"])
    return [name, str(group["rows"]), *(f"{value:.1%}" for value in figures)]
