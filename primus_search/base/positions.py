"""Positions of equal keys in a sequence."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def places(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Positions of every key, in order of first appearance."""
    found: dict[Key, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found
