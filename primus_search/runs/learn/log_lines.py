"""Lines of a log of any size, streamed: terminal colours, carriage returns and compression are removed here."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from primus_search.base.guards.files import opened

LONGEST_LINE = 1 << 16
"""Characters of a line that are read; the rest of a longer one (a compiler's dump) is skipped."""

CHUNK = 1 << 22

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff]"
)
"""Control characters, signs that turn the direction of text, and every white space but blank, tab and line end."""
_COMPLETE_END = ("|", "}", "%", ")")


def _opened(path: Path) -> IO[bytes]:
    file = opened(path)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def plain(text: str) -> str:
    """Text without terminal escape sequences and control characters."""
    return text if text.isprintable() else _CONTROLS.sub(_blank, _ESCAPES.sub("", text))


def _blank(found: re.Match[str]) -> str:
    return " " if found[0].isspace() else ""


def chunks(path: Path) -> Iterator[str]:
    """A file as plain text in pieces of some MB; each begins with the end of the one before, so no word is split."""
    overlap = b""
    with _opened(path) as stream:
        while piece := stream.read(CHUNK):
            yield plain((overlap + piece).decode("utf-8", errors="replace"))
            overlap = piece[-256:]


def lines(path: Path) -> Iterator[str]:
    """Plain lines of a file; a carriage return ends one too. An unfinished last line is dropped unless it is closed."""
    with _opened(path) as stream:
        while raw := stream.readline(LONGEST_LINE):
            whole = raw.endswith(b"\n")
            text = plain(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
            parts = text.split("\r") if "\r" in text else [text]
            if not whole and len(raw) < LONGEST_LINE and not text.rstrip().endswith(_COMPLETE_END):
                parts = parts[:-1]
            yield from parts
            if not whole and len(raw) == LONGEST_LINE:
                _skip_rest(stream)


def _skip_rest(stream: IO[bytes]) -> None:
    while (raw := stream.readline(LONGEST_LINE)) and not raw.endswith(b"\n"):
        pass
