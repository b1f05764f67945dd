"""`primus-search pareto` and `primus-search compare`: the frontier of a run, and two runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_search.cli.output.opened_runs import ROWS, AsJson, Run, opened, run_and_rows

if TYPE_CHECKING:
    from primus_search.exploration.run_folder.saved_run import SavedRun

AsCsv = Annotated[bool, typer.Option("--csv", help="Print pareto.csv as it is.")]


def pareto(run: Run = None, as_csv: AsCsv = False, as_json: AsJson = False) -> None:
    """The frontier of memory per GPU against tokens per second per GPU of a run."""
    from json import dumps

    from primus_search.report.frontier_text import print_saved_frontier

    saved = opened(run)
    if as_csv:
        typer.echo((saved.path / "pareto.csv").read_text(encoding="utf-8"), nl=False)
    elif as_json:
        typer.echo(dumps(list(saved.frontier), indent=2))
    else:
        print_saved_frontier(saved)


TWO = 2

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN_A RUN_B | [RUN] A B", help="Two run folders, or two rows of one run: A, 17."),
]


def compare(words: Words = None, as_json: AsJson = False) -> None:
    """Two runs, or two rows of one run, side by side: what changed, and why."""
    import sys
    from json import dumps

    from primus_search.analysis.explanation import plain
    from primus_search.analysis.run_comparison import compare as compared
    from primus_search.report.compare_text import print_comparison

    (a, rank_a), (b, rank_b) = _sides(list(words or []))
    found = compared(a, b, rank_a, rank_b)
    if as_json:
        typer.echo(dumps(plain(found), indent=2))
    else:
        print_comparison(found, sys.stdout)


def _sides(words: "list[str]") -> "tuple[tuple[SavedRun, int], tuple[SavedRun, int]]":
    """What is compared: a run and the rank of its row, twice. Raises InputError for other than two of them."""
    from primus_search.base.errors import InputError, Problem

    if len(words) == TWO and not all(ROWS.fullmatch(word) for word in words):
        return (opened(Path(words[0])), 1), (opened(Path(words[1])), 1)
    saved, rows = run_and_rows(words)
    if len(rows) != TWO:
        raise InputError([Problem("compare", "needs two run folders, or two rows of one run: compare A B")])
    return (saved, saved.rank_named(rows[0])), (saved, saved.rank_named(rows[1]))
