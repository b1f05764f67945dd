"""The maintainers' laboratory: fits of the shipped numbers, truth by training, generated docs. Not in the wheel.

    python -m tools.fit              stacks, training rates, bands and measured ranges from tables of runs
    python -m tools.truth.train_one  a candidate trained on this machine
    python -m tools.docs             pages that are generated from the code

It imports the package; the package imports nothing of it.
"""

from typing import Any

from primus_search.base.html_templates import environment


def rendered(template: str, /, **values: Any) -> str:
    """The page that a template of `tools/templates/` makes of these values."""
    return environment("tools").get_template(template).render(**values)
