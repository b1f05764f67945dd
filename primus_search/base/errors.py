"""Errors a user can act on. Every one says where, what was given, what is allowed and what to do.

Exit codes of the command line follow the type: `InputError` is 2, `NothingFits` is 3, `BudgetEnded` is 5.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar


class PrimusSearchError(Exception):
    """Root of all errors this package raises on purpose; never raised itself."""

    exit_code = 1


def printable(text: str) -> str:
    """Text with control characters and surrogates as their escapes, so that no terminal acts on them; lines stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


MOST_HINTS = 20
"""Problems of one file before names are no longer compared, which takes longer than all the rest."""


def did_you_mean(given: str, known: Iterable[str], after: Sized = ()) -> str:
    """`; did you mean 'objective'?` for the nearest known name, or the empty string if none is near.

    Case and the signs between words do not count: `Mixtral-8x22B` is near `mixtral_8x22b`. `after`: what the file has
    wrong already; behind so many problems nothing is near.
    """
    if len(after) >= MOST_HINTS:
        return ""
    by_bare: dict[str, str] = {}
    for name in known:
        by_bare.setdefault(_bare(name), name)
    near = difflib.get_close_matches(_bare(given), by_bare, n=1, cutoff=0.65)
    return f"; did you mean '{by_bare[near[0]]}'?" if near else ""


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


MOST_PROBLEMS, MOST_ALIKE = 40, 10
"""Problems that a message has line by line, and those among them that say the same of several places; a longer message
is of a file of another kind."""
MOST_CHARACTERS = 3000
"""Characters of one problem: the longest list of known names has two thirds of them."""


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text of at most about so many characters: of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    head, tail = 2 * most // 3, most // 3
    return f"{text[:head]} ... ({len(text) - head - tail:,} characters left out) ... {text[-tail:]}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one place of an input: `where: what`.

    `where` is `file:line @ $.path` for a file, the flag for a flag, the variable for an environment variable.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return printable(f"{shortened(self.where)}: {shortened(self.what)}")


class InputError(PrimusSearchError):
    """The input cannot be used. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        alike = Counter[str]()
        lines = list[str]()
        for problem in self.problems:
            alike[problem.what] += 1
            if alike[problem.what] <= MOST_ALIKE and len(lines) < MOST_PROBLEMS:
                lines.append(str(problem))
        left = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, *([f"and {left:,} more problems"] if left else [])]))

    def __reduce__(self) -> tuple[type["InputError"], tuple[tuple[Problem, ...]]]:
        # Exceptions cross process borders in Ray; the default would hand the joined message to __init__.
        return (type(self), (self.problems,))


Made = TypeVar("Made")


def tried(make: Callable[[], Made], problems: list[Problem]) -> Made | None:
    """What `make` returns, or None after noting what is wrong with an input, each problem once."""
    try:
        return make()
    except InputError as error:
        problems += [problem for problem in error.problems if problem not in problems]
        return None


class NothingFits(PrimusSearchError):
    """The space holds no candidate that is legal and fits in memory; the message names the nearest miss."""

    exit_code = 3


class BudgetEnded(NothingFits):
    """No candidate that a search looked at fits, and it ended before it had looked at all of them."""

    exit_code = 5


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
