"""What a file is that starts no job which is read, and the command that prices the same job.

not_read(Path("train.py"), text)     "is Python (a recipe of Megatron-Bridge), which is not run; ..."
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.known_keys import key_table
from primus_search.models.preset_names import preset_in

MOST_NAMED = 12


def not_read(path: Path, text: str, *, is_bare: bool = False) -> str:
    """What the file is, and the `project` command with the sizes that stand in it unless `is_bare`."""
    kind = next(
        what
        for end, *marks, what in key_table("other_files")["kinds"]
        if re.search(end, path.name) and all(_has(text, mark) for mark in marks)
    )
    scripts = ", ".join(_scripts_of(path)) if kind.endswith(NAMED_BY_SCRIPTS) else ""
    kind = kind.replace(WORDS, ", ".join(islice(dict.fromkeys(_NAMES.findall(text)), MOST_WORDS)) or "nothing")
    if is_bare:
        return f"{_NOT_RUN.sub('', kind)}, and is not read: give its sizes"
    return f"{kind}{scripts and f': {scripts}'}; the same job is priced by {command(text)}"


WORDS, MOST_WORDS = "WORDS", 8
"""What stands for the sections and commands of a file that is of no other kind, and how many of them are named."""
_NAMES = re.compile(
    r"^[ \t]*(?!(?:if|then|else|elif|fi|for|do|done|while|case|esac|echo|export|set|cd|source|mkdir|exit)\b)"
    r"([A-Za-z_][\w.-]{0,40})(?=:|[ \t]|$)(?!=)",
    re.MULTILINE,
)
_NOT_RUN = re.compile(r"(?:, which (?:is not (?:run|read)|starts nothing and is not run))?(?::.*)?$")
NAMED_BY_SCRIPTS = "its script is read"
"""How the words for a file end that a script names beside its model and its batch."""


def _scripts_of(path: Path) -> Iterator[str]:
    """Names of the first scripts beside a file, above it or in `scripts` there that name it."""
    above = path.resolve().parent.parent
    near = (
        file for folder in (path.resolve().parent, above, above / "scripts") for file in sorted(folder.glob("*.sh"))
    )
    for file in islice(near, 4 * MOST_NAMED):
        with suppress(InputError):
            if path.name in read_text(file, most=MAX_TABLE_BYTES):
                yield file.name


def _has(text: str, mark: str) -> bool:
    """Whether a text has a mark, a pattern; one that begins with `!` is lacked."""
    return (re.search(mark.removeprefix("!"), text, re.MULTILINE) is None) is mark.startswith("!")


def command(text: str) -> str:
    """`primus-search project` with the sizes that a text gives by their usual names."""
    sets = []
    for name, pattern in key_table("other_files")["names"].items():
        found = re.search(
            rf"(?<![\w-])(?:{pattern.replace('_', '[_-]')})[\"']?\s*[:= ]\s*[\"']?(\d{{1,7}})(?![\w.])", text
        )
        sets += [f"--set {name}={found[1]}"] if found else []
    named = " ".join(sets) or "--set tp=.. --set micro_batch_size=.. --set global_batch_size=.."
    return f"primus-search project --model {preset_in(text) or 'MODEL'} --hardware NAME --nodes N {named}"
