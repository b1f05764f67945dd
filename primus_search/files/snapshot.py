"""The texts that a space is loaded from, kept in a run folder, and loading from them again.

    with recorded() as texts: load_space("my.yaml")
    Snapshot.of(texts, ...).write(folder)
    with Snapshot.read(folder).mounted(): load_space(source)      on any machine, after the originals changed

Below `inputs/` the texts lie in the folders they came from, so that names and relative paths lead to them; `index.json`
names the folders that were searched. What was not read then, a further file of `--what-if`, is looked up as usual.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_bytes, working_folder
from primus_search.files.search_path import MOUNTED, roots, sites

FOLDER, INDEX = "inputs", "index.json"
MOST_BYTES = 64 * 1024 * 1024
_PLACES = ("source", "roots", "sites", "host")


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
            source=os.path.realpath(source),
            roots=tuple(os.path.realpath(root) for root in ([here] if here else []) + others),
            sites=os.path.realpath(sites()),
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
        token = MOUNTED.set(self)
        try:
            yield self.place(self.source)
        finally:
            MOUNTED.reset(token)

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


def _inside(name: str) -> Path:
    """An absolute path as one below a folder. Raises ValueError for a name that leads out of it."""
    parts = Path(name).parts[1:]
    if not Path(name).is_absolute() or ".." in parts:
        raise ValueError(f"{name[:80]!r} is no absolute path")
    return Path(*parts)
