"""Where the sources of the frameworks are, and what of them is there."""

import os
from pathlib import Path

import pytest

VARIABLE = "PRIMUS_SEARCH_CLIENTS"
FOLDERS = {
    "megatron@core_0.20": "megatron_lm_main",
    "megatron@core_0.16": "megatron_lm_pinned",
    "primus": "primus",
    "nemo": "bridge",
    "nemo@26.08": "bridge_0.6.0",
    "torchtitan@main": "torchtitan",
    "torchtitan@0.3.0": "torchtitan_0.3.0",
}
"""Folder of each release below the checkouts; other releases are installed packages."""
BESIDE = {"primus": ["megatron@core_0.16"], "nemo": ["megatron@core_0.20"], "nemo@26.08": ["megatron@core_0.20"]}
"""Releases that a release is judged with: Primus pins a Megatron."""


def checkout(release: str) -> Path | None:
    """The sources of a release, where the variable names a folder that has them."""
    root = os.environ.get(VARIABLE, "")
    path = Path(root, FOLDERS[release])
    return path if root and path.is_dir() else None


def required(release: str) -> list[Path] | None:
    """The sources that a release is judged with, none where it is an installed package; None where one is missing."""
    found = [checkout(one) for one in (release, *BESIDE.get(release, ())) if one in FOLDERS]
    return None if None in found else [one for one in found if one is not None]


def missing(*releases: str) -> str:
    """Why a test is skipped that needs releases."""
    names = [one for release in releases for one in (release, *BESIDE.get(release, ()))]
    folders = ", ".join(FOLDERS[name] for name in names)
    return f"needs sources of {' and '.join(releases)}: {folders} below ${VARIABLE}"


def needs(*releases: str) -> pytest.MarkDecorator:
    """Skips a test where the sources of releases are missing, and says which."""
    absent = [one for one in releases if required(one) is None]
    return pytest.mark.skipif(bool(absent), reason=missing(*absent) if absent else "")


def sources(release: str) -> Path:
    """The sources of a release in a test that needs them."""
    found = checkout(release)
    assert found is not None, missing(release)
    return found
