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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from primus_search.base.errors import UNREADABLE, InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_bytes, recorded, working_folder
from primus_search.declare import search_path

if TYPE_CHECKING:
    from primus_search.space import Space

FOLDER, INDEX = "inputs", "index.json"
MOST_BYTES = 64 * 1024 * 1024

__all__ = ["FOLDER", "Snapshot", "load_recorded", "recorded"]


def load_recorded(path: str | Path, overrides: Sequence[str], **options: Any) -> "tuple[Space, Snapshot]":
    """The space in a file, as `load_space` gives it with the same options, and the texts that it was loaded from."""
    from primus_search.declare.hardware_files import host_hardware
    from primus_search.declare.space_file import load_space

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
        roots = [path for path in search_path.roots() if path != working_folder()]
        here = working_folder()
        return cls(
            texts={str(path): content for path, content in sorted(texts.items())},
            source=_absolute(source),
            roots=tuple(_absolute(root) for root in ([here] if here else []) + roots),
            sites=_absolute(search_path.sites()),
            host=host,
        )

    def write(self, run: Path) -> None:
        """The texts and their index below `run`; raises OSError."""
        folder = run / FOLDER
        for name, content in self.texts.items():
            path = folder / _inside(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        index = {
            "source": self.source,
            "roots": self.roots,
            "sites": self.sites,
            "host": self.host,
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in self.texts.items()},
        }
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
            for name in (index["source"], *index["roots"], index["sites"], *([index["host"]] if index["host"] else [])):
                _inside(str(name))
            return cls(
                texts=texts,
                source=str(index["source"]),
                roots=tuple(map(str, index["roots"])),
                sites=str(index["sites"]),
                host=str(index["host"]),
                folder=folder,
            )
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
        assert self.folder is not None
        mount = search_path.Mount(
            folder=self.folder.resolve(),
            roots=tuple(self._place(root) for root in self.roots),
            sites=self._place(self.sites),
        )
        with search_path.mounted(mount):
            yield self._place(self.source)

    def host_file(self) -> Path:
        """The hardware file of the machine that the run measured."""
        return self._place(self.host)

    def _place(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder.resolve() / _inside(name)

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
