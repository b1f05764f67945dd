"""Words of a constraint: numbers, quoted words, names and signs, each with its position."""

import re
from dataclasses import dataclass
from typing import Literal

MAX_LENGTH = 2000
"""A constraint longer than this is a mistake (or an attack), not a constraint."""

Kind = Literal["number", "word", "name", "sign", "end"]

_PATTERN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<word>'[^']*'|"[^"]*")
  | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
  | (?P<sign><=|>=|==|!=|//|[-+*/%<>()\[\],])
    """,
    re.VERBOSE,
)


class ConstraintError(ValueError):
    """A constraint that cannot be read: what is wrong, and at which character (from 1)."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.message, self.position = message, position

    def __reduce__(self) -> tuple[type["ConstraintError"], tuple[str, int]]:
        return (type(self), (self.message, self.position))


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the text and where it starts."""

    kind: Kind
    text: str
    position: int


def tokens(text: str) -> list[Token]:
    """The words of a constraint, ending with one of kind `end`. Raises ConstraintError at the first unknown sign."""
    if len(text) > MAX_LENGTH:
        raise ConstraintError(f"a constraint has at most {MAX_LENGTH} characters, this one has {len(text)}", MAX_LENGTH)
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise ConstraintError(f"cannot read {text[position]!r}", position)
        kind = match.lastgroup
        if kind == "number":
            found.append(Token("number", match.group(), position))
        elif kind == "word":
            found.append(Token("word", match.group()[1:-1], position))
        elif kind == "name":
            found.append(Token("name", match.group(), position))
        elif kind == "sign":
            found.append(Token("sign", match.group(), position))
        position = match.end()
    return [*found, Token("end", "", len(text))]
