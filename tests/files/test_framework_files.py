"""Contracts of frameworks: a key that no entry has is an error that names the file, the place and the nearest key."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.files.framework_files import framework_names, framework_of, load_framework
from primus_search.files.search_path import FileKind, find
from primus_search.files.source import Document, read
from primus_search.values.machine.framework import ANY

SECTIONS = ("schedules", "knobs", "requires", "idles", "software")
"""Sections whose entries are records."""
FILES = [name for name in framework_names() if name != ANY]


def contract(name: str) -> Path:
    path = find(FileKind.FRAMEWORK, name)
    assert isinstance(path, Path)
    return path


def places(data: dict[str, Any]) -> Iterator[tuple[str, str | int, str]]:
    """Section, entry and key of everything that the entries of a contract give."""
    for section in SECTIONS:
        found = data.get(section, {})
        for name, one in found.items() if isinstance(found, dict) else enumerate(found):
            yield from ((section, name, key) for key in one)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_key_of_any_entry_is_refused_by_its_name(name: str) -> None:
    path = contract(name)
    data = read(path).data
    found = list(places(data))
    assert found
    for section, entry, key in found:
        changed = copy.deepcopy(data)
        wrong = f"{key[:2]}{key[1:]}"  # one letter twice
        changed[section][entry][wrong] = changed[section][entry].pop(key)
        document = Document(path.name, changed)
        with pytest.raises(InputError) as caught:
            framework_of(document, name, path.parent)
        where = document.where((section, entry, wrong))
        assert f"{where}: unknown key; did you mean '{key}'?" in str(caught.value)


def test_every_problem_of_an_entry_is_said_at_once() -> None:
    data = {"requires": [{"name": "a", "hold": "tp > 0", "reasons": "r", "source": "s"}]}
    with pytest.raises(InputError) as caught:
        framework_of(Document("own.yaml", data), "own", None)
    assert [problem.what for problem in caught.value.problems][-3:] == [
        "unknown key; did you mean 'holds'?",
        "unknown key; did you mean 'reason'?",
        "Requirement: holds: Field required",
    ]


def test_every_contract_is_read() -> None:
    assert {name: load_framework(name).name for name in FILES} == {name: name for name in FILES}


def test_contracts_of_earlier_releases_are_laid_over_one_another() -> None:
    data = {
        "releases": ["1", "2", "3"],
        "options": {"word": "new"},
        "requires": [
            {"name": "now", "holds": "tp > 0", "reason": "r", "source": "s"},
            {"name": "first", "holds": "pp > 0", "reason": "r", "source": "s", "until": "2"},
        ],
        "before": {
            "3": {"options": {"word": "old"}, "lifts": ["now"], "defaults": {"a": 1}},
            "2": {"defaults": {"a": 2, "b": 3}},
        },
    }
    found = framework_of(Document("own.yaml", data), "own", None)
    told = {one: found.at(one) for one in found.releases}
    assert {one: at.options["word"] for one, at in told.items()} == {"1": "old", "2": "old", "3": "new"}
    assert {one: dict(at.defaults) for one, at in told.items()} == {"1": {"a": 2, "b": 3}, "2": {"a": 1}, "3": {}}
    assert {one: [rule.name for rule in at.requires] for one, at in told.items()} == {
        "1": ["first"],
        "2": [],
        "3": ["now"],
    }


def test_a_release_that_is_none_is_refused_where_earlier_contracts_are_named_by_it() -> None:
    with pytest.raises(InputError, match=r"'4' is none of the releases|before"):
        framework_of(Document("own.yaml", {"releases": ["1"], "before": {"4": {}}}), "own", None)
