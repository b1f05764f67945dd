"""The value of a test of bash, and what it hangs on that only a run has.

tests = Tests(variables)
tests.joined(["$TP", "-gt", "1", "&&", "-f", "data.bin"])
tests.doubts     # ["[ -f data.bin ]"]
"""

import fnmatch
import re
from dataclasses import dataclass, field

from primus_search.files.shell.shell_variables import UNSET, Variables

OUTPUT = "$("
"""How the name of a program's output begins."""
_NUMERIC = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_JOINTS = (("||", "-o"), ("&&", "-a"))
"""Signs between tests, those that bind least first."""
_FILE_TESTS = tuple(f"-{letter}" for letter in "abcdefghkprstuwxLNOGS")
_SAFE_PATTERN = re.compile(r"(?:[\w\s^$\[\]\-+*.:,=/@%(|?\\]|\)(?![+*{])){0,80}")
"""A regular expression of a script that is matched: no group is repeated, so that it cannot run long."""


@dataclass(slots=True)
class Tests:
    """Tests over the variables of a script.

    doubts   what tests hang on that has no value: variables, files, programs; `empty`: variables that are empty
    """

    variables: Variables
    doubts: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def known(self, words: list[str]) -> list[str]:
        """Words without what has no value, whose names are noted as doubts."""
        self.doubts += [name for word in words for name in UNSET.findall(word) if name not in self.doubts]
        return [UNSET.sub("", word) for word in words]

    def clear(self) -> None:
        """Begin with another test."""
        self.doubts.clear()
        self.empty.clear()

    def counts(self, text: str) -> None:
        """Note that a text counts the arguments of a script that is given none: they may be filled in by hand."""
        self.empty += ["#"] if "$#" in text and not self.variables.arguments and self.variables.depth <= 1 else []

    def joined(self, pieces: list[str], signs: tuple[tuple[str, ...], ...] = _JOINTS) -> tuple[bool, list[str]]:
        """Tests between the first signs, inside them those between the others; and the pieces behind."""
        if not signs:
            return self._single(pieces)
        value, rest = self.joined(pieces, signs[1:])
        while rest and rest[0] in signs[0]:
            other, rest = self.joined(rest[1:], signs[1:])
            value = value or other if "||" in signs[0] else value and other
        return value, rest

    def _single(self, pieces: list[str]) -> tuple[bool, list[str]]:
        if not pieces:
            return False, []
        if pieces[0] == "!" and len(pieces) > 1:
            value, rest = self._single(pieces[1:])
            return not value, rest
        if pieces[0] in ("(", "\\("):
            value, rest = self.joined(pieces[1:])
            return value, rest[1:]
        sign = pieces[1] if len(pieces) > 2 else ""
        if sign in ("=", "==", "!=", "=~", "<", ">", "\\<", "\\>", *_NUMERIC):
            self.counts(f"{pieces[0]} {pieces[2]}")
            left, right = self.known([self.variables.text(pieces[0]), self.variables.text(pieces[2])])
            return self._compared(left, sign.lstrip("\\"), right), pieces[3:]
        if len(pieces) > 1 and pieces[0] in ("-z", "-n"):
            text = self.variables.text(pieces[1])
            if OUTPUT in text and UNSET.search(text):
                self.known([text])
            self.empty += [] if UNSET.sub("", text) else re.findall(r"\$\{?([A-Za-z_]\w{0,80})", pieces[1])
            return bool(UNSET.sub("", text)) is (pieces[0] == "-n"), pieces[2:]
        if len(pieces) > 1 and pieces[0] == "-v":
            return not UNSET.search(self.variables.value(self.variables.text(pieces[1]))), pieces[2:]
        if len(pieces) > 1 and pieces[0] in _FILE_TESTS:
            self.doubts.append(f"[ {pieces[0]} {short(self.variables.text(pieces[1]))} ]")
            return False, pieces[2:]
        return bool(self.known([self.variables.text(pieces[0])])[0]), pieces[1:]

    def _compared(self, left: str, sign: str, right: str) -> bool:
        if sign in _NUMERIC:
            return self.variables.number(f"({left or 0}) {_NUMERIC[sign]} ({right or 0})") == "1"
        if sign == "=~":
            try:
                return bool(_SAFE_PATTERN.fullmatch(right) and re.search(right, left[:200])) or right in left
            except re.error:
                return right in left
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        return fnmatch.fnmatchcase(left, right) is (sign != "!=")


def short(text: str) -> str:
    """A command in one short line, for a message."""
    return " ".join(UNSET.sub(r"$\1", text).split())[:60]
