"""`primus-search validate CSV`: projections against measured training runs, and the error per group."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.guards.values import finite

if TYPE_CHECKING:
    from primus_search.runs.validate.score_runs import Validation

WORST = 10
MOST_REASONS = 30


def validate(csv: Path, as_json: bool = False, html: Path | None = None, stack: str | None = None) -> None:
    """Compare projections with measured training runs of a CSV file."""
    from primus_search.runs.published import validated

    show(validated(csv, stack), csv.name, as_json, html)


def show(outcome: "Validation", title: str, as_json: bool, html: Path | None) -> None:
    """Print the errors of measured runs, as text or JSON, and write the page of all rows where one is wanted."""
    from primus_search.cli.output import write
    from primus_search.runs.validate import summary

    figures = summary(outcome)
    if html is not None:
        write(html, errors_page(title, figures), "--html")
    if as_json:
        typer.echo(json.dumps(finite(figures), indent=2))
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
    typer.echo(f"{figures['rows']} runs projected, {figures['skipped']} skipped; near-duplicates count once")
    if figures["memory_only"]:
        typer.echo(f"{figures['memory_only']} more ran and publish no rate")
    if figures["ran_out"]:
        typer.echo(f"{figures['ran_out']} more ran out of memory")
    if figures["rows"]:
        typer.echo(
            f"tokens/s/GPU: median error {figures['median_abs_error']:.1%}, "
            f"90th percentile {figures['p90_abs_error']:.1%}, worst {figures['worst_abs_error']:.1%}, "
            f"bias {figures['bias']:+.1%}, Kendall {_number(figures['kendall'])}, "
            f"90 % intervals cover {figures['coverage_90']:.1%}"
        )
    _print_memory(figures)
    for grouping in dict.fromkeys(group["grouping"] for group in figures["groups"]):
        typer.echo(f"\n{grouping:<50}{'runs':>6}{'median':>8}{'p90':>8}{'worst':>8}{'bias':>8}{'in 90 %':>9}")
        for group in figures["groups"]:
            if group["grouping"] == grouping:
                typer.echo(
                    f"{_at_most(group['group'], 48):<50}{group['rows']:>6}{group['median_abs_error']:>8.1%}"
                    f"{group['p90_abs_error']:>8.1%}{group['worst_abs_error']:>8.1%}{group['bias']:>+8.1%}"
                    f"{group['coverage_90']:>9.0%}"
                )
    if figures["rows"]:
        _print_worst(outcome)
    _print_reasons("assumed", figures["assumed"], "what")
    _print_reasons("words of flags that nothing reads", figures["unread"], "what")
    _print_reasons("skipped", figures["skipped_reasons"], "reason")


def _at_most(name: str, most: int) -> str:
    """A long name without its middle: sources of one repository begin alike."""
    return name if len(name) <= most else f"{name[: most // 2 - 3]}...{name[-(most // 2) :]}"


def _print_memory(figures: dict[str, Any]) -> None:
    """Errors of memory, and how often it was said wrongly whether a run fits; the runs that were, by name."""
    memory = figures["memory"]
    if memory["rows"]:
        typer.echo(
            f"memory: {memory['rows']} runs, median error {memory['median_abs_error']:.1%}, 90th percentile "
            f"{memory['p90_abs_error']:.1%}, bias {memory['bias']:+.1%}"
        )
    if memory["ran"]:
        typer.echo(
            f"of {memory['ran']} runs that ran {memory['false_oom']:.1%} are said to run out of memory, "
            f"{memory['ran_at_risk']:.1%} to be at risk"
        )
    if memory["ran_out"]:
        typer.echo(
            f"of {memory['ran_out']} runs that ran out of memory {memory['false_fit']:.1%} are said to fit, "
            f"{memory['ran_out_at_risk']:.1%} to be at risk"
        )
    for row in figures["memory_per_row"]:
        if row["verdict"] == ("OOM" if row["ran"] else "FITS"):
            typer.echo(
                f"  {row['id']}: {'ran' if row['ran'] else 'ran out of memory'}, said {row['verdict']} "
                f"({row['needed_GB']:.1f} of {row['device_GB']:.1f} GB)"
            )


def _print_worst(outcome: "Validation") -> None:
    """The rows that are furthest off, with the largest parts of their step."""
    from dataclasses import fields

    rows = sorted(outcome.rows, key=lambda row: -abs(row.error))[:WORST]
    typer.echo("\nworst rows")
    for row in rows:
        step = row.projection.step
        total = float(step.total[0])
        shares = {f.name: float(step.__getattribute__(f.name)[0]) / total for f in fields(step)}
        largest = sorted(shares.items(), key=lambda item: -item[1])[:5]
        parts = ", ".join(f"{name} {share:.0%}" for name, share in largest)
        run = row.run
        typer.echo(
            f"{run.id:<12}{row.error:>+8.1%}  {run.model.name[:20]:<21}{run.gpu:<10}"
            f"{run.cluster.stack.name:<20} {parts}"
        )


def _print_reasons(title: str, items: list[dict[str, str]], key: str) -> None:
    """How many runs share each reason, the most frequent first, with the first of them."""
    reasons: dict[str, list[str]] = {}
    for item in items:
        reasons.setdefault(item[key], []).append(item["id"])
    if reasons:
        typer.echo(f"\n{title}")
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))[:MOST_REASONS]:
        named = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        typer.echo(f"{len(ids):>6}  {reason} ({named})")
    if len(reasons) > MOST_REASONS:
        typer.echo(f"        and {len(reasons) - MOST_REASONS} more (--json lists every run)")
