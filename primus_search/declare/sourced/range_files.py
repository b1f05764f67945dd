"""Reads `hardware/ranges/*.yaml`: what was measured of each device and stack. `python -m tools.fit ranges` writes them.

MI355X:
  gemm/bf16: {points: 16, low: [1024, 1024, 1024], high: [16384, 16384, 16384], source: "..."}
"""

from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.declare.search_path import roots
from primus_search.declare.source import Document, read
from primus_search.values.machine.accelerator import Range, Ranges

FOLDER = "hardware/ranges"
_KEYS = ("points", "low", "high", "source")


@lru_cache(maxsize=1)
def load_ranges() -> Ranges:
    """Every range in reach; an owner in an earlier root hides the same owner in a later one."""
    found: dict[str, dict[str, Range]] = {}
    problems: list[Problem] = []
    for root in roots():
        mine: dict[str, dict[str, Range]] = {}
        for path in sorted((root / FOLDER).glob("*.yaml")):
            document = read(path)
            owners = document.data if isinstance(document.data, dict) else {}
            for owner, kinds in owners.items():
                for kind, raw in (kinds if isinstance(kinds, dict) else {}).items():
                    try:
                        mine.setdefault(owner, {})[kind] = _range(raw)
                    except (TypeError, ValueError) as error:
                        problems.append(_problem(document, owner, kind, error))
        found = mine | found
    if problems:
        raise InputError(problems)
    return found


def _range(raw: Any) -> Range:
    if not isinstance(raw, dict) or set(raw) != set(_KEYS):
        raise ValueError(f"expected {{{', '.join(_KEYS)}}}")
    low, high = (tuple(float(size) for size in raw[name]) for name in ("low", "high"))
    return Range(points=int(raw["points"]), low=low, high=high, source=str(raw["source"]))


def _problem(document: Document, owner: str, kind: str, error: Exception) -> Problem:
    return document.problem((owner, kind), str(error))
