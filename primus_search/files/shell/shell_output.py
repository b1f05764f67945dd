"""The text that programs write whose output follows from their words: echo, printf, basename, cut, seq ...

output_of(["basename", "a/b.sh", ".sh"], [], number)     # "b"
"""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from primus_search.base.errors import InputError
from primus_search.files.shell.shell_variables import UNSET
from primus_search.files.source import parse

_SIGNS = {"\\n": "\n", "\\t": "\t"}
_CHANGES = re.compile(r"s([/#|])((?:[\w ,:=-]|(?<=[\w ,:=-])\\\+)+)\1([\w ,:=-]*)\1(g?)")
"""A replacement of plain text by `sed`, of signs that are repeated (`\\+`), too."""


def _field_of(path: str, text: str | None) -> str | None:
    """The value of `.a.b` in a YAML or JSON text; None where it has none."""
    try:
        found = parse(text or "", "").data
    except InputError:
        return None
    for part in path[1:].split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if found is None or isinstance(found, Mapping) else str(found)


def output_of(
    words: list[str], piped: list[str], number: Callable[[str], str], read: Callable[[str], str | None]
) -> str | None:
    """The text that a command writes; None where only a run has it. `piped`: texts before it, of which it takes one;
    `read` gives the text of a file by its name."""
    name, rest = words[0], [word for word in words[1:] if word not in ("-n", "-e", "--", "-P", "-L")]
    first, last = (rest[0], rest[-1]) if rest else ("", "")
    text: str | None = {"echo": " ".join(rest), "date": "", "hostname": "", "pwd": ".", "realpath": last}.get(name)
    if name == "printf":
        text = first.replace("%s", last, 1).removesuffix("\\n")
    elif name == "basename":
        text = PurePosixPath(first).name.removesuffix(last if len(rest) > 1 else "")
    elif name == "dirname":
        text = str(PurePosixPath(first).parent)
    elif name == "expr":
        text = number(" ".join(rest))
    elif name == "bc" and piped:
        text = number(piped.pop())
    elif name == "cut" and piped and (cut := re.search(r"-f ?(\d)", " ".join(rest))):
        sign = re.search(r"-d ?(\S)", " ".join(rest))
        parts = piped.pop().split(sign[1] if sign else "\t")
        text = parts[int(cut[1]) - 1] if int(cut[1]) <= len(parts) else ""
    elif name in ("tr", "sed") and (not piped or UNSET.search(piped[-1])):
        return None
    elif name == "tr" and len(rest) == 2 and all(one in _SIGNS or len(one) == 1 for one in rest):
        old, new = (_SIGNS.get(one, one) for one in rest)
        text = piped.pop().replace(old, new)
    elif name == "sed" and (change := _CHANGES.fullmatch(" ".join(rest))):
        text = re.sub(change[2].replace("\\+", "+"), change[3], piped.pop(), count="g" not in change[4])
    elif name in ("yq", "jq") and (path := next((word for word in rest if re.fullmatch(r"(?:\.\w{1,80})+", word)), "")):
        text = _field_of(path, read(last))
    elif name == "seq" and rest and all(re.fullmatch(r"-?\d{1,5}", one) for one in rest):
        ends = [1, *map(int, rest)] if len(rest) == 1 else [*map(int, rest)]
        step = ends[1] if len(ends) == 3 else 1
        text = "\n".join(map(str, range(ends[0], ends[-1] + (1 if step > 0 else -1), step or 1)))
    return text
