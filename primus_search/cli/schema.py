"""`primus-search schema`: the JSON schema of a space file, for editors and other programs."""

import json
from typing import Annotated

import typer


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference of the space file as a page.")] = False,
) -> None:
    """The JSON schema of a space file.

    Save it and point your editor at it: `# yaml-language-server: $schema=space.schema.json` as the first line of a
    space file completes keys and values and checks them as you type.
    """
    from primus_search.declare.space_schema import json_schema

    if markdown:
        from primus_search.declare.space_reference import page

        typer.echo(page(), nl=False)
        return
    typer.echo(json.dumps(json_schema(), indent=2))
