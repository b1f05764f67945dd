"""Numbers as JSON has them: it knows neither NaN nor infinities."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """The same data with None in place of numbers that are not finite; tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value
