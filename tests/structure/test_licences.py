"""The licence of every pinned dependency is stated."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_pinned_dependency_has_a_licence_in_the_list() -> None:
    pins = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[.*\])?==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    listed = re.findall(r"^\| (\S+) \| \S.* \|$", (ROOT / "docs/dev/licences.md").read_text(), re.MULTILINE)
    plain = {name.lower().replace("_", "-") for name in listed}
    assert len(pins) > 50
    assert [name for name in pins if name.lower().replace("_", "-") not in plain] == []
