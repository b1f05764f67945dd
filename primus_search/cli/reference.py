"""`primus-search schema`, `words` and `doctor`: space files, words of the tables, this installation."""

import json
from typing import Annotated

import typer

from primus_search.cli.output.opened_runs import AsJson

Word = Annotated[str, typer.Argument(metavar="[WORD]", help="A word as a table prints it: sf3.")]


def schema() -> None:
    """The JSON schema of a space file.

    Save it and point your editor at it: `# yaml-language-server: $schema=space.schema.json` as the first line of a
    space file completes keys and values and checks them as you type.
    """
    from primus_search.declare.space_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def words(word: Word = "") -> None:
    """What a word of the tables means: sf3, PP4x2, zero1, AT RISK; without a word, all of them."""
    import textwrap

    from primus_search.analysis.glossary import TERMS, close_words, every_token, explain_word, nicknames
    from primus_search.base.errors import InputError, Problem

    if word:
        lines = explain_word(word)
        if not lines:
            near = close_words(word)
            what = "is no word of the tables" + (f"; did you mean {' or '.join(near)}?" if near else "")
            raise InputError([Problem(f"words {word}", what)])
        for line in lines:
            typer.echo(line)
        return
    for name, text in [*every_token(), *TERMS.items()]:
        typer.echo(textwrap.fill(f"{name:<22} {text}", 80, subsequent_indent=" " * 23))
    typer.echo("Short names of axes: " + ", ".join(nicknames()))


def doctor(json: AsJson = False) -> None:
    """Versions, devices, caches and folders of this installation."""
    from json import dumps

    from primus_search.report.installation import examine

    findings = examine()
    if json:
        typer.echo(dumps([{"name": f.name, "value": f.value, "is_well": f.is_well} for f in findings], indent=2))
    else:
        width = max(len(f.name) for f in findings)
        for f in findings:
            typer.echo(f"{'ok ' if f.is_well else 'BAD'} {f.name:<{width}}  {f.value}")
    if not all(f.is_well for f in findings):
        raise typer.Exit(1)
