"""Docs and messages are plain technical English: phrases that docs/dev/style.md replaces stay out."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = (
    r"resting on no run of its kind",
    r"what is projected to run out is not ranked",
    r"Figures on different evidence do not compare",
    r"Line: candidates no other beats",
    r"why is not known, for the inputs",
    r"asks here only",
    r"a slip of the pen",
    r"those one token meets",
    r"before the runs speak",
    r"as nothing but its own work can tell",
    r"This is the exact optimum of the model",
    r"as good as the first;",
    r"mostly newer than our files",
)
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "cost").glob("*.md"),
    *(ROOT / "primus_search").rglob("*.py"),
]


@pytest.mark.parametrize("phrase", REFUSED)
def test_phrases_with_a_plain_replacement_are_not_used(phrase: str) -> None:
    pattern = re.compile(phrase.replace(" ", r"\s+"))
    assert [str(page.relative_to(ROOT)) for page in PAGES if pattern.search(page.read_text(encoding="utf-8"))] == []
