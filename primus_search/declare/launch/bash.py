"""What a shell script hands to its programs: assignments, arrays, defaults, branches as bash has them, nothing run.

    words = Script(text, environ={"TP": "4"}).words()

Commands are not executed and files are not looked up: a test of either is false, and its output is empty. A variable
without a value stands in a word as `\\0NAME\\0`, so that whoever needs it can ask for it by its name.

`settings_in` gives Megatron's arguments among them.
"""

import ast
import fnmatch
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "\0"
"""Stands around the name of a variable that has no value."""
UNSET = re.compile("\0([^\0]{1,200})\0")
_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare(?: -\w)?)[ \t]+)?([A-Za-z_]\w{0,200})(\+?=)", re.DOTALL)
_KEYWORD = re.compile(r"(if|elif|else|then|fi|for|while|until|do|done|case|esac|function|\{|\})(?=\s|;|$)")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Gt: operator.gt, ast.Lt: operator.lt,
    ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_NUMERIC = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
FILE_TESTS = ("-f", "-d", "-e", "-r", "-s", "-x", "-L")
MOST_WORDS, DEEPEST = 100_000, 40
SHOWS = ("echo", "printf")
"""Commands that show their words and start nothing."""
_DOCUMENT = re.compile(
    r"^(?P<before>[^\n<]{0,400})<<-?[ \t]{0,8}(?P<quote>['\"]?)(?P<end>\w{1,80})(?P=quote)(?P<after>[^\n]{0,400})\n"
    r"(?P<body>.*?)^[ \t]{0,80}(?P=end)[ \t]{0,8}$",
    re.MULTILINE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{(\w{1,200})\}|([A-Za-z_]\w{0,200}))")
_PATTERN = re.compile(r"\(?([^\s()$`=][^()$`=]{0,200})\)(?=\s|$)")
"""A pattern of `case`, up to its bracket."""


@dataclass(slots=True)
class _Branch:
    """An open `if` or `case`: whether this branch runs, whether one has run, and what a case compares."""

    runs: bool
    has_run: bool
    subject: str | None = None


@dataclass(slots=True)
class Script:
    """A script that is read statement by statement; `undecided`: names that tests of its branches need."""

    text: str
    environ: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    documents: list[tuple[str, str]] = field(default_factory=list)

    def words(self) -> list[str]:
        """The words of every command that is reached; a word of several (`"--fp8-format hybrid"`) is split."""
        found: list[str] = []
        branches: list[_Branch] = []
        for statement in statements(_DOCUMENT.sub(self._keep, self.text)):
            rest = self._chosen(branches, statement)
            while keyword := _KEYWORD.match(rest):
                rest = self._chosen(branches, self._branched(branches, keyword[1], rest[keyword.end() :].strip()))
            if rest and all(one.runs for one in branches):
                found += self._run(rest)
            if len(found) > MOST_WORDS:
                raise ValueError("a script of so many words is not read")
        return [part for word in found for part in (word.split() if word.startswith("--") else [word])]

    def written(self, name: str) -> str:
        """The text that the script writes into a file (`cat > FILE <<EOF`), variables filled in; empty where none."""
        bodies = [body for target, body in self.documents if "".join(self.expanded(target, splits=False)) == name]
        return _VARIABLE.sub(lambda found: self._value(found[1] or found[2]), bodies[-1]) if bodies else ""

    def _keep(self, found: re.Match[str]) -> str:
        """Keep a document of the script with the file that it goes into."""
        target = re.search(r">[ \t]*([^\s<>|&;]{1,400})", found["before"] + found["after"])
        self.documents.append((target[1] if target else "", found["body"]))
        return ""

    def _branched(self, branches: "list[_Branch]", word: str, rest: str) -> str:
        """Open, turn or close a branch at a keyword; what is left of the statement."""
        if word == "if":
            holds = all(one.runs for one in branches) and self._holds(rest)
            branches.append(_Branch(holds, holds))
            return ""
        if word == "case":
            subject, _, rest = rest.partition(" in")
            branches.append(_Branch(False, False, " ".join(self._known(self.expanded(subject)))))
            return rest.strip()
        if word == "elif" and branches:
            holds = all(one.runs for one in branches[:-1]) and not branches[-1].has_run and self._holds(rest)
            branches[-1] = _Branch(holds, branches[-1].has_run or holds)
            return ""
        if word == "else" and branches:
            branches[-1] = _Branch(not branches[-1].has_run, True)
        elif word in ("fi", "esac") and branches:
            branches.pop()
        return "" if word in ("for", "while", "until", "function") else rest

    def _chosen(self, branches: "list[_Branch]", statement: str) -> str:
        """A statement without the pattern of a `case` before it, whose branch runs where the pattern is the first to
        fit."""
        subject = branches[-1].subject if branches else None
        found = _PATTERN.match(statement) if subject is not None else None
        if subject is None or found is None:
            return statement
        fits = any(fnmatch.fnmatchcase(subject, one.strip().strip("'\"")) for one in found[1].split("|"))
        runs = fits and not branches[-1].has_run
        branches[-1] = _Branch(runs, branches[-1].has_run or fits, subject)
        return statement[found.end() :].strip()

    def _known(self, words: list[str]) -> list[str]:
        """Words without what is unset, whose names are noted as undecided."""
        self.undecided += [name for word in words for name in UNSET.findall(word) if name not in self.undecided]
        return [UNSET.sub("", word) for word in words]

    def _run(self, statement: str) -> list[str]:
        """Assign, or the words of a command."""
        while assigned := _ASSIGNMENT.match(statement):
            name, how, rest = assigned[1], assigned[2], statement[assigned.end() :]
            if rest.startswith("("):
                body = rest[1 : rest.rindex(")")] if ")" in rest else rest[1:]
                self.arrays[name] = [*(self.arrays.get(name, []) if how == "+=" else []), *self.expanded(body)]
                return []
            end = _end_of_word(rest)
            value = "".join(self.expanded(rest[:end], splits=False))
            if UNSET.fullmatch(value):  # asked for by its own name, not as `$3`
                value = self.environ.get(name, f"{MARK}{name}{MARK}")
            self.values[name] = self.values.get(name, "") + value if how == "+=" else value
            statement = rest[end:].strip()
        words = self.expanded(statement) if statement else []
        if words[:1] == ["eval"]:
            return self.expanded(" ".join(words[1:]))
        return [] if words and words[0] in SHOWS else words

    def _holds(self, test: str) -> bool:
        """Whether a condition holds, with what is unset as empty."""
        any_of = re.split(r"\s\|\|\s", test)
        return any(all(self._one_holds(one) for one in re.split(r"\s&&\s", part)) for part in any_of)

    def _one_holds(self, test: str) -> bool:
        test = test.strip().removesuffix(";").strip()
        if test.startswith("((") and test.endswith("))"):
            return self._number(test[2:-2]) not in ("", "0")
        negated = test.startswith("!")
        test = test.removeprefix("!").strip()
        width = 2 if test.startswith("[[") else 1
        if not test.startswith("[") or not test.endswith("]" * width):
            return False
        words = self.expanded(test[width:-width], 0, True)
        if any(word in FILE_TESTS for word in words):
            return negated ^ (words[:1] == ["!"])
        asks_whether_set = any(word in ("-z", "-n") for word in words)
        words = [UNSET.sub("", word) for word in words] if asks_whether_set else self._known(words)
        return self._compares([word for word in words if word != "!"]) ^ negated ^ (words[:1] == ["!"])

    def _compares(self, words: list[str]) -> bool:
        if words and words[0] in ("-z", "-n"):
            return bool("".join(words[1:])) is (words[0] == "-n")
        sign = next((word for word in words if word in ("=", "==", "!=", "=~", *_NUMERIC)), "")
        if not sign:
            return len(words) == 1 and bool(words[0])
        at = words.index(sign)
        left, right = " ".join(words[:at]), " ".join(words[at + 1 :])
        if sign in _NUMERIC:
            return self._number(f"{left or 0} {_NUMERIC[sign]} {right or 0}") == "1"
        if sign == "=~":
            return right in left
        return fnmatch.fnmatchcase(left, right) is (sign != "!=")

    def expanded(self, text: str, depth: int = 0, splits: bool = True) -> list[str]:
        """The words of a text with variables filled in and quotes gone."""
        if depth > DEEPEST:
            raise ValueError("variables of the script refer to each other without end")
        words: list[str] = []
        open_word: list[str] | None = None

        def put(part: str) -> None:
            nonlocal open_word
            open_word = [part] if open_word is None else [*open_word, part]

        def close() -> None:
            nonlocal open_word
            if open_word is not None:
                words.append("".join(open_word))
            open_word = None

        quoted, i = False, 0
        while i < len(text):
            char = text[i]
            if char == "\\" and i + 1 < len(text):
                put("" if text[i + 1] == "\n" else text[i + 1])
                i += 2
            elif char == "'" and not quoted:
                end = text.find("'", i + 1)
                end = len(text) if end < 0 else end
                put(text[i + 1 : end])
                i = end + 1
            elif char == '"':
                quoted = not quoted
                put("")
                i += 1
            elif char == "$" and i + 1 < len(text):
                i, parts, is_list = self._reference(text, i, depth)
                pieces = parts if is_list or quoted or not splits else [p for part in parts for p in part.split()]
                for n, piece in enumerate(pieces):
                    if n and splits:
                        close()
                    put((" " if n and not splits else "") + piece)
            elif char == "`":
                end = text.find("`", i + 1)
                i = (len(text) if end < 0 else end) + 1
            elif char.isspace() and not quoted and splits:
                close()
                i += 1
            elif char == "#" and not quoted and splits and open_word is None:
                end = text.find("\n", i)
                i = len(text) if end < 0 else end
            else:
                put(char)
                i += 1
        close()
        return words

    def _reference(self, text: str, i: int, depth: int) -> tuple[int, list[str], bool]:
        """Where a `$...` ends, its values, and whether they are elements of an array."""
        if text.startswith("$((", i):
            end = _closing(text, i + 1)
            return end, [self._number(text[i + 3 : end - 2])], False
        if text.startswith("$(", i):
            return _closing(text, i + 1), [""], False
        if text.startswith("${", i):
            end = _closing(text, i + 1)
            return end, *self._braced(text[i + 2 : end - 1], depth)
        named = re.compile(r"\w+|[@*#?$!-]").match(text, i + 1)
        if named is None:
            return i + 1, ["$"], False
        if named[0] in "@*":
            return named.end(), [], True
        name = named[0][:1] if named[0][:1].isdigit() else named[0]
        return i + 1 + len(name), [self._value(name)], False

    def _braced(self, inside: str, depth: int) -> tuple[list[str], bool]:
        if inside.endswith(("[@]", "[*]")):
            return list(self.arrays.get(inside[:-3], [])), True
        parts = re.fullmatch(r"([A-Za-z_]\w*|\d+)(?:(:?)([-=+?])(.*))?", inside, re.DOTALL)
        if parts is None:
            plain = re.match(r"[A-Za-z_]\w*", inside)
            return [self._value(plain[0]) if plain else ""], False
        name, empty, sign, word = parts.groups()
        if name in self.arrays and not sign:
            return self.arrays[name][:1], False
        value = self._value(name)
        is_set = not UNSET.fullmatch(value) and not (empty and not value)
        if sign == "+":
            return self.expanded(word, depth + 1, False) if is_set else [""], False
        if sign in ("-", "=") and not is_set:
            default = "".join(self.expanded(word, depth + 1, False))
            if sign == "=":
                self.values[name] = default
            return [default], False
        return [value], False

    def _value(self, name: str) -> str:
        return self.values.get(name, self.environ.get(name, f"{MARK}{name}{MARK}"))

    def _number(self, text: str) -> str:
        """A whole number from an arithmetic text; empty where it is none."""
        filled = " ".join(self.expanded(re.sub(r"(?<![\w$\{])([A-Za-z_]\w*)", r"$\1", text), 0, True))
        test, question, rest = filled.partition("?")
        if question:
            first, _, second = rest.partition(":")
            return self._number(first if self._number(test) not in ("", "0") else second)
        try:
            return str(int(_calculated(ast.parse(filled.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return ""


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_calculated(node.left), _calculated(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return int(_OPERATORS[type(node.ops[0])](_calculated(node.left), _calculated(node.comparators[0])))
    raise ValueError("no arithmetic of whole numbers")


def _closing(text: str, i: int) -> int:
    """Behind the bracket that closes the one at `i`."""
    opens, closes, depth = text[i], {"(": ")", "{": "}"}[text[i]], 0
    for at in range(i, len(text)):
        depth += (text[at] == opens) - (text[at] == closes)
        if depth == 0:
            return at + 1
    return len(text)


def _end_of_word(text: str) -> int:
    """Where the first word of a text ends."""
    return next(_ends(text, lambda char: char.isspace()), len(text))


def statements(text: str) -> Iterator[str]:
    """The statements of a script: up to a line's end or a semicolon outside of quotes, brackets and arrays."""
    text = text.replace("\\\n", " ")
    begin = 0
    for end in [*_ends(text, lambda char: char in "\n;"), len(text)]:
        statement = text[begin:end].strip()
        begin = end + 1
        if statement and not statement.startswith("#"):
            yield statement


def _ends(text: str, is_end: Callable[[str], bool]) -> Iterator[int]:
    """Positions of characters that end something, outside of quotes, brackets, references and comments."""
    quote, depth, i = "", 0, 0
    while i < len(text):
        char = text[i]
        if quote:
            if char == "\\" and quote == '"':
                i += 1
            elif char == quote:
                quote = ""
        elif char == "\\":
            i += 1
        elif char in "'\"`":
            quote = char
        elif char == "#" and (i == 0 or text[i - 1].isspace()):
            end = text.find("\n", i)
            i = len(text) if end < 0 else end
            continue
        elif char in "({":
            depth += char == "(" or text[i - 1 : i] == "$"
        elif char in ")}":
            depth = max(depth - 1, 0) if char == ")" or depth else depth
        elif depth == 0 and is_end(char):
            yield i
        i += 1


FLAGS = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""

LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes", "rampup_batch_size",
)  # fmt: skip
"""Arguments of several words."""


def settings_in(text: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables have the value that the script gives them, else that of the environment, else the script's default; the
    name of one without any stays in the value (`bash.UNSET`).
    """
    script = Script(text, environ=os.environ if environ is None else environ)
    found = _arguments(script.words())
    if not ARGUMENTS & found.keys():  # a file of arrays that another one starts
        listed = [word for words in script.arrays.values() for word in words]
        held = [word for value in script.values.values() if "--" in value for word in value.split()]
        found = _arguments(listed + held) | found
    if script.undecided:
        found[UNDECIDED] = script.undecided
    if text := script.written(str(found.get(CONFIG, ""))):
        found[WRITTEN] = text
    return found


CONFIG, WRITTEN = "deepspeed_config", "deepspeed_config_text"
"""The file of DeepSpeed's settings that a script names, and its text where the script writes it."""


UNDECIDED = "undecided"
"""Names without a value that branches of a script depend on."""
ARGUMENTS = {"micro_batch_size", "tensor_model_parallel_size", "num_layers", "hidden_size"}


_OPTIONS = re.compile(f"{MARK}\\w*(?:option|opt|arg|flag)s?{MARK}", re.IGNORECASE)
"""A variable without a value that is called after a list of options, which bash leaves out."""


def _arguments(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name and not _OPTIONS.fullmatch(word):
            found[name].append(word)
    return {name: True if not values else values if name in LISTS else values[0] for name, values in found.items()}


def devices_in(text: str, found: dict[str, Any]) -> int:
    """GPUs a script starts: `--nnodes` times `--nproc-per-node`; 0 where it does not say."""
    try:
        return int(str(found.get("nnodes", 1))) * int(str(found.get("nproc_per_node", 0)))
    except ValueError:
        return 0
