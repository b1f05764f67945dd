"""Stacks that `learn` wrote are read by later versions, or refused in one line that names their version."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.files.hardware_files import load_stack
from primus_search.files.learned_stacks import HEAD, RUNS_ENDING

NUMBERS = """\
name: mine
extends: torchtitan
efficiencies:
  gemm_efficiency: {value: 0.7, source: "learned 2026-11-27 from 3 own runs, from torchtitan"}
"""
REMOVED = """\
  number_of_the_past: {value: 2, source: "learned 2026-11-27 from 3 own runs, from torchtitan"}
"""


def written(folder: Path, text: str) -> str:
    """The path of a stack file with a text."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(path: str) -> str:
    """What is printed of a stack file that cannot be read."""
    with pytest.raises(InputError) as caught:
        load_stack(path)
    return str(caught.value)


def test_keys_that_another_version_learned_and_this_one_lacks_are_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, "schema: 1\nwritten_by: primus-search 0.1.9\n" + NUMBERS + REMOVED)
    stack = load_stack(path)
    assert stack.efficiencies.gemm_efficiency == 0.7
    assert stack.efficiencies.offload_efficiency == load_stack("torchtitan").efficiencies.offload_efficiency


def test_a_stack_of_another_version_on_a_base_that_is_gone_is_refused_in_one_line(tmp_path: Path) -> None:
    gone = NUMBERS.replace("torchtitan\n", "stack_of_the_past\n", 1)
    line = refused(written(tmp_path, "schema: 1\nwritten_by: primus-search 0.1.9\n" + gone))
    assert "\n" not in line
    assert "learned by primus-search 0.1.9, which this version" in line
    assert line.endswith("learn it again: primus-search learn LOGS --as mine")


def test_a_stack_of_a_later_form_names_its_version(tmp_path: Path) -> None:
    line = refused(written(tmp_path, "schema: 7\nwritten_by: primus-search 9.0.0\n" + NUMBERS))
    assert "\n" not in line
    assert "learned by primus-search 9.0.0, in schema 7" in line


def test_a_stack_that_0_1_0_learned_is_refused_in_one_line_where_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / f"mine{RUNS_ENDING}").write_bytes(b"")
    line = refused(written(tmp_path, NUMBERS + REMOVED + "gone: {value: 1, source: x}\n"))
    assert "\n" not in line
    assert "learned by primus-search 0.1.0 or earlier" in line


def test_mistakes_in_a_stack_of_this_version_are_listed_each(tmp_path: Path) -> None:
    head = "".join(f"{key}: {value}\n" for key, value in HEAD.items())
    assert len(refused(written(tmp_path, head + NUMBERS + REMOVED + "gone: {value: 1, source: x}\n")).splitlines()) == 2


def test_a_key_that_only_older_folders_may_have_is_refused_in_a_file_of_today(tmp_path: Path) -> None:
    text = 'name: mine\nextends: torchtitan\nexperts:\n  natural_imbalance: {value: 1.2, source: "a run"}\n'
    assert "natural_imbalance: is no longer read; give natural_spread" in refused(written(tmp_path, text))
