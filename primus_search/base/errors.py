"""Errors a user can act on. Every one says where, what was given, what is allowed and what to do.

Exit codes of the command line follow the type: `InputError` is 2, `NothingFits` is 3.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class PrimusSearchError(Exception):
    """Root of all errors this package raises on purpose; never raised itself."""

    exit_code = 1


def printable(text: str) -> str:
    """Text with control characters and surrogates as their escapes, so that no terminal acts on them; lines stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one place of an input: `where: what`.

    `where` is `file:line @ $.path` for a file, the flag for a flag, the variable for an environment variable.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.what}")


class InputError(PrimusSearchError):
    """The input cannot be used. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type["InputError"], tuple[tuple[Problem, ...]]]:
        # Exceptions cross process borders in Ray; the default would hand the joined message to __init__.
        return (type(self), (self.problems,))


class NothingFits(PrimusSearchError):
    """The space holds no candidate that is legal and fits in memory; the message names the nearest miss."""

    exit_code = 3


UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)
"""What reading damaged data may raise. A reader of files catches these and names the file and the place in it."""


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Raises InputError at `where` for whatever reading damaged data inside raises."""
    try:
        yield
    except UNREADABLE as error:
        what = f"{error.args[0]!r} is not a value" if isinstance(error, KeyError) and error.args else str(error)
        raise InputError([Problem(where, what or type(error).__name__)]) from error


class ScheduleError(PrimusSearchError, ValueError):
    """A pipeline schedule cannot be built or simulated; names the rank, the operation and what it waits for."""
