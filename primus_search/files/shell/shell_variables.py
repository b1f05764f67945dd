"""Variables of a shell script and what its words become with them, by bash's own rules of expansion.

    Variables(environ={"TP": "4"}).text('--tp "${TP:-1}"')

A variable without a value, or the output of a program, stands in a word as `\\0NAME\\0`, so that whoever needs it can
ask for it.
"""

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from primus_search.base.guards.values import whole_number
from primus_search.files.known_keys import key_table
from primus_search.files.shell.shell_syntax import DEEPEST, LONGEST, behind, closing, tokens

MARK = "\0"
"""Stands around the name of a variable that has no value."""
UNSET = re.compile("\0([^\0]{1,200})\0")
ASSIGNMENT = re.compile(r"(?<!\w)([A-Za-z_]\w*+)(?:\[([^\]]{0,200})\])?(\+?=)(.*)", re.DOTALL)
_MATHS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Gt: operator.gt,
    ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
MOST_TEXT = 1_000_000
"""Characters of one variable."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that list the devices of a node."""
_LIST = re.compile(r"\d+(?:,\d+)*")
SEEN = "VISIBLE_DEVICES"
"""How many devices these variables list."""


def counts_in(values: Mapping[str, str]) -> dict[str, str]:
    """The variables among some that say how many processes there are: those of a table, and torchrun's own."""
    lists = [value for key, value in values.items() if key in VISIBLE and _LIST.fullmatch(value)]
    visible = {SEEN: str(lists[0].count(",") + 1)} if lists else {}
    counts = set(chain.from_iterable(key_table("worlds")["variables"].values()))
    named = (key for key in values if key in counts or key.startswith("PET_"))
    return visible | {key: values[key] for key in named if values[key].isdecimal()}


def header_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets for a script with `#SBATCH` lines; those of the same meaning for lines of others."""
    others = [
        (one["as"], re.search(rf"^{one['header']}", text, re.MULTILINE)) for one in key_table("worlds")["headers"]
    ]
    if found := {name: value for names, met in others if met for name, value in zip(names, met.groups(), strict=True)}:
        return found
    lines = re.findall(r"^#SBATCH(\s[^\n]{0,400})", text, re.MULTILINE)
    head = {
        key: value
        for line in lines
        for key, value in re.findall(r"\s(--?[\w-]{1,40}?)(?:[ =\t]+(?!-)|(?<=\s-[NnG])(?=\d))(\S{1,80})", line)
    }
    listed = re.search(r"\[(\d{1,6})-(\d{1,6})\]$", head.get("--nodelist") or head.get("-w", ""))  # node[7-8]
    nodes = str(int(listed[2]) - int(listed[1]) + 1) if listed else ""
    gpus = head.get("--gpus-per-node") or head.get("--gres", "").removeprefix("gpu")
    given = {"NNODES": head.get("--nodes") or head.get("-N") or nodes, "NTASKS": head.get("--ntasks") or head.get("-n"),
             "NTASKS_PER_NODE": head.get("--ntasks-per-node"), "GPUS_PER_NODE": gpus.rsplit(":")[-1],
             "GPUS_PER_TASK": head.get("--gpus-per-task"),
             "GPUS": (head.get("--gpus") or head.get("-G", "")).rsplit(":")[-1]}  # fmt: skip
    found = {f"SLURM_{name}": value for name, value in given.items() if value and whole_number(value)}
    alias = {"SLURM_JOB_NUM_NODES": "SLURM_NNODES", "SLURM_GPUS_ON_NODE": "SLURM_GPUS_PER_NODE"}
    return found | {name: found[one] for name, one in alias.items() if one in found}


@dataclass(slots=True)
class Variables:
    """Values, arrays and positional arguments of a script.

    output  gives the output of the text inside `$(...)`
    depth   scripts that are followed, each inside the one before; in an inner one an argument not given is empty
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    output: Callable[[str], str] = str
    arguments: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, str]] = field(default_factory=dict)
    depth: int = 0

    def assigned(self, word: str) -> bool:
        """Whether a raw word is an assignment (`A=1`, `A+=1`, `A[i]=1`, `A=(1 2)`), which is carried out."""
        found = ASSIGNMENT.fullmatch(word)
        if found is None:
            return False
        name, index, how, rest = found.groups()
        if rest.startswith("(") and closing(rest, 0) >= len(rest) and rest.endswith(")"):
            self.arrays[name] = self._elements(rest[1:-1], self.arrays.get(name, {}) if how == "+=" else {})
        elif index is not None:
            value, key = self.text(rest), self._key(name, index)
            held = self.arrays.setdefault(name, {})
            held[key] = (held.get(key, "") if how == "+=" else "") + value
        else:
            self._assign(name, self.text(rest), is_added=how == "+=")
        return True

    def _elements(self, inside: str, held: dict[str, str]) -> dict[str, str]:
        """The elements of an array: those held and those between the brackets, `[key]=value` or by their place."""
        count = len(held)
        for raw in (token.text for token in tokens(inside) if token.kind == "word"):
            keyed = re.fullmatch(r"\[([^\]]{1,200})\]=(.*)", raw, re.DOTALL)
            words = [self.text(keyed[2])] if keyed else self.words([raw])
            for word in words:
                held = held | {self.text(keyed[1]) if keyed else str(count): word}
                count += 1
        return held

    def _assign(self, name: str, value: str, *, is_added: bool) -> None:
        if UNSET.fullmatch(value) and value.strip(MARK) != name:  # asked for by its own name, not as `$3`
            value = self.environ.get(name, f"{MARK}{name}{MARK}")
        elif name not in self.values:  # appended to itself
            value = value.replace(f"{MARK}{name}{MARK}", "")
        if name in self.arrays and is_added:
            self.arrays[name]["0"] = self.arrays[name].get("0", "") + value
        self.values[name] = self.values.get(name, "") + value if is_added else value
        if len(self.values[name]) > MOST_TEXT:
            raise ValueError(f"{name} of the script grows without end")

    def words(self, raw: "list[str] | tuple[str, ...]") -> list[str]:
        """The words that raw words become: none, one or several each."""
        return [word for one in raw for word in self.expanded(one)]

    def text(self, raw: str) -> str:
        """A raw word filled in, and never split."""
        return "".join(self.expanded(raw, splits=False))

    def filled(self, body: str) -> str:
        """A here-document with its variables filled in."""
        return self.text('"' + body.replace('"', '\\"') + '"')

    def expanded(self, text: str, depth: int = 0, splits: bool = True) -> list[str]:
        """The words of a raw word with variables filled in and quotes gone."""
        if depth > DEEPEST:
            raise ValueError("variables of the script refer to each other without end")
        words, is_open, quoted, i = list[str](), False, False, 0

        def add(pieces: list[str]) -> None:
            """Append to the word that is open; each further piece is a word of its own, or a text behind a space."""
            nonlocal is_open
            for n, piece in enumerate(pieces):
                if is_open and (n == 0 or not splits):
                    words[-1] += " " * (n > 0) + piece
                else:
                    words.append(piece)
                is_open = True

        while i < len(text):
            char, end = text[i], behind(text, i)
            if char == "\\":
                following = text[i + 1 : i + 2]
                kept = f"\\{following}" if quoted and following not in '$`"\\' else following
                add(["" if following == "\n" else kept])
            elif char == "'" and not quoted:
                add([text[i + 1 : end].removesuffix("'")])
            elif char == '"':
                quoted, end = not quoted, i + 1
                is_bare = not quoted or text[i : i + 4] in ('"${}', '"$@"') or re.match(r'"\$\{[\w!#]+\[@\]', text[i:])
                add([] if is_bare else [""])
            elif char in "$`":
                end, pieces, is_list = self._reference(text, i, end, depth)
                value = "".join(pieces[:1])
                if is_list or quoted or not splits:
                    add(pieces if quoted or not is_list else [part for piece in pieces for part in piece.split()])
                else:
                    is_open = is_open and not value[:1].isspace()
                    add(value.split())
                    is_open = is_open and not value[-1:].isspace()
            elif char.isspace() and not quoted and splits:
                is_open = False
            else:
                add([char])
                end = i + 1
            i = end
        return words

    def _reference(self, text: str, i: int, end: int, depth: int) -> tuple[int, list[str], bool]:
        """Where a `$...` ends, its values, and whether they are elements of a list."""
        if text[i] == "`":
            return end, [self.output(text[i + 1 : end - 1])], False
        if text.startswith("$((", i):
            return end, [self.number(text[i + 3 : end - 2])], False
        if text.startswith("$[", i) and (close := text.find("]", i)) > 0:  # bash's older arithmetic
            return close + 1, [self.number(text[i + 2 : close])], False
        if text.startswith("$(", i):
            return end, [self.output(text[i + 2 : end - 1])], False
        if text.startswith("${", i):
            return end, *self._braced(text[i + 2 : end - 1], depth)
        if text.startswith("$'", i):
            return end, [text[i + 2 : end - 1].replace("\\n", "\n")], True
        named = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]").match(text, i + 1)
        if named is None:
            return i + 1, ["$"], False
        if named[0] in "@*":
            return named.end(), list(self.arguments), True
        return named.end(), [self.value(named[0])], False

    def _key(self, name: str, index: str) -> str:
        """The key of an array's element: a number calculated, of an array with words for keys the word."""
        text = self.text(index)
        is_number = re.fullmatch(r"[\w\s$+*/()-]{1,80}", text) and not any(
            not key.isdecimal() for key in self.arrays.get(name, {})
        )
        return (self.number(text) if is_number else "") or text

    def _braced(self, inside: str, depth: int) -> tuple[list[str], bool]:
        """The values of `${...}`, and whether they are elements of a list."""
        found = re.match(r"([#!]?)([A-Za-z_]\w*+|\d++|[@*#?])(?:\[([^\]]{0,200})\])?", inside)
        if found is None:
            return [""], False
        sign, name, index = found.groups()
        rest = inside[found.end() :]
        if name in "@*" or index in ("@", "*"):
            held = self.arrays.get(name, {}) if index else dict(enumerate(self.arguments))
            parts = [str(key) for key in held] if sign == "!" else [str(one) for one in held.values()]
            if sign == "#":
                return [str(len(parts))], False
            if cut := re.fullmatch(r":\s*(\d{1,6})(?::(\d{1,6}))?", rest):
                begin = int(cut[1]) - (index is None)
                parts = parts[max(begin, 0) : int(cut[2]) + begin if cut[2] else None]
            return ([self.values.get("IFS", " ")[:1].join(parts)], False) if index == "*" else (parts, True)
        if index is not None:
            value = self.arrays.get(name, {}).get(self._key(name, index), "")
        elif self.arrays.get(name):
            value = next(iter(self.arrays[name].values()))
        else:
            value = self.value(name)
        if sign == "!":
            value = self.value(value)
        if sign == "#":
            return [value if UNSET.search(value) else str(len(value))], False
        return [self._altered(name, value, rest, depth)], False

    def _altered(self, name: str, value: str, rest: str, depth: int) -> str:
        """A value by what stands behind its name: a default, a part of it, a replacement."""
        if found := re.match(r"(:?)([-=+?])", rest):
            is_set = not UNSET.fullmatch(value) and not (found[1] and not value)
            word = rest[found.end() :]
            if found[2] == "+":
                return "".join(self.expanded(word, depth + 1, False)) if is_set else ""
            if is_set or found[2] == "?":
                return value
            default = "".join(self.expanded(word, depth + 1, False))
            if found[2] == "=":
                self.values[name] = default
            return default
        if UNSET.search(value) or not rest:
            return value
        if cut := re.match(r":(?![-=+?])([^:]{1,80})(?::(.{1,80}))?$", rest):
            begin, count = self.number(cut[1]), self.number(cut[2]) if cut[2] else ""
            part = value[_signed(begin) or 0 :]
            return part[: _signed(count)]
        if trimmed := re.match(r"##?|%%?", rest):
            return _trimmed(value, self.text(rest[trimmed.end() :]), trimmed[0])
        if rest[0] == "/":
            old, _, new = rest.lstrip("/").partition("/")
            return value.replace(self.text(old), self.text(new), -1 if rest.startswith("//") else 1)
        changes = {"^^": str.upper, ",,": str.lower, "^": str.capitalize}
        return changes[rest](value) if rest in changes else value

    def value(self, name: str) -> str:
        """The value of a variable, an argument or a special parameter; without one its marked name."""
        if 0 < (whole_number(name) or 0) <= len(self.arguments):
            return self.arguments[int(name) - 1]
        if name.isdecimal() and self.depth > 1:
            return ""
        known = {"#": str(len(self.arguments)), "0": "script", "?": "0", "$": "1", "PWD": ".", "RANDOM": "1", "-": ""}
        return self.values.get(name, self.environ.get(name, known.get(name, f"{MARK}{name}{MARK}")))

    def number(self, text: str) -> str:
        """A whole number from an arithmetic text, `x = ...` and `x++` included; what has no value stays by its name."""
        text = text.strip()
        if assigned := re.fullmatch(r"(?<!\w)([A-Za-z_]\w*+)\s*+(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))", text, re.DOTALL):
            name, step, how, rest = assigned.groups()
            change = f"{name} {step[0]} 1" if step else f"{name} {how} ({rest})" if how else rest
            self.values[name] = self.number(change)
            return self.values[name]
        dollar = re.sub(r"(?<![\w$\{\[#!])([A-Za-z_]\w*)(?![\w\[])", r"$\1", text)
        filled = "".join(self.expanded(dollar, splits=False))
        if unset := UNSET.search(filled):
            return unset[0]
        if len(filled) > LONGEST:
            return ""
        test, question, rest = filled.partition("?")
        if question:
            first, _, second = rest.partition(":")
            return self.number(first if self.number(test) not in ("", "0") else second)
        python = re.sub(r"!(?!=)", " not ", filled.replace("&&", " and ").replace("||", " or "))
        python = re.sub(r"\b0+(?=\d)|(?<=\d)\s+(?=\d)", "", python)
        try:
            return str(int(_calculated(ast.parse(python.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return ""


def _signed(text: str) -> int | None:
    """A whole number with its sign; None where it is none."""
    number = whole_number(text.removeprefix("-"))
    return -number if number and text.startswith("-") else number


def _calculated(node: ast.expr) -> int:
    """The whole number that an expression gives, division as in C. Raises ValueError for what is no arithmetic."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=op):
            value = _calculated(node.operand)
            return int(not value) if isinstance(op, ast.Not) else -value if isinstance(op, ast.USub) else value
        case ast.BoolOp():
            values = [_calculated(one) != 0 for one in node.values]
            return int(all(values) if isinstance(node.op, ast.And) else any(values))
        case ast.BinOp(left=first, op=sign, right=second) | ast.Compare(left=first, ops=[sign], comparators=[second]):
            left, right = _calculated(first), _calculated(second)
            if isinstance(sign, ast.Pow) and abs(left) <= 1024 and 0 <= right <= 64:
                return int(left**right)
            if isinstance(sign, ast.Div):
                return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            if type(sign) in _MATHS:
                return int(_MATHS[type(sign)](left, right))
    raise ValueError("no arithmetic of whole numbers")


def _trimmed(value: str, pattern: str, sign: str) -> str:
    """A value without the shortest or longest beginning (`#`, `##`) or end (`%`, `%%`) that fits a pattern."""
    cuts = [
        i for i in range(len(value) + 1) if fnmatch.fnmatchcase(value[:i] if sign[0] == "#" else value[i:], pattern)
    ]
    if not cuts:
        return value
    shortest = sign in ("#", "%%")
    at = min(cuts) if shortest else max(cuts)
    return value[at:] if sign[0] == "#" else value[:at]
