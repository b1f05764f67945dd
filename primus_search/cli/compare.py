"""`primus-search compare`: two runs side by side, what changed and why."""

from pathlib import Path
from typing import Annotated

import typer

from primus_search.cli.output.opened_runs import AsJson, opened

RunA = Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")]
RunB = Annotated[Path, typer.Argument(metavar="RUN_B", help="Another run folder.")]


def compare(run_a: RunA, run_b: RunB, as_json: AsJson = False) -> None:
    """Two runs side by side: what changed, and why."""
    import sys
    from json import dumps

    from primus_search.analysis.explanation import plain
    from primus_search.analysis.run_comparison import compare as compared
    from primus_search.report.compare_text import print_comparison

    found = compared(opened(run_a), opened(run_b))
    if as_json:
        typer.echo(dumps(plain(found), indent=2))
    else:
        print_comparison(found, sys.stdout)
