"""A measured run made of the cells a test names, as `validate` reads it from a table."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from primus_search.evidence.published.run_table import NUMBERS, WORDS, PublishedRun
from primus_search.files.word_rules import first, vocabulary


def run_with(cells: dict[str, str]) -> PublishedRun:
    """The run whose table has these cells and no others."""
    words = dict.fromkeys(WORDS, "")
    numbers: dict[str, float | None] = dict.fromkeys(NUMBERS, None)
    for name, cell in cells.items():
        if name in numbers:
            numbers[name] = float(cell)
        else:
            words[name] = cell
    return PublishedRun(line=2, words=words, numbers=numbers)


def excerpt(table: Path, folder: Path, chosen: Callable[[list[dict[str, str]]], Iterable[dict[str, str]]]) -> Path:
    """A table of the chosen rows of another one; of its rows alone it costs as many."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    path = folder / table.name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(chosen(rows))
    return path


def meaning(rules: str, **words: str) -> Any:
    """What a list of rules of the vocabulary makes of these cells; None where no rule holds."""
    return first(vocabulary("words")[rules], dict.fromkeys(WORDS, "") | words)
