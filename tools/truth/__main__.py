"""`python -m tools.truth`."""

import typer

from tools.truth.command import truth

typer.run(truth)
