"""Files that a script names by paths of the machine it was written for.

beside(Path("examples/llama"), "/workspace/examples/llama/common.sh")     # examples/llama/common.sh
"""

from pathlib import Path, PurePosixPath

from primus_search.files.shell.shell_variables import UNSET

MOST_ABOVE = 5
"""Folders above the one of a script in which a file that it names is sought."""
LONGEST_NAME = 255
"""Bytes of a part of a path that file systems allow."""


def beside(folder: Path, name: str) -> Path | None:
    """A file of a folder, by the last parts of its name, or of one above by all or the last, two at least."""
    parts = [part for part in PurePosixPath(UNSET.sub("", name)).parts if part not in ("/", ".", "..")]
    folder = folder.resolve()
    is_name = all(len(part.encode()) <= LONGEST_NAME for part in parts)
    places = [Path(folder, *parts[n:]) for n in range(len(parts) if is_name else 0)]
    above = folder.parents[:MOST_ABOVE] if is_name else ()
    places += [Path(one, *parts[n:]) for n in range(len(parts) - 1) for one in above]
    return next((path for path in places if path.is_file()), None)
