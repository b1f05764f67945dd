"""Promises that are missed stand in a published table."""

from tests.support.expected_failures import PAGE, page


def test_every_expected_failure_stands_in_the_published_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.support.expected_failures"
