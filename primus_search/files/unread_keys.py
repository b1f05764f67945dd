"""Keys of a file that its reader did not read: dropped because the user ignores them, or refused by name."""

from collections.abc import Collection

from primus_search.base.errors import Problem, did_you_mean
from primus_search.files.fields import Fields
from primus_search.files.known_keys import KnownKeys


def drop_ignored(fields: Fields, ignore: Collection[str]) -> tuple[str, ...]:
    """Remove the keys that the user ignores knowingly; a problem for each that the file does not have."""
    for key in ignore:
        if key not in fields.entries:
            what = f"--ignore {key}: the file has no such key{did_you_mean(key, fields.entries)}"
            fields.problems.append(Problem(fields.where, what))
    dropped = tuple(key for key in fields.entries if key in ignore)
    fields.entries = {key: value for key, value in fields.entries.items() if key not in ignore}
    return dropped


def refuse_unread(fields: Fields, known: KnownKeys, readable: Collection[str] = ()) -> None:
    """A problem for every key that was not read and is not known to decide nothing.

    readable: keys that the reader reads where they apply; unread they say nothing about this model.
    """
    for key, given in fields.entries.items():
        if key in fields.read or key in known.irrelevant or key in known.companions or key in known.effects:
            continue
        if key in known.switches:
            if not _is_off(given.value):
                what = f"{key} makes {known.switches[key]}, which this reader does not read"
                fields.problem(key, f"{what}; --ignore {key} leaves it out knowingly")
        elif key not in readable:
            near = did_you_mean(key, [*readable, *fields.read])
            fields.problem(key, f"unknown key '{key}', which may change the model{near}; --ignore {key} skips it")


def _is_off(value: object) -> bool:
    """Whether a switch is off: nothing, or a mapping that says so (`lora: {enabled: false}`)."""
    return value in (None, False, 0, "", [], {}) or (isinstance(value, dict) and value.get("enabled") is False)
