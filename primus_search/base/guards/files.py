"""Files and folders of the user: bounded reads of regular files, paths that cannot be resolved, the cache folder."""

import fcntl
import io
import json
import os
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.interrupts import check

MAX_PATH = 4096
MAX_TABLE_BYTES = 256 * 1024 * 1024
"""Upper limit of tables and launch files; training logs are streamed instead."""
_BLOCK = 1 << 20
TEMPORARY = ".tmp"
"""How the name of a half-written file ends; the number of the process that writes it stands before."""
LEFT_S = 86_400.0
"""Seconds after which nobody is still writing a temporary file, on this machine or on one that shares the folder."""


def read_bytes(path: Path, *, most: int, name: str = "") -> bytes:
    """Content of a regular file of at most `most` bytes, opened by `opened`.

    Raises InputError for one that is larger. The limit counts bytes read, not the size that the file system reports.
    """
    with opened(path, name=name) as file:
        content = _bounded(file, most, name or str(path))
    texts = _recorded.get()
    if texts is not None:
        texts[path.resolve()] = content
    return content


def opened(path: Path, *, name: str = "") -> IO[bytes]:
    """A regular file to read.

    Raises InputError, with `name` (default: the path) as its place, for a missing file, a folder, a device, a FIFO or a
    socket, and for a file that cannot be read.
    """
    check()
    where = name or str(path)
    try:
        # Without O_NONBLOCK opening a FIFO waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError([Problem(where, "no such file")]) from None
    except (OSError, ValueError) as error:
        raise InputError([Problem(where, f"cannot be read: {reason(error)}")]) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        is_folder = stat.S_ISDIR(mode)
        what = (
            "is a folder; give the path of a file" if is_folder else "is not a regular file (a device, FIFO or socket)"
        )
        raise InputError([Problem(where, what)])
    return io.BufferedReader(_Read(handle, where))


class _Read(io.FileIO):
    """A file whose errors name it. Files of the kernel look regular and give no bytes, or an error (`/proc/kmsg`)."""

    def __init__(self, handle: int, where: str) -> None:
        super().__init__(handle)
        self._where = where

    def readinto(self, buffer: Any) -> int:
        try:
            count = super().readinto(buffer)
        except OSError as error:
            raise InputError([Problem(self._where, f"cannot be read: {reason(error)}")]) from None
        if count is None:
            raise InputError([Problem(self._where, "is not a regular file (a file of the kernel)")])
        return count

    def read(self, size: int | None = -1) -> Any:
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> bytes:
        return io.RawIOBase.readall(self)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone with a folder, which is made, among those that ask for it; the others wait. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


_recorded: ContextVar[dict[Path, bytes] | None] = ContextVar("_recorded", default=None)


@contextmanager
def recorded() -> Iterator[dict[Path, bytes]]:
    """What `read_bytes` reads inside, by resolved path. Loaders with a cache read again inside (`is_recording`)."""
    texts: dict[Path, bytes] = {}
    token = _recorded.set(texts)
    try:
        yield texts
    finally:
        _recorded.reset(token)


def is_recording() -> bool:
    """Whether reads are recorded."""
    return _recorded.get() is not None


def _bounded(file: IO[bytes], most: int, where: str) -> bytes:
    found = bytearray()
    while block := file.read(min(_BLOCK, most + 1 - len(found))):
        found += block
        if len(found) > most:
            raise InputError([Problem(where, f"has more than {most:,} bytes, the most that is read of such a file")])
    return bytes(found)


def read_text(path: Path, *, most: int, name: str = "", encoding: str = "utf-8") -> str:
    """`read_bytes` as text. Raises InputError where it is not text of that encoding."""
    try:
        return read_bytes(path, most=most, name=name).decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError([Problem(name or str(path), f"is not UTF-8 text (byte {error.start})")]) from None


def read_mapping(path: Path, *, most: int = MAX_TABLE_BYTES) -> dict[str, Any] | None:
    """The mapping that a file of JSON holds; None where it holds none, is damaged or cannot be read."""
    try:
        found = json.loads(read_text(path, most=most))
    except (InputError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_whole(path: Path, content: str | bytes) -> None:
    """A file with this content, whole or as it was; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def reason(error: OSError | ValueError) -> str:
    """Why a file could not be opened, in words: `permission denied`, `file name too long`."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def expanded(text: str, *, where: str = "") -> Path:
    """A path with `~` resolved. Raises InputError for an unknown user, a NUL or a path that is too long."""
    place = where or repr(text[:80])
    if "\0" in text:
        raise InputError([Problem(place, "a path cannot contain a NUL character")])
    if len(os.fsencode(text)) > MAX_PATH:
        raise InputError([Problem(place, f"is longer than {MAX_PATH:,} bytes, the limit of a path")])
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError([Problem(place, "its home folder is not known; write the whole path")]) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write; it takes its place as the block ends, else `path` stays as it was.

    What processes that were killed left of the same file is removed once it is older than `LEFT_S`.
    """
    check()
    for left in path.parent.glob(f".{escape(path.name)}.*{TEMPORARY}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Raises InputError at `where`, with the reason, for a file or folder that cannot be written inside."""
    try:
        yield
    except OSError as error:
        raise InputError([Problem(where, f"cannot be written: {error.strerror}")]) from error


def exists(path: Path) -> bool:
    """Whether there is something at a path; False where it may not be looked up."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def working_folder() -> Path | None:
    """The current folder, or None where it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def cache_folder() -> Path:
    """Where this user's caches live: $XDG_CACHE_HOME/primus-search, or ~/.cache/primus-search."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (expanded(given, where="XDG_CACHE_HOME") if given else user_folder(".cache", "cache")) / "primus-search"


def user_folder(name: str, purpose: str) -> Path:
    """A folder of the user's home, such as `.cache`.

    Without a home folder (a container whose user has no passwd entry) one below the temporary folder, per user.
    """
    try:
        return Path.home() / name
    except RuntimeError:
        return temporary_folder(purpose)


def temporary_folder(purpose: str) -> Path:
    """A folder of this user below the temporary folder."""
    return Path(tempfile.gettempdir()) / f"primus-search-{purpose}-{os.getuid()}"


PACKAGE = Path(__file__).parents[2]


def table_beside(module: str) -> dict[str, Any]:
    """The TOML table beside a module's file."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=2)
def fingerprint_of(folder: Path) -> str:
    """16 hex digits of the Python files and rules below a folder, read once."""
    seen = sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".toml")):
                with Path(place, name).open("rb", buffering=0) as file:
                    seen.update(file.read())
    return seen.hexdigest()[:16]
