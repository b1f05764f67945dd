"""Where named things live: a preset, a hardware file, a software stack, a space.

A name is looked up in these roots, first hit wins:
    1. the folder in the environment variable PRIMUS_SEARCH_HOME
    2. the current folder
    3. the data installed with the package, or the checkout the package runs from
    4. for software stacks, the sites that `learn` wrote: `~/.config/primus-search/sites/*.yaml`

Each root has the layout of the repository: hardware/*.yaml, hardware/stacks/*.yaml (each with bases/ below it),
hardware/frameworks/*.yaml, spaces/*.yaml, spaces/models/*.yaml. Anything that looks like a path (has a slash or a
YAML/JSON ending) is a path, looked up beside the file that names it, then in the current folder, then in the roots.

The texts that a space is loaded from, kept in a run folder, and loading from them again.

    with recorded() as texts: load_space("my.yaml")
    Snapshot.of(texts, ...).write(folder)
    with Snapshot.read(folder).mounted(): load_space(source)      on any machine, after the originals changed

Below `inputs/` the texts lie in the folders they came from, so that names and relative paths lead to them; `index.json`
names the folders that were searched. What was not read then, a further file of `--what-if`, is looked up as usual.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import (
    MAX_TABLE_BYTES,
    exists,
    expanded,
    read_bytes,
    recorded,
    user_folder,
    working_folder,
)
from primus_search.files.source import did_you_mean

if TYPE_CHECKING:
    from primus_search.space import Space

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


_mounted: "ContextVar[Snapshot | None]" = ContextVar("_mounted", default=None)
"""Texts that names and paths are looked up in first."""


def roots() -> list[Path]:
    """Every root folder that exists, in order of precedence."""
    home = os.environ.get(HOME_VARIABLE, "")
    here = working_folder()
    kept = _mounted.get()
    candidates = [kept.place(root) for root in kept.roots] if kept else []
    candidates += [Path(home)] if home else []
    candidates += [here] if here else []
    candidates += [_PACKAGE / "data", _PACKAGE.parent]
    return [root for root in dict.fromkeys(candidates) if _is_readable(root)]


def _is_readable(folder: Path) -> bool:
    return exists(folder) and folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)


def names(kind: FileKind) -> dict[str, Path]:
    """Every known name of a kind and the file it stands for, sorted; an earlier root hides a later one."""
    files = [path for folder in reversed(_folders(kind)) for path in _files(folder)]
    return dict(sorted({path.stem: path for path in files}.items()))


def _folders(kind: FileKind) -> list[Path]:
    """Where files of a kind lie, in order of precedence."""
    folders = [root / kind.folder for root in roots()]
    if kind is FileKind.STACK:
        kept = _mounted.get()
        folders += ([kept.place(kept.sites)] if kept else []) + [sites()]
    return folders


def _files(folder: Path) -> list[Path]:
    """YAML files of a folder; none where it cannot be listed."""
    try:
        return [folder / entry.name for entry in os.scandir(folder) if entry.name.endswith(".yaml")]
    except OSError:
        return []


def shipped(kind: FileKind) -> dict[str, Path]:
    """Every file of a kind that ships with the package, whatever hides it, by name."""
    folders = [root / kind.folder for root in (_PACKAGE / "data", _PACKAGE.parent)]
    return dict(sorted({path.stem: path for folder in reversed(folders) for path in _files(folder)}.items()))


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
        kept = _mounted.get()
        if kept is not None and given.is_absolute():
            places.insert(0, kept.below.joinpath(*given.parts[1:]))
        for place in places:
            if exists(place):
                return place
        return f"no such file '{text}'"
    for folder in _folders(kind):
        if exists(folder / f"{text}.yaml"):
            return folder / f"{text}.yaml"
    known = names(kind)
    return f"unknown {kind.noun} '{text}'{did_you_mean(text, known)} - known: {', '.join(known) or 'none'}"


FOLDER, INDEX = "inputs", "index.json"
MOST_BYTES = 64 * 1024 * 1024
_PLACES = ("source", "roots", "sites", "host")


def load_recorded(path: str | Path, overrides: Sequence[str], **options: Any) -> "tuple[Space, Snapshot]":
    """The space in a file, as `load_space` gives it with the same options, and the texts that it was loaded from."""
    from primus_search.declare.space_file import load_space
    from primus_search.files.hardware_files import host_hardware

    hosts: list[Path] = []

    def host_file() -> Path:
        hosts.append(host_hardware())
        return hosts[-1]

    with recorded() as texts:
        space = load_space(path, overrides=overrides, host_file=host_file, **options)
    return space, Snapshot.of(texts, space.source, str(hosts[0].resolve()) if hosts else "")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Texts by the path they were read from, and where names were looked up.

    source  the space file        host  the hardware file of `hardware: host`, or empty
    """

    texts: Mapping[str, bytes]
    source: str
    roots: tuple[str, ...]
    sites: str
    host: str = ""
    folder: Path | None = None

    @classmethod
    def of(cls, texts: Mapping[Path, bytes], source: str, host: str = "") -> Self:
        """The snapshot of what loading `source` read."""
        here = working_folder()
        others = [path for path in roots() if path != here]
        return cls(
            texts={str(path): content for path, content in sorted(texts.items())},
            source=_absolute(source),
            roots=tuple(_absolute(root) for root in ([here] if here else []) + others),
            sites=_absolute(sites()),
            host=host,
        )

    def write(self, run: Path) -> None:
        """The texts and their index below `run`; raises OSError."""
        folder = run / FOLDER
        for name, content in self.texts.items():
            path = folder / _inside(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in self.texts.items()}
        index = {name: self.__getattribute__(name) for name in _PLACES} | {"files": digests}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """The snapshot of a run folder; None where it has none. Raises `InputError` where it is damaged."""
        folder = run / FOLDER
        path = folder / INDEX
        if not path.is_file():
            return None
        try:
            index: dict[str, Any] = json.loads(read_bytes(path, most=MOST_BYTES))
            texts = {}
            for name, digest in index["files"].items():
                content = read_bytes(folder / _inside(name), most=MAX_TABLE_BYTES)
                if hashlib.sha256(content).hexdigest() != digest:
                    raise InputError([Problem(str(folder / _inside(name)), "is not what the run was given")])
                texts[name] = content
            roots = tuple(map(str, index["roots"]))
            words = {name: str(index[name]) for name in _PLACES if name != "roots"}
            for name in (*roots, words["source"], words["sites"], *filter(None, [words["host"]])):
                _inside(name)
            return cls(texts=texts, roots=roots, folder=folder, **words)
        except UNREADABLE as error:
            raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error

    def stands_for(self, text: str) -> bool:
        """Whether a space is loaded from here: its file is the source, and has changed or is no longer there."""
        given = Path(text).resolve()
        if not Path(self.source).is_file():
            return not given.is_file() and given.stem == Path(self.source).stem
        is_source = str(given) == self.source or (not given.is_file() and given.stem == Path(self.source).stem)
        return is_source and bool(self.changed())

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """The space file of the snapshot; inside, names and paths lead to its texts first."""
        token = _mounted.set(self)
        try:
            yield self.place(self.source)
        finally:
            _mounted.reset(token)

    def host_file(self) -> Path:
        """The hardware file of the machine that the run measured."""
        return self.place(self.host)

    @property
    def below(self) -> Path:
        """The folder of the texts, each below it at its own absolute path."""
        assert self.folder is not None
        return self.folder.resolve()

    def place(self, name: str) -> Path:
        """Where the copy of a file or folder is."""
        return self.below / _inside(name)

    def changed(self) -> tuple[str, ...]:
        """The originals that are there and have another text now."""
        return tuple(name for name, content in self.texts.items() if _differs(Path(name), content))


def _differs(path: Path, content: bytes) -> bool:
    try:
        return path.is_file() and read_bytes(path, most=MAX_TABLE_BYTES) != content
    except InputError:
        return True


def _absolute(path: str | Path) -> str:
    return os.path.realpath(path)


def _inside(name: str) -> Path:
    """An absolute path as one below a folder. Raises ValueError for a name that leads out of it."""
    parts = Path(name).parts[1:]
    if not Path(name).is_absolute() or ".." in parts:
        raise ValueError(f"{name[:80]!r} is no absolute path")
    return Path(*parts)
