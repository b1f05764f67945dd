"""Standard streams of a command: characters that an encoding lacks are replaced, a closed stream is discarded."""

import os
import sys
from typing import TextIO


def prepare() -> None:
    """Print `?` for characters that the encoding of a stream lacks, and nothing to a stream that is closed."""
    sys.stdout = _usable(sys.stdout)
    sys.stderr = _usable(sys.stderr)


def _usable(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by the caller (`>&-`)
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - stays open until the process ends
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return stream


def discard() -> None:
    """Point standard output at nothing, so that Python does not complain while closing it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
