"""Damaged inputs: what a file, a table or a command line becomes under seeded mutations, and what reading one may do.

Reading a mutant may succeed, or refuse it with an error of this package that names a place and a reason. Any other
exception is a finding, and so is a call that takes longer than `MOST_S`.
"""

import json
import random
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import yaml

from primus_search.base.errors import InputError, PrimusSearchError

MOST_S = 10.0
WAITING_S = 60.0
"""Wall time of a call on a busy machine; what blocks takes longer."""
LONGEST_REFUSAL = 20_000

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-320, 1e308, 1e400, -1e400,
    float("nan"), "", " ", "auto", "none", "all", "0", "-1", "nan", "1e999", "x" * 300, "a\nb", "\x1b[31m", "\0", "é",
    "\U0001f600", "\udc80", "../../etc/passwd", "/dev/zero", "~nobody_there/x", "file://x", "=1+1", "$(touch x)",
    "Et*3000000000|tL", "(t*99999)*99999|tL", "${X:nonsense}", "${", "1,2,3", [], {}, [[]], [1, 2, 3], ["x"],
    {"": 1}, {"value": 3}, {"full": "all"}, {"first": 6, "last": 6}, [None], [{"a": [{"b": {}}]}],
)  # fmt: skip
WORDS: tuple[bytes, ...] = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"\r", b"\n\n", b"\t", b"{", b"}", b"[", b"]", b":", b"- ", b"#",
    b"&a [*a]", b"*a", b"!!python/object:os.system x", b"<<: *x", b"---", b"...", b"%YAML 9.9", b'"', b"'", b"|", b",",
    b"1e999", b"-1", b"nan", b"99999999999999999999", b"0", b"\xc3\x28", b"\xed\xa0\x80", b"=cmd", b"= ", b"\\",
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def mutated(rng: random.Random, content: bytes, ending: str) -> bytes:
    """One mutant of a file, by its structure where it has one, else by its bytes."""
    kind = rng.random()
    try:
        if kind < 0.6 and ending in ("yaml", "yml", "json"):
            return _of_tree(rng, content)
        if kind < 0.6 and ending == "csv":
            return _of_cells(rng, content)
    except (yaml.YAMLError, ValueError, RecursionError):
        pass
    if kind < 0.8:
        return _of_numbers(rng, content)
    return _of_bytes(rng, content)


def _of_tree(rng: random.Random, content: bytes) -> bytes:
    tree = yaml.safe_load(content)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return json.dumps(rng.choice(VALUES)).encode()
        parent, key = rng.choice(places)
        what = rng.random()
        if what < 0.6:
            parent[key] = rng.choice(VALUES)
        elif what < 0.75:
            del parent[key]
        elif what < 0.85 and isinstance(parent, dict):
            parent[f"{key}x" if isinstance(key, str) else rng.choice([0, None, True])] = parent.pop(key)
        else:
            other, its = rng.choice(places)
            parent[key] = json.loads(json.dumps(other[its]))
    return json.dumps(tree, default=str, indent=rng.choice([None, 1])).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _of_cells(rng: random.Random, content: bytes) -> bytes:
    lines = [line.split(b",") for line in content.splitlines()]
    if rng.random() < 0.3:
        _move_column(rng, lines)
    for _ in range(rng.randint(1, 4)):
        line = rng.choice(lines)
        at = rng.randrange(len(line))
        line[at] = rng.choice([rng.choice(WORDS), str(rng.choice(VALUES)).encode(errors="replace"), line[0]])
    return b"\n".join(b",".join(line) for line in lines) + b"\n"


def _move_column(rng: random.Random, lines: list[list[bytes]]) -> None:
    """A column away or in another place, in all lines or in one."""
    changed = lines if rng.random() < 0.6 else [rng.choice(lines)]
    at, to = (rng.randrange(len(lines[0])) for _ in range(2))
    is_gone = rng.random() < 0.4
    for line in changed:
        if at < len(line):
            cell = line.pop(at)
            if not is_gone:
                line.insert(to, cell)


def _of_numbers(rng: random.Random, content: bytes) -> bytes:
    found = list(NUMBER.finditer(content))
    if not found:
        return _of_bytes(rng, content)
    at = rng.choice(found)
    new = rng.choice([b"0", b"-1", b"1e999", b"nan", b"9" * 30, b"0.5", b"1e-300", b"", b"x", b"1" + at[0], b"3"])
    return content[: at.start()] + new + content[at.end() :]


def _of_bytes(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 64, 512])
        what = rng.randrange(6)
        if what == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del data[at : at + length]
        elif what == 2:
            data[at:at] = rng.choice(WORDS)
        elif what == 3:
            data[at:at] = data[at : at + length] * rng.choice([1, 3])
        elif what == 4:
            del data[at:]
        else:
            data[at : at + length] = rng.choice(WORDS)
    return bytes(data)


@dataclass(frozen=True)
class Surface:
    """One way in: files to start from (name, content), and what reads a mutant of the one called `name`."""

    seeds: Sequence[tuple[str, bytes]]
    read: Callable[[str, bytes], None]

    def findings(self, count: int, seed: int) -> Iterator[str]:
        """What went wrong with `count` mutants."""
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            name, content = rng.choice(self.seeds)
            mutant = mutated(rng, content, name.rpartition(".")[2])
            problem = refusal_problem(lambda name=name, mutant=mutant: self.read(name, mutant))
            if problem:
                yield f"seed {seed}, mutant {number} of {name}: {problem}\n{mutant[:600]!r}"


class Hang(BaseException):
    """A call took longer than it may; no Exception, so that nothing swallows it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread after so many processor seconds, or when it waits for `WAITING_S`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, WAITING_S))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    try:
        for _, timer, limit in timers:
            signal.setitimer(timer, limit)
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0.0)
            signal.signal(number, handler)


def refusal_problem(call: Callable[[], None]) -> str:
    """What is wrong with how a call ends, or the empty string."""
    try:
        with limited(MOST_S):
            call()
    except InputError as error:
        return _unclear(error)
    except (PrimusSearchError, SystemExit):
        return ""
    except Hang:
        return f"took more than {MOST_S:.0f} s:\n{traceback.format_exc()[-2000:]}"
    except BaseException:
        return traceback.format_exc()[-2500:]
    return ""


def _unclear(error: InputError) -> str:
    """A refusal has a place and a reason for each problem, no control character, and a length that can be read."""
    text = str(error)
    if not error.problems or not all(problem.where and problem.what.strip() for problem in error.problems):
        return f"a refusal without place or reason: {text!r}"
    odd = next((sign for sign in text if not sign.isprintable() and sign not in "\n\t"), "")
    if odd or len(text) > LONGEST_REFUSAL:
        return f"a refusal that cannot be printed ({odd!r}, {len(text):,} characters): {text[:500]!r}"
    return ""
