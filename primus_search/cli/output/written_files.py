"""Files a user asks for by name: folders on the way are made, what cannot be written is said without a traceback."""

from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import writing


def must_exist(path: Path | None, flag: str) -> None:
    """Raises `InputError` at `flag` where a file that was named is not there: before anything long begins."""
    if path is not None and not path.is_file():
        raise InputError([Problem(f"{flag} {path}", "no such file")])


def must_be_folder(path: Path, flag: str) -> None:
    """Makes a folder. Raises `InputError` at `flag` with the reason where that is impossible."""
    with writing(f"{flag} {path}"):
        path.mkdir(parents=True, exist_ok=True)


def write(path: Path, content: str | bytes, flag: str) -> None:
    """Write a file. Raises `InputError` at `flag` with the reason where that is impossible."""
    with writing(f"{flag} {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
