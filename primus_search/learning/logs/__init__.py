"""One log format per module, and tables of what logs print; adding one: `primus_search.learning.readers`."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.files.source import read


@lru_cache
def table(name: str) -> Any:
    """The data of a YAML file of this folder."""
    return read(Path(__file__).parent / f"{name}.yaml").data
