"""`primus-search schema`: the JSON schema of a space file, for editors and other programs."""

import json

import typer


def schema() -> None:
    """The JSON schema of a space file.

    Save it and point your editor at it: `# yaml-language-server: $schema=space.schema.json` as the first line of a
    space file completes keys and values and checks them as you type.
    """
    from primus_search.declare.space_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
