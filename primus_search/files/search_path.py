"""Where named things live: a preset, a hardware file, a software stack, a space.

A name is looked up in these roots, first hit wins:
    1. the folder in the environment variable PRIMUS_SEARCH_HOME
    2. the current folder
    3. the data installed with the package, or the checkout the package runs from
    4. for software stacks, the sites that `learn` wrote: `~/.config/primus-search/sites/*.yaml`

Each root has the layout of the repository: hardware/*.yaml, hardware/stacks/*.yaml (each with bases/ below it),
hardware/frameworks/*.yaml, spaces/*.yaml, spaces/models/*.yaml. Anything that looks like a path (has a slash or a
YAML/JSON ending) is a path, looked up beside the file that names it, then in the current folder, then in the roots.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from primus_search.base.errors import did_you_mean
from primus_search.base.guards.files import exists, expanded, user_folder, working_folder

if TYPE_CHECKING:
    from primus_search.files.snapshot import Snapshot

HOME_VARIABLE = "PRIMUS_SEARCH_HOME"
ENDINGS = (".yaml", ".yml", ".json")

_PACKAGE = Path(__file__).resolve().parent.parent


class FileKind(Enum):
    """What a name may name: the folder below a root, and the word for messages."""

    MODEL = ("spaces/models", "model preset")
    HARDWARE = ("hardware", "hardware file")
    STACK = ("hardware/stacks", "software stack")
    HARDWARE_BASE = ("hardware/bases", "base of hardware files")
    STACK_BASE = ("hardware/stacks/bases", "base of software stacks")
    FRAMEWORK = ("hardware/frameworks", "framework")
    SPACE = ("spaces", "space file")
    SWEEP = ("sweeps", "nightly sweep")

    def __init__(self, folder: str, noun: str) -> None:
        self.folder, self.noun = folder, noun


MOUNTED: "ContextVar[Snapshot | None]" = ContextVar("_mounted", default=None)
"""Texts that names and paths are looked up in first."""


def roots() -> list[Path]:
    """Every root folder that exists, in order of precedence: those of kept texts, then those of today."""
    kept = MOUNTED.get()
    return [*filter(_is_readable, map(kept.place, kept.roots) if kept else ()), *roots_of_today()]


def roots_of_today() -> list[Path]:
    """Root folders beside those of kept texts: where evidence lies, which this version's error model reads."""
    home = os.environ.get(HOME_VARIABLE, "")
    here = working_folder()
    candidates = [Path(home)] if home else []
    candidates += [here] if here else []
    candidates += [_PACKAGE / "data", _PACKAGE.parent]
    return [root for root in dict.fromkeys(candidates) if _is_readable(root)]


def _is_readable(folder: Path) -> bool:
    return exists(folder) and folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)


def names(kind: FileKind) -> dict[str, Path]:
    """Every known name of a kind and the file it stands for, sorted; an earlier root hides a later one."""
    return _files(_folders(kind))


def _folders(kind: FileKind) -> list[Path]:
    """Where files of a kind lie, in order of precedence."""
    folders = [root / kind.folder for root in roots()]
    if kind is FileKind.STACK:
        kept = MOUNTED.get()
        folders += ([kept.place(kept.sites)] if kept else []) + [sites()]
    return folders


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    """YAML files of folders by their names, sorted; an earlier folder hides a later one, none counts that cannot be
    listed."""
    found: dict[str, Path] = {}
    for folder in reversed(folders):
        with suppress(OSError):
            listed = (entry.name for entry in os.scandir(folder))
            found |= {name.removesuffix(".yaml"): folder / name for name in listed if name.endswith(".yaml")}
    return dict(sorted(found.items()))


def shipped(kind: FileKind) -> dict[str, Path]:
    """Every file of a kind that ships with the package, whatever hides it, by name."""
    return _files([root / kind.folder for root in (_PACKAGE / "data", _PACKAGE.parent)])


def sites() -> Path:
    """The folder of stacks that `learn` writes for this user: `primus-search/sites` of the configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else user_folder(".config", "config")) / "primus-search" / "sites"


def is_path(text: str) -> bool:
    """Whether a text is a path rather than a name: it has a slash, or the ending of a file."""
    return "/" in text or text.endswith(ENDINGS)


def name_and_version(text: str) -> tuple[str, str]:
    """The name of a file, and which release or variant of it is meant: `nemo@26.04`. A path names none."""
    name, _, version = (text, "", "") if is_path(text) else text.partition("@")
    return name, version


def title(text: str) -> str:
    """A name or path as headings show it: `new_model` for `new_model/config.json`, `qwen2.5_7b` for itself."""
    path = Path(text)
    bare = path.name.removesuffix(path.suffix) if path.suffix in ENDINGS else path.name
    return path.parent.name or bare if bare == "config" else bare


def find(kind: FileKind, text: str, *, beside: Path | None = None) -> Path | str:
    """The file a name or path stands for, or the sentence that says why there is none."""
    if is_path(text):
        given = expanded(text)
        places = ([beside / given] if beside else []) + [given] + [root / given for root in roots()]
        kept = MOUNTED.get()
        if kept is not None and given.is_absolute():
            places.insert(0, kept.below.joinpath(*given.parts[1:]))
        for place in places:
            if exists(place):
                return place
        return f"no such file '{text}'"
    for folder in _folders(kind):
        if exists(folder / f"{text}.yaml"):
            return folder / f"{text}.yaml"
    return unknown(kind, text, names(kind))


def unknown(kind: FileKind, text: str, known: Iterable[str]) -> str:
    """The sentence that says that no file has this name, what may have been meant, and which names there are.

    A device is near one of its own series only: `gh200` is no slip of `h200`, and each has numbers of its own.
    """
    listed, more = list(known), ""
    near = listed
    if kind is FileKind.HARDWARE:
        near = [name for name in listed if series(name) == series(text)]
        more = "; for another device write a file that extends the nearest of these: docs/own_hardware.md"
    elif len(listed) > MOST_LISTED:
        more = f" ... ({len(listed)} in all: primus-search models)"
        listed = get_close_matches(text, listed, NEAREST, cutoff=0.0)
    return f"unknown {kind.noun} '{text}'{did_you_mean(text, near)} - known: {', '.join(listed) or 'none'}{more}"


MOST_LISTED, NEAREST = 100, 10
"""Names that a sentence lists, and the nearest ones that it has of more."""


def series(name: str) -> tuple[str, ...]:
    """Letters and number that a device's name begins with: `mi`, `355` of `MI355X`; those alone of another name."""
    found = re.match(r"([a-z]*)[^a-z0-9]*([0-9]*)", name.lower())
    return found.groups() if found else ()
