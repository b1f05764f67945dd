"""One HTML page with every projected run beside its measurement; needs nothing but a browser."""

import math
from typing import Any

from primus_search.base.html_templates import rendered


def page(title: str, figures: dict[str, Any]) -> str:
    """The page, runs by error; everything that came from the file is escaped."""
    rows = sorted(figures["per_row"], key=lambda row: abs(_error(row)), reverse=True)
    return rendered("validation.html", title=title, figures=figures, number=number, rows=rows, error=_error)


def number(value: float, form: str = ".2f") -> str:
    """A figure, or a dash where it does not exist (no group is large enough, no row is there)."""
    return "-" if math.isnan(value) else format(value, form)


def _error(row: dict[str, Any]) -> float:
    """Signed relative error of a run's rate."""
    return float(row["predicted_tokens_per_s_per_gpu"]) / float(row["measured_tokens_per_s_per_gpu"]) - 1.0
