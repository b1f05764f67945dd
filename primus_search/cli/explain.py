"""`primus-search explain`: why a candidate is fast or slow, what each knob gives, what would help."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_search.cli.output.opened_runs import AsJson, RunAndRows, run_and_rows

if TYPE_CHECKING:
    from primus_search.analysis.explanation import Explained

WhyNotText = Annotated[
    str,
    typer.Option(
        "--why-not",
        metavar="AXIS=VALUE,...|@FILE",
        help="Ask about another configuration: tp=4,pp=2, or that of a launch file.",
    ),
]
WhatIfTexts = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="KEY=VALUE", help="Change the machine or the job; repeatable."),
]
FrameworkName = Annotated[
    str,
    typer.Option("--framework", metavar="NAME", help="Judge by the rules of this framework instead of the run's."),
]
Top = Annotated[int, typer.Option(min=1, help="Rows listed by --what-if.")]


def explain(
    words: RunAndRows = None,
    why_not: WhyNotText = "",
    what_if: WhatIfTexts = None,
    framework: FrameworkName = "",
    top: Top = 8,
    as_json: AsJson = False,
) -> None:
    """Why a candidate of a run is fast or slow, what each knob gives, what would help.

    --why-not "tp=4,pp=2" asks about another configuration, --why-not @launch.sh about the one of a launch file,
    --what-if hardware.nic_GBps=100 about another machine.
    """
    from json import dumps

    saved, rows = run_and_rows(words)  # before the rest is loaded: most mistakes are a wrong folder
    from primus_search.analysis.explanation import explain as explained

    if framework:
        from primus_search.declare.framework_files import load_framework

        saved = saved.under(load_framework(framework, where="--framework"))
    found = [explained(saved, rank) for rank in map(saved.rank_named, rows or ["1"])]
    answers = []
    for one in found:
        if one is not found[0] and not as_json:
            typer.echo()
        is_asked = bool(why_not or what_if)
        answers.append(_asked(one, why_not, what_if, top, as_json) if is_asked else _explained(one, as_json))
    if as_json:
        typer.echo(dumps(answers if len(answers) > 1 else answers[0], indent=2))


def _explained(found: "Explained", as_json: bool) -> dict[str, Any]:
    """Everything about one candidate: printed, or as data."""
    import sys

    from primus_search.analysis.explanation import as_data
    from primus_search.report.explain_text import print_explained

    if as_json:
        return as_data(found)
    print_explained(found, sys.stdout)
    return {}


def _asked(found: "Explained", why_not: str, what_if: list[str] | None, top: int, as_json: bool) -> dict[str, Any]:
    """The answers to --why-not and --what-if about one candidate: printed, or as data."""
    import sys

    from primus_search.analysis.explanation import plain
    from primus_search.analysis.what_if import what_if as changed
    from primus_search.analysis.why_not import parse_asked
    from primus_search.analysis.why_not import why_not as asked_about
    from primus_search.report import explain_text

    answers = {}
    if why_not:
        reasons = asked_about(found.evaluator, found.base, parse_asked(why_not, found.base, found.evaluator))
        answers["why_not"] = plain(reasons)
        if not as_json:
            explain_text.print_why_not(found, reasons, sys.stdout)
    if what_if:
        moved = changed(found.run, found.evaluator, found.base, what_if, top)
        answers["what_if"] = plain(moved)
        if not as_json:
            explain_text.print_what_if(found, moved, sys.stdout)
    return answers
