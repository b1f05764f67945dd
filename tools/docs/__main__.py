"""`python -m tools.docs [NAME ...]`: write the generated pages of docs/ anew."""

from collections.abc import Callable
from pathlib import Path

import typer

from tools.docs import generated, reliability, space_reference

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, tuple[Path, Callable[[], str]]] = {
    "space_file": (DOCS / "space_file.md", space_reference.page),
    "memory": (reliability.PAGE, reliability.page),
    "stack": (generated.STACK_PAGE, generated.stack_tables),
    "fitted_numbers": (DOCS / "cost" / "fitted_numbers.md", generated.fitted_numbers),
    "expected_failures": (DOCS / "dev" / "expected_failures.md", generated.expected_failures),
}
"""Where each page is, and the function that makes it."""


def write(names: list[str] = typer.Argument(None, help=f"Of {', '.join(PAGES)}; all if left out.")) -> None:  # noqa: B008
    """Write the generated pages of docs/ anew."""
    for name in names or PAGES:
        path, page = PAGES[name]
        path.write_text(page(), encoding="utf-8")
        typer.echo(path)


if __name__ == "__main__":
    typer.run(write)
