"""Stack files that `learn` wrote: which version wrote one, and one line where this version cannot read it.

    schema: 1
    written_by: primus-search 0.2.0
    name: mine ...

Numbers that a later version adds come from the stack that the file extends; keys that it removed are dropped.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from primus_search.base import units
from primus_search.base.errors import InputError, Problem
from primus_search.base.version import __version__
from primus_search.files.source import read
from primus_search.values.machine.stack import GROUP_OF, GROUPS

SCHEMA, WRITTEN_BY = "schema", "written_by"
NEWEST = 1
"""Number of the form of a learned stack; it grows where a later form cannot be read as this one."""
HEAD = {SCHEMA: NEWEST, WRITTEN_BY: f"primus-search {__version__}"}
RUNS_ENDING = ".runs.parquet"


def without_head(data: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a stack file without what says who wrote it, and without keys that only its writer knew.

    Raises InputError for a form that this version does not know.
    """
    if data.get(SCHEMA, NEWEST) != NEWEST:
        raise InputError([Problem(SCHEMA, f"reads up to {NEWEST}")])
    kept = {key: value for key, value in data.items() if key not in HEAD}
    if data.get(WRITTEN_BY, HEAD[WRITTEN_BY]) == HEAD[WRITTEN_BY]:
        return kept
    return {key: _known(value) if key in GROUPS else value for key, value in kept.items()}


def _known(group: Any) -> Any:
    """A group's numbers of those that this version has."""
    if not isinstance(group, dict):
        return group
    return {key: value for key, value in group.items() if key in GROUP_OF or units.to_base(key, 0.0)[0] in GROUP_OF}


@contextmanager
def of_its_version(path: Path) -> Iterator[None]:
    """InputError with one line, which names the version that learned a stack, for whatever is wrong with its file.

    Problems of files that this version or a person wrote stay as they are.
    """
    try:
        yield
    except InputError as error:
        data = _read(path)
        writer = str(data.get(WRITTEN_BY, "primus-search 0.1.0 or earlier"))[:60]
        is_learned = SCHEMA in data or path.with_name(f"{path.stem}{RUNS_ENDING}").is_file()
        if not is_learned or (writer == HEAD[WRITTEN_BY] and data.get(SCHEMA) == NEWEST):
            raise
        if data.get(SCHEMA, NEWEST) == NEWEST:
            why = f"which this version ({__version__}) cannot read: {error.problems[0]}"
        else:
            why = f"in schema {str(data[SCHEMA])[:20]}; this is {__version__}, which reads up to {NEWEST}"
        what = f"learned by {writer}, {why}; learn it again: primus-search learn LOGS --as {path.stem}"
        raise InputError([Problem(str(path), what)]) from error


def _read(path: Path) -> Mapping[str, Any]:
    """The content of the file itself, nothing inherited; empty where it cannot be read."""
    try:
        data = read(path).data
    except InputError:
        return {}
    return data if isinstance(data, dict) else {}
