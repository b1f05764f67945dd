"""The last run of each working directory, for commands that name none; kept in the user's cache."""

import hashlib
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import cache_folder, replacing


def _pointer() -> Path:
    return cache_folder() / "last_runs" / hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]


def remember(folder: Path) -> None:
    """Note the run that was just made in this working directory; a cache that cannot be written is no error."""
    try:
        pointer = _pointer()
        pointer.parent.mkdir(parents=True, exist_ok=True)
        with replacing(pointer) as temporary:
            temporary.write_text(str(folder.resolve()), encoding="utf-8")
    except (OSError, InputError):
        return


def last_run() -> Path:
    """The folder of the last run made in this working directory. Raises InputError where there is none."""
    try:
        folder = Path(_pointer().read_text(encoding="utf-8"))
    except OSError:
        folder = Path()
    if not (folder / "run.json").is_file():
        raise InputError([Problem("RUN", "no run was made in this folder, or it is gone; name a run folder")])
    return folder
