"""What a shell script hands to its programs, by bash's own rules; nothing is run.

    followed(text, environ={"TP": "4"}, folder=Path("examples")).commands

Assignments, arrays, expansions, branches, loops, functions, `eval`, `source` of files beside the script, here-documents
and the text of `bash -c` are followed. Programs are not executed: their words are kept in `commands`. A test that
cannot be answered (of a file, a program, a variable without a value) is a guess; `choices` turns one.
"""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from primus_search.base.errors import InputError
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.guards.values import whole_number
from primus_search.files.shell.files_beside import beside
from primus_search.files.shell.shell_output import output_of
from primus_search.files.shell.shell_syntax import DEEPEST, Block, Node, parsed, test_pieces
from primus_search.files.shell.shell_tests import OUTPUT, Tests, short
from primus_search.files.shell.shell_variables import ASSIGNMENT, MARK, VISIBLE, Variables, counts_in, header_variables

MOST_WORDS, MOST_STEPS, MOST_TRIES = 100_000, 50_000, 40
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
_DECLARES = ("export", "local", "declare", "readonly", "typeset")
_RUNS_FILES = (*_SHELLS, "sbatch", "source", ".")
_STARTERS = ("srun", "mpirun", "mpiexec")
"""Programs that start processes of what stands behind them."""
_PASSES_ON = ("exec", "time", "nohup", "command", "builtin", "sudo", "then", "do")
_SILENT = ("mkdir", "cd", "trap", "ulimit", "wait", "sleep", "pushd", "popd", "rm", "cp", "mv", "tee", "true",
           "set", ":")  # fmt: skip


@dataclass(eq=False)
class _Leave(Exception):
    """`exit`, `return`, `break` or `continue`, its line, and the status that it is given."""

    word: str
    line: int
    status: str


@dataclass(frozen=True, slots=True)
class Guess:
    """A test that cannot be answered: what it depends on, the answer taken, the others there are."""

    names: tuple[str, ...]
    answer: int
    others: tuple[int, ...]


def followed(
    text: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
    choices: Mapping[int, int] = MappingProxyType({}),
    starts: re.Pattern[str] | None = None,
) -> "Script":
    """A script followed to its end; `choices` answer its tests by where they stand. What `starts` a job is a command
    whose own script is not followed.

    An `exit` behind a guess says that the guess is wrong: it is turned. One behind a test for an empty variable says
    that it is filled in by hand: it is a variable without a value from there on.
    """
    environ, choices, turned = header_variables(text) | dict(environ), dict(choices), set(choices)
    while True:
        script = Script(text, environ, folder, choices, starts)
        try:
            script.follow(text)
        except RecursionError:
            raise ValueError("commands of the script refer to each other without end") from None
        except _Leave as leave:
            script.left = leave.line
            wrong = next((at for at in reversed(script.open) if at not in turned and script.others(at)), None)
            if leave.word == "exit" and wrong is not None and len(turned) < MOST_TRIES:
                turned.add(wrong)
                choices[wrong] = script.others(wrong)[0]
                continue
        return script


def differing(
    script: "Script", text: str, own: Mapping[str, Any], settings: "Callable[[Script], Mapping[str, Any]]"
) -> dict[str, set[str]]:
    """Keys of a script's `own` settings that change with the answer to a guess, by what that depends on; `settings`:
    those of a script with another answer, none where it starts nothing."""
    found: dict[str, set[str]] = {}
    taken = {at: made.answer for at, made in script.guesses.items()}
    for at, guess in list(script.guesses.items())[:MOST_TRIES]:
        for answer in guess.others:
            other = settings(followed(text, script.environ, script.folder, taken | {at: answer}))
            differs = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
            for name in guess.names if differs and other else ():
                found.setdefault(name, set()).update(differs)
    return found


@dataclass(slots=True)
class Script:
    """A script that is followed command by command, and what was found on the way.

    commands   words of each program that is started
    before     variables that stand before each of them (`A=1 program`), and the devices that are listed then
    guesses    tests that cannot be answered, by where they stand; `choices` has answers to take instead
    guards     tests of variables that are empty, and their answer where they were filled in
    open       those of both whose branches are being followed
    missing    files that the script reads and that are not beside it
    left       the line of the `exit` that ends it; 0 where none does
    """

    text: str
    environ: Mapping[str, str]
    folder: Path | None
    choices: Mapping[int, int]
    starts: re.Pattern[str] | None = None
    variables: Variables = field(init=False)
    commands: list[list[str]] = field(default_factory=list)
    before: list[dict[str, str]] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    guesses: dict[int, Guess] = field(default_factory=dict)
    guards: dict[int, bool] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left: int = 0
    open: list[int] = field(default_factory=list)
    _before: dict[str, str] = field(default_factory=dict)
    _functions: dict[str, Block] = field(default_factory=dict)
    _tests: Tests = field(init=False)
    _said: list[str] = field(default_factory=list)
    _steps: int = 0

    def __post_init__(self) -> None:
        self.variables = Variables(environ=self.environ, output=self._output)
        self._tests = Tests(self.variables)

    def header(self, words: list[str]) -> dict[str, str]:
        """Variables by which Slurm, an operator of Kubernetes or torch starts one of its programs."""
        return header_variables(self.text) | counts_in(self.variables_of(words))

    def variables_of(self, words: list[str]) -> dict[str, str]:
        """Variables of one of its programs, of the last for other words; devices as they are listed then."""
        kept = {name: value for name, value in self.variables.values.items() if name not in VISIBLE or not self.before}
        at = next((at for at, one in enumerate(self.commands) if one is words), -1)
        return kept | (self.before[at] if self.before else {})

    def follow(self, text: str) -> bool:
        """Follow further commands; the status of the last."""
        self.variables.depth += 1
        if self.variables.depth > DEEPEST:
            raise ValueError("commands of the script refer to each other without end")
        status = self._run(parsed(text))
        self.variables.depth -= 1
        return status

    def _run(self, nodes: Block, *, asks: bool = False) -> bool:
        """Run commands; the status of the last. is_guess: a program's status is a guess."""
        status = True
        for node in nodes:
            self._steps += 1
            if self._steps > MOST_STEPS or sum(map(len, self.commands[-1:])) > MOST_WORDS:
                raise ValueError("a script of so many steps is not read")
            status = self._one(node, asks)
        return status

    def _one(self, node: Node, asks: bool) -> bool:
        opened = len(self.open)
        if node.kind == "simple":
            return self._simple(node, asks)
        if node.kind == "test":
            return self._test(test_pieces(node.words[0]), node.at)
        if node.kind == "maths":
            return self._counted(node.words[0], node.at)
        if node.kind == "function":
            self._functions[node.words[0]] = node.blocks[0]
        elif node.kind in ("group", "subshell"):
            values, arrays = dict(self.variables.values), dict(self.variables.arrays)
            status = self._run(node.blocks[0], asks=asks)
            if node.kind == "subshell":
                self.variables.values, self.variables.arrays = values, arrays
            return status
        elif node.kind == "pipe":
            status = [self._run((one,), asks=asks) for one in node.blocks[0]][-1]
            return status is not ("!" in node.words)
        elif node.kind == "chain":
            status = True
            for sign, block in zip(node.words, node.blocks, strict=True):
                if not sign or status is (sign == "&&"):
                    status = self._run(block, asks=asks)
            if not asks:  # of a condition, whose body follows
                del self.open[opened:]
            return status
        elif node.kind == "if":
            self._branch(node)
            del self.open[opened:]
        elif node.kind == "case":
            self._case(node)
            del self.open[opened:]
        else:
            self._loop(node)
        return True

    def _branch(self, node: Node) -> None:
        for i in range(0, len(node.blocks) - 1, 2):
            if self._run(node.blocks[i], asks=True):
                self._run(node.blocks[i + 1])
                return
        if len(node.blocks) % 2:
            self._run(node.blocks[-1])

    def _case(self, node: Node) -> None:
        subject = self._tests.known([self.variables.text(node.words[0])])[0]
        fits = (i for i, one in enumerate(node.words[1:]) for pattern in one.split("\n")
                if fnmatch.fnmatchcase(subject, self.variables.text(pattern)))  # fmt: skip
        chosen = next(fits, -1)
        if self._tests.doubts:
            chosen = self._guess(node.at, chosen, tuple(i for i in range(len(node.blocks)) if i != chosen))
        if chosen >= 0:
            self._run(node.blocks[chosen])

    def _loop(self, node: Node) -> None:
        is_for, is_counted = node.kind == "for", node.kind == "for" and ";" in node.words[0]
        first, test, step = (node.words[0].split(";") + [""] * 2)[:3] if is_counted else [""] * 3
        listed = self.variables.words(node.words[2:]) if len(node.words) > 1 else self.variables.arguments
        self.variables.number(first)
        for word in listed if is_for and not is_counted else [""] * MOST_STEPS:
            self.variables.values |= {node.words[0]: word} if is_for and not is_counted else {}
            before = None if is_for else (dict(self.variables.values), list(self.variables.arguments))
            if is_counted and not self._counted(test, node.at):
                return
            opened = len(self.open)
            goes_on = is_for or self._run(node.blocks[0], asks=True) is not (node.words[0] == "until")
            guessed = self.open[opened:] = [at for at in self.open[opened:] if at in self.guesses]
            if guessed and all(name.isdigit() for at in guessed for name in self.guesses[at].names):
                for at in guessed:  # options that it may be started with
                    self.guesses.pop(at, None)
                return
            if not goes_on:
                return
            try:
                self._run(node.blocks[-1])
            except _Leave as leave:
                if leave.word == "break":
                    return
                if leave.word != "continue":
                    raise
            is_same = before == (self.variables.values, self.variables.arguments)
            if is_same or guessed or (is_counted and node.at in self.guesses):
                return  # it waits for the machine, or ends where only the machine knows
            self.variables.number(step)

    def others(self, at: int) -> tuple[int, ...]:
        """Other answers to a guess, or to a test for an empty variable."""
        return self.guesses[at].others if at in self.guesses else (self.guards[at],)

    def _guess(self, at: int, answer: int, others: tuple[int, ...]) -> int:
        """The answer to a test that cannot be answered: the one chosen, else the given one."""
        taken = self.choices.get(at, answer)
        rest = tuple(one for one in (answer, *others) if one != taken)
        self.guesses[at] = Guess(tuple(self._tests.doubts), taken, rest)
        self.open.append(at)
        self._tests.doubts.clear()
        return taken

    # --- simple commands ---

    def _simple(self, node: Node, asks: bool) -> bool:
        count = next((n for n, word in enumerate(node.words) if not ASSIGNMENT.fullmatch(word)), len(node.words))
        before, raw = node.words[:count], list(node.words[count:])
        is_own = not raw or raw[0] in ("[", "test", *_DECLARES)
        words = [] if is_own else self.variables.words(raw)
        while words and words[0] in _PASSES_ON:
            words.pop(0)
        if words:
            return self._with(before, words, node, asks)
        for word in (*before, *(raw[1:] if raw[:1] and raw[0] in _DECLARES else ())):
            if not self.variables.assigned(word):
                self.variables.assigned(self.variables.text(word))
        if raw[:1] == ["["] or raw[:1] == ["test"]:
            return self._test(raw[1:-1] if raw[0] == "[" else raw[1:], node.at)
        return True

    def _with(self, before: Sequence[str], words: list[str], node: Node, asks: bool) -> bool:
        """Run a command with the variables that stand before it, which hold for it alone."""
        outer, values = self._before, dict(self.variables.values)
        own = {word.partition("=")[0].rstrip("+") for word in before if self.variables.assigned(word)}
        self._before = outer | {name: self.variables.values.get(name, "") for name in own}
        try:
            return True if self._keeps(words, node) else self._called(words, node, asks)
        finally:
            self._before = outer
            for name in own:
                self.variables.values.pop(name, None)
            self.variables.values |= {name: values[name] for name in own & values.keys()}

    def _keeps(self, words: list[str], node: Node) -> bool:
        """Whether a command only takes its here-document: into a file, or as a script that is followed."""
        bodies = [one.document for one in node.redirections if one.document is not None]
        target = next((one.text.split(" ", 1)[1] for one in node.redirections if one.text.startswith(">")), "")
        strings = [one.text.removeprefix("<<<") for one in node.redirections if one.text.startswith("<<<")]
        if words[0] == "read" and (bodies or strings):
            self._read(
                words[1:], self.variables.filled(bodies[-1]) if bodies else self.variables.text(strings[-1].strip())
            )
            return True
        if bodies and words == ["cat"] and not target:
            self._said.append(self.variables.filled(bodies[-1]))
        elif bodies and words[0] in ("cat", "tee"):
            self.documents[self.variables.text(target) if target else words[-1]] = bodies[-1]
        elif bodies and any(word in (*_SHELLS, "sbatch", "ssh") for word in words):
            self._inner(self.variables.filled(bodies[-1]), [])
        elif bodies:
            self._said.append(f"{MARK}{OUTPUT}{short(' '.join(words))}){MARK}")
        return bool(bodies) or (words[0] == "cat" and bool(target))

    def _read(self, words: list[str], text: str) -> None:
        """Give the fields of a text, of its first line without `-d ''`, to the variables that `read` names."""
        text = text if "-d" in words else text.partition("\n")[0]
        names = [one for n, one in enumerate(words) if one.isidentifier() and words[n - 1 : n] != ["-d"]] or ["REPLY"]
        signs = self.variables.values.get("IFS", " ")
        fields = text.strip().split(signs.strip() or None, len(names) - 1)
        for name, value in zip(names, [*fields, *[""] * len(names)], strict=False):
            self.variables.values[name] = value.strip()

    def _called(self, words: list[str], node: Node, asks: bool) -> bool:
        name, rest = words[0], words[1:]
        if name in self._functions:
            outer, self.variables.arguments = self.variables.arguments, rest
            try:
                return self._run(self._functions[name])
            except _Leave as leave:
                if leave.word != "return":
                    raise
                return leave.status in ("", "0")
            finally:
                self.variables.arguments = outer
        if name in ("exit", "return", "break", "continue"):
            raise _Leave(name, self.text.count("\n", 0, node.at) + 1, " ".join(rest[:1]))
        if name == "eval":
            return self.follow(" ".join(rest))
        if name == "shift":
            count = whole_number(self.variables.number(rest[0])) if rest else 1
            self.variables.arguments = self.variables.arguments[1 if count is None else count :]
        elif "--" in rest and name == "set":
            self.variables.arguments = rest[rest.index("--") + 1 :]
        elif name == "unset":
            for one in rest:
                self.variables.values[one] = ""
                self.variables.arrays.pop(one, None)
        elif name == "let":
            return self._counted(",".join(rest), node.at)
        elif name == "getopts":
            return self._option(rest)
        elif name in ("read", "false"):
            return False
        elif name not in _SILENT and not self._says(words):
            return self._program(words, node, asks)
        return True

    def _program(self, words: list[str], node: Node, asks: bool) -> bool:
        """Follow a script that is handed to a shell, else keep the words of a program."""
        for i, word in enumerate(words):
            if word.rsplit("/")[-1] in _SHELLS:
                option = next((n for n in range(i + 1, len(words)) if re.fullmatch(r"-\w{0,8}c", words[n])), 0)
                if option and option + 1 < len(words):
                    return self._inner(words[option + 1], words[option + 3 :], words[:i])
            if text := _text_run(words, i):
                return self._inner(text, [], words[:i])
            if rest := _script_run(words, i):
                if self.starts and self.starts.search(rest[0]):
                    break
                written = self.documents.get(rest[0])
                inner = self.variables.filled(written) if written is not None else self._beside(rest[0])
                if inner is not None and word in ("source", "."):
                    return self.follow(inner)
                if inner is not None:
                    options = [f"#SBATCH {one}" for one in words[i:] if word == "sbatch" and "=" in one]
                    self.text += "\n".join(["", inner, *options]) if word == "sbatch" else ""
                    return self._inner(inner, rest[1:], words[: words.index(rest[0])])
                self.missing += [rest[0]] if word in ("source", ".") else []
                break
        self.commands.append(words)
        self.before.append({k: v for k, v in self.variables.values.items() if k in VISIBLE} | self._before)
        if asks:
            self._tests.doubts.append(f"{OUTPUT}{short(' '.join(words))})")
            return bool(self._guess(node.at, 0, (1,)))
        return True

    def _inner(self, text: str, arguments: list[str], before: Sequence[str] = ()) -> bool:
        """Follow a script with its arguments; its commands stand behind the starter of processes before it."""
        outer, self.variables.arguments = self.variables.arguments, arguments
        count, starts = len(self.commands), before[:1] and before[0] in _STARTERS
        try:
            return self.follow(text)
        except _Leave as leave:
            if leave.word == "exit" and leave.status not in ("", "0") and any(map(self.others, self.open)):
                raise  # the guess around it is wrong
            return True
        finally:
            self.variables.arguments = outer
            self.commands[count:] = [[*before, *one] if starts else one for one in self.commands[count:]]

    def _beside(self, name: str) -> str | None:
        """The text of a file that is found by its name; None where there is none."""
        path = beside(self.folder, name) if self.folder else None
        try:
            return read_text(path, most=MAX_TABLE_BYTES) if path else None
        except InputError:
            return None

    def _option(self, names: list[str]) -> bool:
        """`getopts`: the next option among the arguments."""
        arguments = self.variables.arguments
        if len(names) < 2 or not arguments or not re.match(r"-\w", arguments[0]):
            return False
        letter, rest = arguments[0][1], arguments[0][2:]
        takes_value = f"{letter}:" in names[0]
        arguments = [*([f"-{rest}"] if rest and not takes_value else []), *arguments[1:]]
        if takes_value:
            self.variables.values["OPTARG"] = rest or (arguments.pop(0) if arguments else "")
        self.variables.arguments = arguments
        self.variables.values |= {names[1]: letter if letter in names[0] else "?", "OPTIND": "1"}
        return True

    # --- tests ---

    def _test(self, pieces: list[str], at: int) -> bool:
        """A test: of words, numbers, or files, which are guesses."""
        self._tests.clear()
        return self._answered(self._tests.joined(pieces)[0], at)

    def _counted(self, text: str, at: int) -> bool:
        self._tests.clear()
        self._tests.counts(text)
        value = [self._tests.known([self.variables.number(part)])[0] for part in text.split(",")][-1] not in ("", "0")
        return self._answered(value, at)

    def _answered(self, value: bool, at: int) -> bool:
        """The answer to a test: a guess, or what it is where the variables that are empty are filled in."""
        names = self._tests.empty
        if self._tests.doubts:
            return bool(self._guess(at, int(value), (int(not value),)))
        if names and at not in self.choices:
            self.guards[at] = not value
            self.open.append(at)
        self.variables.values |= {one: f"{MARK}{one}{MARK}" for one in names if one != "#" and at in self.choices}
        return bool(self.choices.get(at, value)) if names else value

    def written(self, name: str) -> str:
        """The text that the script writes into a file (`cat > FILE <<EOF`), variables filled in; empty where none."""
        return self.variables.filled(self.documents[name]) if name in self.documents else ""

    def _output(self, command: str) -> str:
        """The output of a command where it is plain to see, else its name as of a variable without a value."""
        outer, self._said, values, count = self._said, [], dict(self.variables.values), len(self.commands)
        with suppress(_Leave):
            self.follow(command)
        said, self._said, self.variables.values = self._said, outer, values
        is_known = len(self.commands) == count
        del self.commands[count:], self.before[count:]
        return "\n".join(said) if is_known else f"{MARK}{OUTPUT}{short(command)}){MARK}"

    def _says(self, words: list[str]) -> bool:
        """Whether a command only writes text, kept for the `$(...)` around it."""
        if words[:2] == ["printf", "-v"]:
            self.variables.values[words[2]] = words[3].replace("%s", words[4], 1) if len(words) > 4 else ""
            return True
        text = output_of(words, self._said, self.variables.number, self._beside)
        self._said += [text] if text is not None else []
        return text is not None


_OF_TEXT = ("--wrap", "--command", "--commandline", "--cmd", "-c")
"""Options of schedulers and clouds (Slurm, NGC, gcloud) whose value is a script."""
_RUNS = re.compile(r"(?:^|[\s;&|/(])(?:python[\d.]{0,4}|torchrun|deepspeed|accelerate|colossalai|bash|srun)\s")


def _text_run(words: list[str], i: int) -> str:
    """The script that an option at a place has as its value, or `ssh` as its last word; empty where there is none."""
    option, equals, value = words[i].partition("=")
    text = value if equals else words[i + 1] if i + 1 < len(words) else ""
    is_code = option == "-c" and (not i or words[i - 1].rsplit("/")[-1].startswith("python"))
    if option in _OF_TEXT and not is_code and _RUNS.search(text):
        return text
    return words[-1] if words[i] == "ssh" and " " in words[-1] and _RUNS.search(words[-1]) else ""


def _script_run(words: list[str], i: int) -> list[str]:
    """The script that the word at a place starts, and its arguments; empty where it starts none."""
    rest = words[i + 1 :]
    plain = rest[next((n for n, one in enumerate(rest) if not one.startswith("-")), len(rest)) :]
    if words[i] in ("srun", "sbatch"):
        options = [n for n, one in enumerate(rest[:-1]) if one == "--" and rest[n + 1].startswith("-")]
        rest = rest[: options[0]] if options else rest  # behind them those of another launcher
        named = rest[next((n for n, one in enumerate(rest) if one.endswith((".sh", ".slurm", ".sbatch"))), len(rest)) :]
        return named or (plain if words[i] == "sbatch" and "--wrap" not in rest else [])
    return plain if words[i] in _RUNS_FILES else words if not i and words[i].endswith(".sh") else []
