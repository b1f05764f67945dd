"""`doctor`: what is optional may be missing, what is needed may not."""

from importlib import metadata

import pytest

from primus_search.cli import reference

VERSION = metadata.version


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> list[reference.Finding]:
    """What is found where some packages are not installed."""

    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return VERSION(name)

    monkeypatch.setattr(reference.metadata, "version", version)
    return [found for found in reference.examine() if found.name in (*reference.NEEDED, *reference.EXTRAS)]


def test_an_installation_without_extras_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = without(monkeypatch, *reference.EXTRAS)
    assert all(one.is_well for one in found)
    assert {one.name for one in found if one.value.startswith("not installed, optional: ")} == set(reference.EXTRAS)


def test_a_missing_dependency_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.name for one in without(monkeypatch, "numba") if not one.is_well] == ["numba"]
