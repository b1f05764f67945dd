"""`primus-search validate CSV`: projections against measured training runs, and the error per group."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.guards.values import finite
from primus_search.cli.output import print_json

if TYPE_CHECKING:
    from primus_search.evidence.validate.score_runs import Validation

WORST = 10
MOST_REASONS = 30


def validate(csv: Path, as_json: bool = False, html: Path | None = None, stack: str | None = None) -> None:
    """Compare projections with measured training runs of a CSV file."""
    from primus_search.evidence.published.convert import validated

    show(validated(csv, stack), csv.name, as_json, html)


def show(outcome: "Validation", title: str, as_json: bool, html: Path | None) -> None:
    """Print the errors of measured runs, as text or JSON, and write the page of all rows where one is wanted."""
    from primus_search.cli.output import write
    from primus_search.evidence.validate.summary import summary

    figures = summary(outcome)
    if html is not None:
        write(html, errors_page(title, figures), "--html")
    if as_json:
        print_json(finite(figures))
    else:
        _print(figures, outcome)


def errors_page(title: str, figures: dict[str, Any]) -> str:
    """One HTML page with every projected run beside its measurement, by error; everything from the file is escaped."""
    from primus_search.base.html_templates import rendered

    rows = sorted(figures["per_row"], key=lambda row: abs(_error(row)), reverse=True)
    return rendered("validation.html", title=title, figures=figures, number=_number, rows=rows, error=_error)


def _number(value: float, form: str = ".2f") -> str:
    """A figure, or a dash where it does not exist (no group is large enough, no row is there)."""
    return "-" if math.isnan(value) else format(value, form)


def _error(row: dict[str, Any]) -> float:
    """Signed relative error of a run's rate."""
    return float(row["predicted_tokens_per_s_per_gpu"]) / float(row["measured_tokens_per_s_per_gpu"]) - 1.0


def _print(figures: dict[str, Any], outcome: "Validation") -> None:
    """Errors of rates and memory, group by group, the rows furthest off with the largest parts of their step, and why
    runs were skipped."""
    from primus_search.base.html_templates import rendered
    from primus_search.exploration.neighbours import figures_of

    groupings: dict[str, list[Any]] = {}
    for group in figures["groups"]:
        groupings.setdefault(group["grouping"], []).append(group)
    worst = []
    for row in sorted(outcome.rows, key=lambda row: -abs(row.error))[:WORST]:
        step = figures_of(row.projection, 0)
        largest = sorted(step.step.items(), key=lambda item: -item[1])[:5]
        worst.append((row, ", ".join(f"{name} {seconds / step.step_s:.0%}" for name, seconds in largest)))
    lists = {
        "assumed": _shared(figures["assumed"], "what"),
        "words of flags that nothing reads": _shared(figures["unread"], "what"),
        "skipped": _shared(figures["skipped_reasons"], "reason"),
    }
    text = rendered(
        "validation.txt", f=figures, groupings=groupings, worst=worst, lists=lists, most=MOST_REASONS, number=_number,
        at_most=_at_most,
    )  # fmt: skip
    typer.echo(text, nl=False)


def _at_most(name: str, most: int) -> str:
    """A long name without its middle: sources of one repository begin alike."""
    return name if len(name) <= most else f"{name[: most // 2 - 3]}...{name[-(most // 2) :]}"


def _shared(items: list[dict[str, str]], key: str) -> list[tuple[str, list[str]]]:
    """Reasons with the runs that share them, the most frequent first."""
    reasons: dict[str, list[str]] = {}
    for item in items:
        reasons.setdefault(item[key], []).append(item["id"])
    return sorted(reasons.items(), key=lambda item: -len(item[1]))
