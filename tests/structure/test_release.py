"""A release has one version, a dated section of CHANGELOG.md with four headings, and its licence's text."""

import re
from pathlib import Path

import primus_search

ROOT = Path(__file__).parents[2]
HEADINGS = ["Added", "Changed", "Fixed", "Breaks"]
LONGEST_SECTION = 150
"""Lines of a release's section; days and figures belong to docs/dev/changes_log.md."""


def newest_section() -> tuple[str, str]:
    """Title and text of the first section of CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n## ")[2].partition("\n")
    return title, rest.partition("\n## ")[0]


def test_the_first_section_of_the_changelog_is_of_this_version_and_dated() -> None:
    title, _ = newest_section()
    assert re.fullmatch(rf"{re.escape(primus_search.base.version.__version__)} \(\d{{4}}-\d\d-\d\d\)", title)


def test_changes_stand_under_four_headings_and_are_few() -> None:
    _, text = newest_section()
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == HEADINGS
    assert len(text.splitlines()) <= LONGEST_SECTION


def test_the_version_has_one_home() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)


def test_the_licence_of_the_package_lies_in_the_repository() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0" in text
