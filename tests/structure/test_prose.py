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
STYLE = ROOT / "docs" / "dev" / "style.md"
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in (ROOT / "docs").rglob("*.md") if page != STYLE and not page.name.endswith("_log.md")),
    *(path for room in ("primus_search", "tools") for path in (ROOT / room).rglob("*.py")),
]


def replaced() -> list[str]:
    """The left column of the table in docs/dev/style.md."""
    rows = re.findall(r"^\| (.+?) \| .+ \|$", STYLE.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if row != "instead of"]


def pages_with(pattern: str) -> list[str]:
    """Pages and modules that hold a phrase, wherever its lines break."""
    phrase = re.compile(pattern.replace(" ", r"\s+"))
    return [str(page.relative_to(ROOT)) for page in PAGES if phrase.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("phrase", REFUSED)
def test_phrases_with_a_plain_replacement_are_not_used(phrase: str) -> None:
    assert pages_with(phrase) == []


@pytest.mark.parametrize("phrase", replaced())
def test_what_the_style_page_replaces_is_not_used(phrase: str) -> None:
    assert pages_with(" ".join(map(re.escape, phrase.split()))) == []
