"""What a shell script hands to its programs, by bash's own rules; nothing is run.

    script = Script(text, environ={"TP": "4"}, folder=Path("examples"))
    script.words()

Assignments, arrays, expansions, branches, loops, functions, `eval`, `source` of files beside the script, here-documents
and the text of `bash -c` are followed. Programs are not executed: their words are kept in `commands`. A variable
without a value, or the output of a program, stands in a word as `\\0NAME\\0`, so that whoever needs it can ask for it.
A test that cannot be answered (of a file, a program, a variable without a value) is a guess; `guesses` has each, and
`choices` turns one. `tests/declare/test_bash.py` compares with bash itself.
"""

import ast
import fnmatch
import operator
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text

MARK = "\0"
"""Stands around the name of a variable that has no value."""
UNSET = re.compile("\0([^\0]{1,200})\0")
OUTPUT = "$("
"""How the name of a program's output begins."""
_ASSIGNMENT = re.compile(r"(?<!\w)([A-Za-z_]\w*+)(?:\[([^\]]{0,200})\])?(\+?=)(.*)", re.DOTALL)
_PREFIX = re.compile(r"(?<!\w)[A-Za-z_]\w*+(?:\[[^\]]{0,200}\])?\+?=$")
_REDIRECTION = re.compile(r"(?:\d{1,4}|&)?(?:<<<|<<-?|<&|<>|>>|>&|>\||<(?!\()|>(?!\())")
_MATHS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Gt: operator.gt,
    ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_NUMERIC = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_JOINTS = (("||", "-o"), ("&&", "-a"))
"""Signs between tests, those that bind least first."""
_FILE_TESTS = tuple(f"-{letter}" for letter in "abcdefghkprstuwxLNOGS")
_SAFE_PATTERN = re.compile(r"[\w\s^$\[\]\-+*.:,=/@%]{0,80}")
"""A regular expression of a script that is matched: no groups, so that it cannot run long."""
MOST_WORDS, MOST_STEPS, DEEPEST, MOST_TRIES, LONGEST, MOST_TEXT = 100_000, 50_000, 40, 40, 500, 1_000_000
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
_DECLARES = ("export", "local", "declare", "readonly", "typeset")
_RUNS_FILES = (*_SHELLS, "sbatch", "source", ".")
_PASSES_ON = ("exec", "time", "nohup", "command", "builtin", "sudo", "then", "do")
_SILENT = ("mkdir", "cd", "trap", "ulimit", "wait", "sleep", "pushd", "popd", "rm", "cp", "mv", "tee", "true",
           "set", ":")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, an operator, a redirection (with its here-document), `((...))` or `[[...]]`; `at`: where it begins."""

    kind: str
    text: str
    at: int
    document: str | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    """A command: its kind, its raw words, the blocks inside it, its redirections."""

    kind: str
    at: int
    words: tuple[str, ...] = ()
    blocks: "tuple[_Block, ...]" = ()
    redirections: tuple[_Token, ...] = ()


_Block = tuple[_Node, ...]


class _Leave(Exception):
    """`exit`, `return`, `break` or `continue`."""


# --- words and commands of a text -------------------------------------------------------------------------------------


def _after(text: str, i: int, depth: int = 0) -> int:
    """Behind the quoted, escaped or bracketed piece that begins at `i`, else behind its character."""
    if depth > DEEPEST:
        raise ValueError("brackets and quotes of the script are nested too deeply")
    char = text[i]
    if char == "\\":
        return i + 2
    if char == "'" or text.startswith("$'", i):
        begin = i + 1 + (char == "$")
        end = text.find("'", begin)
        return len(text) if end < 0 else end + 1
    if char in '"`':
        at = i + 1
        while at < len(text) and text[at] != char:
            at = _after(text, at, depth + 1) if text[at] in ("\\$`" if char == '"' else "\\") else at + 1
        return at + 1
    if char in "$<>" and text[i + 1 : i + 2] in ("(", "{"):
        return _closing(text, i + 1, depth)
    return i + 1


def _closing(text: str, i: int, depth: int = 0) -> int:
    """Behind the bracket that closes the one at `i`."""
    opens, closes = text[i], {"(": ")", "{": "}"}[text[i]]
    at, open_ones = i + 1, 1
    while at < len(text) and open_ones:
        if text[at] in "\\'\"`$":
            at = _after(text, at, depth + 1)
            continue
        if text[at] == "#" and opens == "(" and text[at - 1].isspace():
            at = _line_end(text, at)
            continue
        open_ones += (text[at] == opens) - (text[at] == closes)
        at += 1
    return at


def _line_end(text: str, i: int) -> int:
    end = text.find("\n", i)
    return len(text) if end < 0 else end


def _tokens(text: str) -> list[_Token]:
    """Tokens of a script."""
    found: list[_Token] = []
    waiting: list[tuple[int, str, bool]] = []  # here-documents: which token, their end, whether tabs go
    i = 0
    while i < len(text):
        char = text[i]
        if text.startswith("\\\n", i) or char in " \t\r":
            i += 1 + (char == "\\")
        elif char == "#":
            i = _line_end(text, i)
        elif char == "\n":
            found.append(_Token("operator", "\n", i))
            i += 1
            for n, last, cuts in waiting:
                body, i = _document(text, i, last, cuts)
                found[n] = _Token("redirection", found[n].text, found[n].at, body)
            waiting = []
        elif sign := _REDIRECTION.match(text, i):
            begin = sign.end()
            while begin < len(text) and text[begin] in " \t":
                begin += 1
            end = _word_end(text, begin)
            target = text[begin:end]
            operation = sign[0].lstrip("0123456789&")
            if operation in ("<<", "<<-"):
                waiting.append((len(found), target, operation == "<<-"))
            found.append(_Token("redirection", f"{operation} {target}", i))
            i = max(end, sign.end())
        elif text.startswith("((", i) and (inside := text[i : i + _closing(text[i : i + LONGEST], 0)]).endswith("))"):
            end = i + len(inside)
            found.append(_Token("maths", text[i + 2 : end - 2], i))
            i = end
        elif char in ";&|()":
            sign_of = next(one for one in (";;&", ";;", ";&", "&&", "||", "|&", char) if text.startswith(one, i))
            found.append(_Token("operator", sign_of, i))
            i += len(sign_of)
        else:
            end = max(_word_end(text, i), i + 1)
            if text[i:end] == "[[":
                close = re.compile(r"\s\]\](?=[\s;&|)]|$)").search(text, end)
                stop = close.start() if close else len(text)
                found.append(_Token("test", text[end:stop], i))
                end = close.end() if close else len(text)
            else:
                found.append(_Token("word", text[i:end], i))
            i = end
    return found


def _document(text: str, i: int, end: str, cuts: bool) -> tuple[str, int]:
    """A here-document from `i` and where the text goes on; a quoted end keeps its text as it is written."""
    plain = end.strip("'\"\\")
    lines = []
    while i < len(text):
        stop = _line_end(text, i)
        line, i = text[i:stop].rstrip("\r"), stop + 1
        line = line.lstrip("\t") if cuts else line
        if line.strip() == plain:
            break
        lines.append(line)
    body = "\n".join(lines) + "\n"
    return body if plain == end else body.replace("\\", "\\\\").replace("$", "\\$").replace("`", "\\`"), i


def _word_end(text: str, i: int) -> int:
    """Where the word that begins at `i` ends."""
    begin = i
    while i < len(text) and text[i] not in " \t\r\n;&|()<>":
        i = _after(text, i)
        if text[i : i + 1] == "(" and _PREFIX.match(text[begin:i]):  # an array
            return _closing(text, i)
    return min(i, len(text))


class _Parser:
    """Commands of a list of tokens."""

    def __init__(self, text: str) -> None:
        self._tokens, self._i, self._depth = _tokens(text), 0, 0

    def _is(self, *texts: str, kind: str = "word") -> bool:
        token = self._tokens[self._i] if self._i < len(self._tokens) else None
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def _skip(self, *texts: str) -> None:
        while self._is(*texts, kind="operator"):
            self._i += 1

    def block(self, *ends: str) -> _Block:
        """Commands up to one of the words or operators that end a block, which is not passed."""
        found: list[_Node] = []
        while self._i < len(self._tokens):
            self._skip("\n", ";", "&")
            if ends and (self._is(*ends) or self._is(*ends, kind="operator")):
                break
            before = self._i
            found += [self._chain()] if self._i < len(self._tokens) else []
            self._i += self._i == before
        return tuple(found)

    def _to(self, *ends: str) -> _Block:
        """A block, its end passed."""
        found = self.block(*ends)
        self._i += 1
        return found

    def _chain(self) -> _Node:
        """Commands between `&&` and `||`."""
        first = self._pipe()
        blocks, signs = [(first,)], [""]
        while self._is("&&", "||", kind="operator"):
            signs.append(self._tokens[self._i].text)
            self._i += 1
            self._skip("\n")
            blocks.append((self._pipe(),))
        return first if len(blocks) == 1 else _Node("chain", first.at, tuple(signs), tuple(blocks))

    def _pipe(self) -> _Node:
        is_negated = self._is("!")
        self._i += is_negated
        commands = [self._command()]
        while self._is("|", "|&", kind="operator"):
            self._i += 1
            self._skip("\n")
            commands.append(self._command())
        if len(commands) == 1 and not is_negated:
            return commands[0]
        return _Node("pipe", commands[0].at, ("!",) if is_negated else (), (tuple(commands),))

    def _command(self) -> _Node:
        if self._i >= len(self._tokens):
            return _Node("simple", 0)
        self._depth += 1
        if self._depth > 2 * DEEPEST:
            raise ValueError("commands of the script are nested too deeply")
        token = self._tokens[self._i]
        self._i += 1
        node = self._compound(token)
        while node is not None and self._is(kind="redirection"):
            self._i += 1
        self._depth -= 1
        return node or self._simple(token.at)

    def _simple(self, at: int) -> _Node:
        self._i -= 1
        tokens = []
        while self._is(kind="word") or self._is(kind="redirection"):
            tokens.append(self._tokens[self._i])
            self._i += 1
        words = tuple(token.text for token in tokens if token.kind == "word")
        return _Node("simple", at, words, (), tuple(token for token in tokens if token.kind == "redirection"))

    def _compound(self, token: _Token) -> _Node | None:
        """The command that a token begins where it is no simple one."""
        kind, at = token.kind, token.at
        if kind in ("maths", "test"):
            return _Node(kind, at, (token.text,))
        if kind == "operator":
            return _Node("subshell", at, (), (self._to(")"),)) if token.text == "(" else None
        if token.text == "{":
            return _Node("group", at, (), (self._to("}"),))
        if token.text == "if":
            return self._if(at)
        if token.text in ("while", "until"):
            return _Node("while", at, (token.text,), (self._to("do"), self._to("done")))
        if token.text in ("for", "select"):
            head = self._head("do")
            return _Node("for", at, head, (self._to("done"),))
        if token.text == "case":
            return self._case(at)
        is_named = token.text == "function"
        if not is_named and not (self._is("(", kind="operator") and re.fullmatch(r"[\w.:-]+", token.text)):
            return None
        name = self._tokens[self._i].text if is_named and self._is() else token.text
        self._i += is_named
        self._skip("(", ")", "\n")
        return _Node("function", at, (name,), ((self._command(),),))

    def _head(self, end: str) -> tuple[str, ...]:
        """Words up to one that ends them; of `for ((...))` the text with its semicolons."""
        words = []
        while self._i < len(self._tokens) and not self._is(end) and not self._is(end, kind="operator"):
            words += [self._tokens[self._i].text] if self._is() or self._is(kind="maths") else []
            self._i += 1
        self._i += 1
        return tuple(words)

    def _if(self, at: int) -> _Node:
        blocks = [self._to("then"), self.block("elif", "else", "fi")]
        while self._is("elif"):
            self._i += 1
            blocks += [self._to("then"), self.block("elif", "else", "fi")]
        if self._is("else"):
            self._i += 1
            blocks.append(self.block("fi"))
        self._i += 1
        return _Node("if", at, (), tuple(blocks))

    def _case(self, at: int) -> _Node:
        words, blocks = [*self._head("in")][:1], []
        while self._i < len(self._tokens):
            self._skip("\n", "(", ";")
            if self._is("esac"):
                break
            words.append("\n".join(self._head(")")))
            blocks.append(self.block(";;", ";&", ";;&", "esac"))
            self._i += not self._is("esac")
        self._i += 1
        return _Node("case", at, tuple(words), tuple(blocks))


# --- what the commands do ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guess:
    """A test that cannot be answered: what it depends on, the answer taken, the others there are."""

    names: tuple[str, ...]
    answer: int
    others: tuple[int, ...]


@dataclass(slots=True)
class Script:
    """A script that is followed command by command.

    commands   words of each program that is started
    guesses    tests that cannot be answered, by where they stand; `choices` has answers to take instead
    missing    files that the script reads and that are not beside it
    left       the line of the `exit` that ends it; 0 where none does
    """

    text: str
    environ: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    choices: dict[int, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    guesses: dict[int, Guess] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left: int = 0
    _functions: dict[str, _Block] = field(default_factory=dict)
    _arguments: list[str] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)
    _doubts: list[str] = field(default_factory=list)
    _said: list[str] = field(default_factory=list)
    _steps: int = 0
    _depth: int = 0

    def followed(self) -> "Script":
        """The script followed to its end. An `exit` behind a guess says that the guess is wrong: it is turned."""
        given = sorted((name for name in self.environ if name.isdecimal() and self.environ[name]), key=int)
        environ = slurm(self.text) | dict(self.environ)
        choices, turned = dict(self.choices), set(self.choices)
        while True:
            one = Script(self.text, environ, self.folder, choices, _arguments=[environ[name] for name in given])
            try:
                one._follow(self.text)
            except RecursionError:
                raise ValueError("commands of the script refer to each other without end") from None
            except _Leave as leave:
                one.left = leave.args[1]
                wrong = next((at for at in reversed(one._open) if at not in turned and one.guesses[at].others), None)
                if leave.args[0] == "exit" and wrong is not None and len(turned) < MOST_TRIES:
                    turned.add(wrong)
                    choices[wrong] = one.guesses[wrong].others[0]
                    continue
            return one

    def words(self) -> list[str]:
        """The words of every program that is started."""
        return [word for command in self.followed().commands for word in command]

    def _follow(self, text: str) -> bool:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError("commands of the script refer to each other without end")
        status = self._run(_Parser(text).block())
        self._depth -= 1
        return status

    def _run(self, nodes: _Block, *, asks: bool = False) -> bool:
        """Run commands; the status of the last. asks: a program's status is a guess."""
        status = True
        for node in nodes:
            self._steps += 1
            if self._steps > MOST_STEPS or sum(map(len, self.commands[-1:])) > MOST_WORDS:
                raise ValueError("a script of so many steps is not read")
            status = self._one(node, asks)
        return status

    def _one(self, node: _Node, asks: bool) -> bool:
        opened = len(self._open)
        if node.kind == "simple":
            return self._simple(node, asks)
        if node.kind == "test":
            return self._test(_pieces(node.words[0]), node.at)
        if node.kind == "maths":
            return self._counted(node.words[0], node.at)
        if node.kind == "function":
            self._functions[node.words[0]] = node.blocks[0]
        elif node.kind in ("group", "subshell"):
            values, arrays = dict(self.values), dict(self.arrays)
            status = self._run(node.blocks[0], asks=asks)
            self.values, self.arrays = (values, arrays) if node.kind == "subshell" else (self.values, self.arrays)
            return status
        elif node.kind == "pipe":
            status = [self._run((one,), asks=asks) for one in node.blocks[0]][-1]
            return status is not ("!" in node.words)
        elif node.kind == "chain":
            status = True
            for sign, block in zip(node.words, node.blocks, strict=True):
                if not sign or status is (sign == "&&"):
                    status = self._run(block, asks=asks)
            del self._open[opened:]
            return status
        elif node.kind == "if":
            self._branch(node)
            del self._open[opened:]
        elif node.kind == "case":
            self._case(node)
            del self._open[opened:]
        else:
            self._loop(node)
        return True

    def _branch(self, node: _Node) -> None:
        for i in range(0, len(node.blocks) - 1, 2):
            if self._run(node.blocks[i], asks=True):
                self._run(node.blocks[i + 1])
                return
        if len(node.blocks) % 2:
            self._run(node.blocks[-1])

    def _case(self, node: _Node) -> None:
        subject = self._known([self._text(node.words[0])])[0]
        fits = (i for i, one in enumerate(node.words[1:]) for pattern in one.split("\n")
                if fnmatch.fnmatchcase(subject, self._text(pattern)))  # fmt: skip
        chosen = next(fits, -1)
        if self._doubts:
            chosen = self._guess(node.at, chosen, tuple(i for i in range(len(node.blocks)) if i != chosen))
        if chosen >= 0:
            self._run(node.blocks[chosen])

    def _loop(self, node: _Node) -> None:
        is_for, is_counted = node.kind == "for", node.kind == "for" and ";" in node.words[0]
        first, test, step = (node.words[0].split(";") + [""] * 2)[:3] if is_counted else [""] * 3
        listed = self._words(node.words[2:]) if len(node.words) > 1 else self._arguments
        self._number(first)
        for word in listed if is_for and not is_counted else [""] * MOST_STEPS:
            self.values |= {node.words[0]: word} if is_for and not is_counted else {}
            if is_counted and not self._counted(test, node.at):
                return
            if not is_for and self._run(node.blocks[0], asks=True) is (node.words[0] == "until"):
                return
            try:
                self._run(node.blocks[-1])
            except _Leave as leave:
                if leave.args[0] == "break":
                    return
                if leave.args[0] != "continue":
                    raise
            self._number(step)

    def _guess(self, at: int, answer: int, others: tuple[int, ...]) -> int:
        """The answer to a test that cannot be answered: the one chosen, else the given one."""
        taken = self.choices.get(at, answer)
        self.guesses[at] = Guess(tuple(self._doubts), taken, tuple(one for one in (answer, *others) if one != taken))
        self._open.append(at)
        self._doubts.clear()
        return taken

    def _known(self, words: list[str]) -> list[str]:
        """Words without what has no value, whose names are noted as doubts."""
        self._doubts += [name for word in words for name in UNSET.findall(word) if name not in self._doubts]
        return [UNSET.sub("", word) for word in words]

    # --- simple commands ---

    def _simple(self, node: _Node, asks: bool) -> bool:
        raw = list(node.words)
        while raw and (found := _ASSIGNMENT.fullmatch(raw[0])):
            self._assign(found)
            raw.pop(0)
        if raw and raw[0] in _DECLARES:
            for word in raw[1:]:
                if found := _ASSIGNMENT.fullmatch(word) or _ASSIGNMENT.fullmatch(self._text(word)):
                    self._assign(found)
            return True
        if raw[:1] == ["["] or raw[:1] == ["test"]:
            return self._test(raw[1:-1] if raw[0] == "[" else raw[1:], node.at)
        words = self._words(raw)
        while words and words[0] in _PASSES_ON:
            words.pop(0)
        if not words:
            return True
        return True if self._keeps(words, node) else self._called(words, node, asks)

    def _keeps(self, words: list[str], node: _Node) -> bool:
        """Whether a command only takes its here-document: into a file, or as a script that is followed."""
        bodies = [one.document for one in node.redirections if one.document is not None]
        target = next((one.text.split(" ", 1)[1] for one in node.redirections if one.text.startswith(">")), "")
        if bodies and words == ["cat"] and not target:
            self._said.append(self._filled(bodies[-1]))
        elif bodies and words[0] in ("cat", "tee"):
            self.documents[self._text(target) if target else words[-1]] = bodies[-1]
        elif bodies and any(word in (*_SHELLS, "sbatch", "ssh") for word in words):
            self._inner(self._filled(bodies[-1]), [])
        return bool(bodies) or (words[0] == "cat" and bool(target))

    def _called(self, words: list[str], node: _Node, asks: bool) -> bool:
        name, rest = words[0], words[1:]
        if name in self._functions:
            outer, self._arguments = self._arguments, rest
            try:
                return self._run(self._functions[name])
            except _Leave as leave:
                if leave.args[0] != "return":
                    raise
                return leave.args[2] in ("", "0")
            finally:
                self._arguments = outer
        if name in ("exit", "return", "break", "continue"):
            raise _Leave(name, self.text.count("\n", 0, node.at) + 1, " ".join(rest[:1]))
        if name == "eval":
            return self._follow(" ".join(rest))
        if name == "shift":
            count = self._number(rest[0]) if rest else "1"
            self._arguments = self._arguments[int(count) if count.isdecimal() else 1 :]
        elif "--" in rest and name == "set":
            self._arguments = rest[rest.index("--") + 1 :]
        elif name == "unset":
            for one in rest:
                self.values[one] = ""
                self.arrays.pop(one, None)
        elif name == "let":
            return self._counted(",".join(rest), node.at)
        elif name == "getopts":
            return self._option(rest)
        elif name in ("read", "false"):
            return False
        elif name not in _SILENT and not self._says(words):
            return self._program(words, node, asks)
        return True

    def _program(self, words: list[str], node: _Node, asks: bool) -> bool:
        """Follow a script that is handed to a shell, else keep the words of a program."""
        for i, word in enumerate(words):
            if word.rsplit("/")[-1] in _SHELLS:
                option = next((n for n in range(i + 1, len(words)) if re.fullmatch(r"-\w{0,8}c", words[n])), 0)
                if option and option + 1 < len(words):
                    return self._inner(words[option + 1], words[option + 3 :])
            if word.startswith("--wrap="):
                return self._inner(word.removeprefix("--wrap="), [])
            if word in _RUNS_FILES and (rest := [one for one in words[i + 1 :] if not one.startswith("-")]):
                text = self.documents.get(rest[0])
                text = self._filled(text) if text is not None else self._beside(rest[0])
                if text is not None and word in ("source", "."):
                    return self._follow(text)
                if text is not None:
                    return self._inner(text, rest[1:])
                self.missing += [rest[0]] if word in ("source", ".") else []
                break
        self.commands.append(words)
        if asks:
            self._doubts.append(f"{OUTPUT}{short(' '.join(words))})")
            return bool(self._guess(node.at, 0, (1,)))
        return True

    def _inner(self, text: str, arguments: list[str]) -> bool:
        outer, self._arguments = self._arguments, arguments
        try:
            return self._follow(text)
        except _Leave:
            return True
        finally:
            self._arguments = outer

    def _beside(self, name: str) -> str | None:
        """The text of a file of the script's folder, by the last parts of its name."""
        parts = [part for part in PurePosixPath(UNSET.sub("", name)).parts if part not in ("/", ".", "..")]
        for n in range(len(parts) if self.folder else 0):
            path = Path(self.folder or ".", *parts[n:])
            if path.is_file():
                try:
                    return read_text(path, most=MAX_TABLE_BYTES)
                except InputError:
                    return None
        return None

    def _option(self, names: list[str]) -> bool:
        """`getopts`: the next option among the arguments."""
        if len(names) < 2 or not self._arguments or not re.match(r"-\w", self._arguments[0]):
            return False
        letter, rest = self._arguments[0][1], self._arguments[0][2:]
        self._arguments = [*([f"-{rest}"] if rest and f"{letter}:" not in names[0] else []), *self._arguments[1:]]
        if f"{letter}:" in names[0]:
            self.values["OPTARG"] = rest or (self._arguments.pop(0) if self._arguments else "")
        self.values |= {names[1]: letter if letter in names[0] else "?", "OPTIND": "1"}
        return True

    def _assign(self, found: re.Match[str]) -> None:
        name, index, how, rest = found.groups()
        if rest.startswith("(") and _closing(rest, 0) >= len(rest) and rest.endswith(")"):
            held = self.arrays.get(name, {}) if how == "+=" else {}
            count = len(held)
            for raw in (token.text for token in _tokens(rest[1:-1]) if token.kind == "word"):
                keyed = re.fullmatch(r"\[([^\]]{1,200})\]=(.*)", raw, re.DOTALL)
                words = [self._text(keyed[2])] if keyed else self._words([raw])
                for word in words:
                    held = held | {self._text(keyed[1]) if keyed else str(count): word}
                    count += 1
            self.arrays[name] = held
            return
        value = self._text(rest)
        if index is not None:
            key = self._key(name, index)
            held = self.arrays.setdefault(name, {})
            held[key] = (held.get(key, "") if how == "+=" else "") + value
            return
        if UNSET.fullmatch(value) and value.strip(MARK) != name:  # asked for by its own name, not as `$3`
            value = self.environ.get(name, f"{MARK}{name}{MARK}")
        elif name not in self.values:  # appended to itself
            value = value.replace(f"{MARK}{name}{MARK}", "")
        if name in self.arrays and how == "+=":
            self.arrays[name]["0"] = self.arrays[name].get("0", "") + value
        self.values[name] = self.values.get(name, "") + value if how == "+=" else value
        if len(self.values[name]) > MOST_TEXT:
            raise ValueError(f"{name} of the script grows without end")

    # --- tests ---

    def _test(self, pieces: list[str], at: int) -> bool:
        """A test: of words, numbers, or files, which are guesses."""
        self._doubts.clear()
        value, _ = self._joined(pieces)
        if self._doubts:
            return bool(self._guess(at, int(value), (int(not value),)))
        return value

    def _counted(self, text: str, at: int) -> bool:
        self._doubts.clear()
        value = [self._known([self._number(part)])[0] for part in text.split(",")][-1] not in ("", "0")
        return bool(self._guess(at, int(value), (int(not value),))) if self._doubts else value

    def _joined(self, pieces: list[str], signs: tuple[tuple[str, ...], ...] = _JOINTS) -> tuple[bool, list[str]]:
        """Tests between the first signs, inside them those between the others; and the pieces behind."""
        if not signs:
            return self._single(pieces)
        value, rest = self._joined(pieces, signs[1:])
        while rest and rest[0] in signs[0]:
            other, rest = self._joined(rest[1:], signs[1:])
            value = value or other if "||" in signs[0] else value and other
        return value, rest

    def _single(self, pieces: list[str]) -> tuple[bool, list[str]]:
        if not pieces:
            return False, []
        if pieces[0] == "!" and len(pieces) > 1:
            value, rest = self._single(pieces[1:])
            return not value, rest
        if pieces[0] in ("(", "\\("):
            value, rest = self._joined(pieces[1:])
            return value, rest[1:]
        sign = pieces[1] if len(pieces) > 2 else ""
        if sign in ("=", "==", "!=", "=~", "<", ">", "\\<", "\\>", *_NUMERIC):
            left, right = self._known([self._text(pieces[0]), self._text(pieces[2])])
            return self._compared(left, sign.lstrip("\\"), right), pieces[3:]
        if len(pieces) > 1 and pieces[0] in ("-z", "-n"):
            text = self._text(pieces[1])
            if OUTPUT in text and UNSET.search(text):
                self._known([text])
            return bool(UNSET.sub("", text)) is (pieces[0] == "-n"), pieces[2:]
        if len(pieces) > 1 and pieces[0] == "-v":
            return not UNSET.search(self._value(self._text(pieces[1]))), pieces[2:]
        if len(pieces) > 1 and pieces[0] in _FILE_TESTS:
            self._doubts.append(f"[ {pieces[0]} {short(self._text(pieces[1]))} ]")
            return False, pieces[2:]
        return bool(self._known([self._text(pieces[0])])[0]), pieces[1:]

    def _compared(self, left: str, sign: str, right: str) -> bool:
        if sign in _NUMERIC:
            return self._number(f"({left or 0}) {_NUMERIC[sign]} ({right or 0})") == "1"
        if sign == "=~":
            try:
                return bool(_SAFE_PATTERN.fullmatch(right) and re.search(right, left[:200])) or right in left
            except re.error:
                return right in left
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        return fnmatch.fnmatchcase(left, right) is (sign != "!=")

    # --- expansion ---

    def _words(self, raw: "list[str] | tuple[str, ...]") -> list[str]:
        return [word for one in raw for word in self.expanded(one)]

    def _text(self, raw: str) -> str:
        return "".join(self.expanded(raw, splits=False))

    def _filled(self, body: str) -> str:
        """A here-document with its variables filled in."""
        return self._text('"' + body.replace('"', '\\"') + '"')

    def written(self, name: str) -> str:
        """The text that the script writes into a file (`cat > FILE <<EOF`), variables filled in; empty where none."""
        return self._filled(self.documents[name]) if name in self.documents else ""

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
            char, end = text[i], _after(text, i)
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
            return end, [self._output(text[i + 1 : end - 1])], False
        if text.startswith("$((", i):
            return end, [self._number(text[i + 3 : end - 2])], False
        if text.startswith("$(", i):
            return end, [self._output(text[i + 2 : end - 1])], False
        if text.startswith("${", i):
            return end, *self._braced(text[i + 2 : end - 1], depth)
        if text.startswith("$'", i):
            return end, [text[i + 2 : end - 1].replace("\\n", "\n")], True
        named = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]").match(text, i + 1)
        if named is None:
            return i + 1, ["$"], False
        if named[0] in "@*":
            return named.end(), list(self._arguments), True
        return named.end(), [self._value(named[0])], False

    def _output(self, command: str) -> str:
        """The output of a command where it is plain to see, else its name as of a variable without a value."""
        outer, self._said, values, count = self._said, [], dict(self.values), len(self.commands)
        with suppress(_Leave):
            self._follow(command)
        said, self._said, self.values = self._said, outer, values
        is_known = len(self.commands) == count
        del self.commands[count:]
        return "\n".join(said) if is_known else f"{MARK}{OUTPUT}{short(command)}){MARK}"

    def _says(self, words: list[str]) -> bool:
        """Whether a command only writes text, which is kept for the `$(...)` around it."""
        name, rest = words[0], [word for word in words[1:] if word not in ("-n", "-e", "--", "-P", "-L")]
        first, last = (rest[0], rest[-1]) if rest else ("", "")
        if name == "printf" and first == "-v":
            self.values[rest[1]] = rest[2].replace("%s", rest[3], 1) if len(rest) > 3 else ""
            return True
        text: str | None = {"echo": " ".join(rest), "date": "", "hostname": "", "pwd": "."}.get(name)
        if name == "printf":
            text = first.replace("%s", last, 1).removesuffix("\\n")
        elif name == "basename":
            text = PurePosixPath(first).name.removesuffix(last if len(rest) > 1 else "")
        elif name == "dirname":
            text = str(PurePosixPath(first).parent)
        elif name == "expr":
            text = self._number(" ".join(rest))
        elif name == "bc" and self._said:
            text = self._number(self._said.pop())
        elif name == "cut" and self._said and (cut := re.search(r"-f ?(\d)", " ".join(rest))):
            sign = re.search(r"-d ?(\S)", " ".join(rest))
            parts = self._said.pop().split(sign[1] if sign else "\t")
            text = parts[int(cut[1]) - 1] if int(cut[1]) <= len(parts) else ""
        elif name == "seq" and rest and all(re.fullmatch(r"-?\d{1,5}", one) for one in rest):
            ends = [1, *map(int, rest)] if len(rest) == 1 else [*map(int, rest)]
            step = ends[1] if len(ends) == 3 else 1
            text = "\n".join(map(str, range(ends[0], ends[-1] + (1 if step > 0 else -1), step or 1)))
        self._said += [text] if text is not None else []
        return text is not None

    def _key(self, name: str, index: str) -> str:
        text = self._text(index)
        is_number = re.fullmatch(r"[\w\s$+*/()-]{1,80}", text) and not any(
            not key.isdecimal() for key in self.arrays.get(name, {})
        )
        return (self._number(text) if is_number else "") or text

    def _braced(self, inside: str, depth: int) -> tuple[list[str], bool]:
        """The values of `${...}`, and whether they are elements of a list."""
        found = re.match(r"([#!]?)([A-Za-z_]\w*+|\d++|[@*#?])(?:\[([^\]]{0,200})\])?", inside)
        if found is None:
            return [""], False
        sign, name, index = found.groups()
        rest = inside[found.end() :]
        if name in "@*" or index in ("@", "*"):
            held = self.arrays.get(name, {}) if index else dict(enumerate(self._arguments))
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
            value = self._value(name)
        if sign == "!":
            value = self._value(value)
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
            begin, count = self._number(cut[1]), self._number(cut[2]) if cut[2] else ""
            part = value[int(begin) if begin.lstrip("-").isdecimal() else 0 :]
            return part[: int(count)] if count.lstrip("-").isdecimal() else part
        if trimmed := re.match(r"##?|%%?", rest):
            return _trimmed(value, self._text(rest[trimmed.end() :]), trimmed[0])
        if rest[0] == "/":
            old, _, new = rest.lstrip("/").partition("/")
            return value.replace(self._text(old), self._text(new), -1 if rest.startswith("//") else 1)
        changes = {"^^": str.upper, ",,": str.lower, "^": str.capitalize}
        return changes[rest](value) if rest in changes else value

    def _value(self, name: str) -> str:
        if name.isdecimal() and name != "0" and int(name) <= len(self._arguments):
            return self._arguments[int(name) - 1]
        if name.isdecimal() and self._depth > 1:
            return ""
        known = {"#": str(len(self._arguments)), "0": "script", "?": "0", "$": "1", "PWD": ".", "RANDOM": "1", "-": ""}
        return self.values.get(name, self.environ.get(name, known.get(name, f"{MARK}{name}{MARK}")))

    def _number(self, text: str) -> str:
        """A whole number from an arithmetic text, `x = ...` and `x++` included; what has no value stays by its name."""
        text = text.strip()
        if assigned := re.fullmatch(r"(?<!\w)([A-Za-z_]\w*+)\s*+(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))", text, re.DOTALL):
            name, step, how, rest = assigned.groups()
            change = f"{name} {step[0]} 1" if step else f"{name} {how} ({rest})" if how else rest
            self.values[name] = self._number(change)
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
            return self._number(first if self._number(test) not in ("", "0") else second)
        python = re.sub(r"!(?!=)", " not ", filled.replace("&&", " and ").replace("||", " or "))
        python = re.sub(r"\b0+(?=\d)|(?<=\d)\s+(?=\d)", "", python)
        try:
            return str(int(_calculated(ast.parse(python.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return ""


def _calculated(node: ast.expr) -> int:
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


def short(text: str) -> str:
    """A command in one short line, for a message."""
    return " ".join(UNSET.sub(r"$\1", text).split())[:60]


def _pieces(text: str) -> list[str]:
    """The raw words of a `[[ ]]`."""
    found, i = list[str](), 0
    while i < len(text):
        if text[i].isspace():
            i += 1
            continue
        begin = i
        if text[i] in "()" or text.startswith(("&&", "||"), i):
            i += 1 if text[i] in "()" else 2
        else:
            while i < len(text) and not text[i].isspace() and not text.startswith(("&&", "||"), i):
                if text[i] == ")" and "(" not in text[begin:i]:
                    break
                i = _after(text, i)
        found.append(text[begin:i])
    return found


def slurm(text: str) -> dict[str, str]:
    """Variables that Slurm sets for a script with `#SBATCH` lines."""
    head = dict(re.findall(r"^#SBATCH[ \t]+(--?[\w-]{1,40})[ =\t]+(\S{1,80})", text, re.MULTILINE))
    gpus = head.get("--gpus-per-node") or head.get("--gres", "").removeprefix("gpu")
    given = {"NNODES": head.get("--nodes") or head.get("-N"), "NTASKS": head.get("--ntasks") or head.get("-n"),
             "NTASKS_PER_NODE": head.get("--ntasks-per-node"), "GPUS_PER_NODE": gpus.rsplit(":")[-1]}  # fmt: skip
    found = {f"SLURM_{name}": value for name, value in given.items() if value and value.isdecimal()}
    alias = {"SLURM_JOB_NUM_NODES": "SLURM_NNODES", "SLURM_GPUS_ON_NODE": "SLURM_GPUS_PER_NODE"}
    return found | {name: found[one] for name, one in alias.items() if one in found}
