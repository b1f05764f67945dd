"""Where the sources of the frameworks are, and what of them is there."""

import os
from pathlib import Path

VARIABLE = "PRIMUS_SEARCH_CLIENTS"
FOLDERS = {
    "megatron@core_0.20": "megatron_lm_main",
    "megatron@core_0.16": "megatron_lm_pinned",
    "primus": "primus",
    "nemo": "bridge",
    "torchtitan@main": "torchtitan",
    "torchtitan@0.3.0": "torchtitan_0.3.0",
}
"""Folder of each release below the checkouts; Primus needs the Megatron that it pins beside it."""


def checkout(release: str) -> Path | None:
    """The sources of a release, where the variable names a folder that has them."""
    root = os.environ.get(VARIABLE, "")
    path = Path(root, FOLDERS[release])
    return path if root and path.is_dir() else None


def missing(release: str) -> str:
    """Why a test is skipped that needs a release."""
    return f"needs sources of {release}: folder {FOLDERS[release]} below ${VARIABLE}"
