"""What a function of a Python file returns, from its syntax tree: calls with their arguments, nothing is run.

    module = PythonModule.of(Path("config_registry.py"))
    module.returned("llama3_8b")          # CallRecord("Trainer.Config", fields={"training": CallRecord(...), ...})

Functions of the file, and of files that it imports and that are there, are followed; every other call is kept as a
`CallRecord`, whose fields later statements may set. What cannot be known without running it is `Unknown`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.python.python_operators import (
    LONGEST,
    NOTHING,
    as_tests,
    known_end,
    of_function,
    of_method,
    operated,
    unknown,
)
from primus_search.files.python.python_values import EVERY, CallRecord, Name, Unknown, is_open

MOST_STEPS, DEEPEST = 20_000, 40
FOLLOWED = "Trainer.Config"
"""What functions of other files return that are followed."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(slots=True)
class PythonModule:
    """A Python file: its functions, names and what is stored under a key of a table (`configs["8B"] = function`)."""

    path: Path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    made: list[CallRecord] = field(default_factory=list)
    body: list[ast.stmt] = field(default_factory=list)
    entered: set[str] = field(default_factory=set)
    guess: str = ""
    guessed: list[tuple[str, Any]] = field(default_factory=list)
    depth: int = 0
    steps: int = 0

    @classmethod
    def of(cls, path: Path, text: str | None = None, depth: int = 0, **given: Any) -> Self:
        """The module of a file. Raises ValueError for a text that is not Python."""
        try:
            tree = ast.parse(read_text(path, most=MAX_TABLE_BYTES) if text is None else text)
        except (SyntaxError, RecursionError) as error:
            raise ValueError(f"is no Python that can be read: {error}") from None
        found = cls(path, depth=depth, body=tree.body, **given)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found.functions[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign):
                found._statement(node, found.names)
        return found

    def returned(self, name: str, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None) -> Any:
        """What a function returns. Raises ValueError where it calls itself without end."""
        node = self.functions[name]
        self.entered.add(name)
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("functions of the file call each other without end")
        given = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        scope: dict[str, Any] = {one: Unknown(one) for one in (*given, *(a.arg for a in node.args.kwonlyargs))}
        defaults = node.args.defaults
        pairs = [*zip(given[len(given) - len(defaults) :], defaults, strict=True),
                 *zip((a.arg for a in node.args.kwonlyargs), node.args.kw_defaults, strict=True)]  # fmt: skip
        scope |= {one: self._value(value, self.names) for one, value in pairs if value is not None}
        scope |= self._bound(node, scope) | dict(zip(given, arguments, strict=False)) | dict(keywords or {})
        if node.args.kwarg is not None:
            scope[node.args.kwarg.arg] = {key: one for key, one in (keywords or {}).items() if key not in given}
        before, self.guessed = self.guessed, []
        try:
            self._run(node.body, scope)
            result = None
        except _Return as found:
            result = found.value
        finally:
            self.depth -= 1
            guessed, self.guessed = self.guessed, before
        return next((Unknown(text) for text, one in guessed if one is not None and one != result), result)

    def _bound(self, node: ast.FunctionDef, scope: Mapping[str, Any]) -> dict[str, Any]:
        """What parameters have that no call gives, where that is not their default alone."""
        return {}

    # --- statements ---

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for node in body:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise ValueError("functions of so many steps are not read")
            self._statement(node, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Return(value):
                found = None if value is None else self._value(value, scope)
                if not self.guess:
                    raise _Return(found)
                self.guessed.append((self.guess, found))
            case ast.Assign(targets, value):
                found = self._value(value, scope)
                for target in targets:
                    self._assign(target, found, scope)
            case ast.AnnAssign(target, _, value) if value is not None:
                self._assign(target, self._value(value, scope), scope)
            case ast.AugAssign(target, op, value):
                one = ast.BinOp(left=ast.parse(ast.unparse(target), mode="eval").body, op=op, right=value)
                self._assign(target, self._value(one, scope), scope)
            case ast.Expr(value):
                self._value(value, scope)
            case ast.If(test, body, otherwise):
                answer = self._value(test, scope)
                if not is_open(answer):
                    self._run(body if answer else otherwise, scope)
                else:
                    self._undecided(node, scope)
            case ast.Match(subject, cases):
                self._run(as_tests(subject, cases), scope)
            case ast.For(target, over, body):
                self._loop(target, self._value(over, scope), body, scope)
            case ast.With(items, body):
                for item in items:
                    held = self._value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, held, scope)
                self._run(body, scope)
            case ast.Try(body):
                self._run(body, scope)
            case ast.Import(names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    scope[alias.asname or first] = Name(alias.name if alias.asname else first)
            case ast.ImportFrom(module, names, level):
                self._import(module or "", names, level, scope)

    def _undecided(self, node: ast.If, scope: dict[str, Any]) -> None:
        """What becomes of the branches of a test that has no answer: neither is taken."""

    def _import(self, module: str, names: Sequence[ast.alias], level: int, scope: dict[str, Any]) -> None:
        """Names of another module: its functions where the file is there."""
        parts = module.split(".") if module else []
        if level:
            above = self.path.parents[level - 1] if level <= len(self.path.parents) else self.path.parent
            folders, parts_of = [above], [above.name, *parts]
        else:
            folders, parts_of = list(self.path.resolve().parents), parts
        for one in names:
            scope[one.asname or one.name] = Name(
                ".".join([*parts_of, one.name]), tuple(folders) if parts or level else ()
            )

    def _followed(self, of: Any) -> "tuple[PythonModule, str] | None":
        """The module and the function that a name stands for, where that is followed: one of this file, or one that
        another file has and that returns a configuration or changes one."""
        if not isinstance(of, Name):
            return None
        if of.name in self.functions:
            return self, of.name
        *parts, name = of.name.split(".")
        for folder in of.folders:
            file = module_file(folder, parts)
            if file is None and parts[:1] == [folder.name]:
                file = module_file(folder.parent, parts)
            if file is not None and file.resolve() != self.path.resolve():
                other = self._module(file.resolve())
                node = other.functions.get(name)
                returns = ast.unparse(node.returns) if node is not None and node.returns is not None else ""
                return (other, name) if returns == "None" or returns.endswith(FOLLOWED) else None
        return None

    def _module(self, file: Path) -> "PythonModule":
        """Another file's module."""
        return PythonModule.of(file, depth=self.depth + 1)

    def _loop(self, target: ast.expr, over: Any, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        """The body for every value of a list; once for all parts of a call."""
        values = over if isinstance(over, list | tuple) else [over] if isinstance(over, CallRecord) else []
        for value in values:
            if isinstance(target, ast.Tuple) and isinstance(value, CallRecord):
                for one in target.elts:
                    self._assign(one, value, scope)
            else:
                self._assign(target, value, scope)
            self._run(body, scope)

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        value = Unknown(self.guess) if self.guess else value
        match target:
            case ast.Name(name):
                scope[name] = value
            case ast.Attribute(of, name):
                self._assign_field(self._value(of, scope), name, value)
            case ast.Tuple(parts) | ast.List(parts):
                for part, one in zip(parts, self._parts(value, parts), strict=True):
                    self._assign(part, one, scope)
            case ast.Subscript(of, key):
                owner, at = self._value(of, scope), self._value(key, scope)
                if isinstance(owner, dict | list) and isinstance(at, str | int):
                    owner[at] = value  # type: ignore[index]
                elif isinstance(owner, Name) and isinstance(at, str):
                    self.stored[at] = value

    def _assign_field(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, CallRecord):
            owner.fields[name] = value

    def _parts(self, value: Any, targets: Sequence[ast.expr]) -> list[Any]:
        """What each of several names is given."""
        is_whole = isinstance(value, list | tuple) and len(targets) == len(value)
        return list(value) if is_whole else [unknown(one) for one in targets]

    # --- expressions ---

    def _value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        self.steps += 1
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._named(scope[name] if name in scope else self.names.get(name, Name(name)))
            case ast.Attribute(of, name):
                return self._attribute(self._value(of, scope), name)
            case ast.Call():
                return self._call(node, scope)
            case ast.List(parts) | ast.Tuple(parts):
                return [self._value(one, scope) for one in parts]
            case ast.Dict(keys, values):
                made = dict[Any, Any]()
                for at, given in zip(keys, values, strict=True):
                    one = self._value(given, scope)
                    if at is None:
                        made |= one if isinstance(one, dict) else one.fields if isinstance(one, CallRecord) else {}
                    elif isinstance(word := self._value(at, scope), str | int):
                        made[word] = one
                return made
            case ast.UnaryOp(op, operand):
                one = self._value(operand, scope)
                if isinstance(one, bool | int | float):
                    return -one if isinstance(op, ast.USub) else not one if isinstance(op, ast.Not) else one
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                pair = [self._value(left, scope), self._value(right, scope)]
                joins = isinstance(op, ast.Div | ast.Add)
                end = known_end(pair, "/" if isinstance(op, ast.Div) else "") if joins else ""
                return unknown(node, end) if (result := operated(op, *pair)) is NOTHING else result
            case ast.BoolOp(op, values):
                found: Any = None
                for one in values:
                    found = self._value(one, scope)
                    if is_open(found) and one is not values[-1]:
                        if isinstance(op, ast.Or) and isinstance(found, Unknown) and found.text.startswith("--"):
                            continue  # an option that is not given
                        return Unknown(ast.unparse(node))
                    if bool(found) is isinstance(op, ast.Or):
                        break
                return found
            case ast.JoinedStr(parts):
                texts = [self._value(one.value if isinstance(one, ast.FormattedValue) else one, scope) for one in parts]
                if all(isinstance(one, str | int | float | None) for one in texts):
                    return unknown(node) if len(text := "".join(map(str, texts))) > LONGEST else text
                return unknown(node, known_end(texts, ""))
            case ast.ListComp(one, [ast.comprehension(target, over, tests)]):
                return self._comprehended(one, target, self._value(over, scope), tests, dict(scope))
            case ast.DictComp(
                ast.Name(key), ast.Name(of), [ast.comprehension(ast.Tuple([ast.Name(k), ast.Name(v)]), o)]
            ):
                pairs = self._value(o, scope) if (key, of) == (k, v) else None
                if isinstance(pairs, list):  # those of another that a test lets through, taken to let through all
                    return {word: one for word, one in pairs if isinstance(word, str | int)}
            case ast.IfExp(test, body, otherwise):
                answer = self._value(test, scope)
                if not is_open(answer):
                    return self._value(body if answer else otherwise, scope)
            case ast.Subscript(of, key):
                owner, at = self._value(of, scope), self._value(key, scope)
                if isinstance(owner, CallRecord) or (isinstance(owner, Unknown) and owner.is_whole):
                    return owner  # one of several alike
                is_there = isinstance(owner, list | str) and isinstance(at, int) and -len(owner) <= at < len(owner)
                if is_there or (isinstance(owner, dict) and isinstance(at, str | int) and at in owner):
                    return owner[at]
        return unknown(node)

    def _comprehended(
        self, one: ast.expr, target: ast.expr, over: Any, tests: Sequence[ast.expr], scope: dict[str, Any]
    ) -> Any:
        """The values of a list that is made of another; `Unknown` where one of its tests has no answer."""
        if not isinstance(over, list):
            return unknown(one)
        made = []
        for value in over:
            if self.steps > MOST_STEPS:
                raise ValueError("functions of so many steps are not read")
            self._assign(target, value, scope)
            answers = [self._value(test, scope) for test in tests]
            if any(is_open(answer) for answer in answers):
                return unknown(one)
            made += [self._value(one, scope)] if all(answers) else []
        return made

    def _named(self, value: Any) -> Any:
        """What a name stands for."""
        return value

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, CallRecord):
            return owner.part(name)
        return Name(f"{owner.name}.{name}") if isinstance(owner, Name) else Unknown(name)

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        arguments = [self._value(one, scope) for one in node.args if not isinstance(one, ast.Starred)]
        keywords = {key: Unknown(self.guess) if self.guess else one for key, one in self._keywords(node, scope)}
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value, scope)
            if (result := self._method(node.func.attr, owner, arguments, keywords)) is not NOTHING:
                return unknown(node) if result is None and isinstance(owner, CallRecord) else result
            function = self._attribute(owner, node.func.attr)
        else:
            function = self._value(node.func, scope)
        found = self._result(function, arguments, keywords)
        return unknown(node) if found is NOTHING else found

    def _method(self, name: str, owner: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """What a method returns; `NOTHING` where its owner is nothing that is known, None where it is not followed."""
        if isinstance(owner, dict) and name == "update":
            changed = (arguments[0] if arguments and isinstance(arguments[0], dict) else {}) | keywords
            owner |= dict.fromkeys(changed, Unknown(self.guess)) if self.guess else changed
            return None
        if (result := of_method(owner, name, arguments)) is not NOTHING:
            return result
        if not isinstance(owner, CallRecord):
            return NOTHING
        self.made.append(CallRecord(f"{owner.last}.{name}", tuple(arguments), keywords))
        of = arguments[0].name if arguments and isinstance(arguments[0], Name) else ""
        return owner.part(f"{EVERY}{of}") if name == "traverse" else None

    def _result(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """What a function returns: followed, Python's own, or kept as a call; `NOTHING` where it has no name."""
        if (followed := self._followed(function)) is not None:
            module, name = followed
            module.steps, module.depth = max(module.steps, self.steps), max(module.depth, self.depth)
            found = module.returned(name, arguments, keywords)
            self.made += module.made if module.made is not self.made else []
            return found
        name = self._called(function)
        if name.rpartition(".")[2] in ("replace", "deepcopy") and arguments and isinstance(arguments[0], CallRecord):
            copied = deepcopy(arguments[0])
            copied.fields |= keywords
            return copied
        if (result := of_function(name, arguments)) is not NOTHING:
            return result
        if name.rpartition(".")[2] in WRAPPED and arguments and isinstance(arguments[0], Name):
            name, *arguments = arguments[0].name, *arguments[1:]
        if not name:
            return NOTHING
        self.made.append(CallRecord(name, tuple(arguments), keywords))
        return self.made[-1]

    def _called(self, function: Any) -> str:
        """The name under which a call is kept; empty where it has none."""
        if isinstance(function, CallRecord) and function.name:
            return f"{function.last}.called"
        return function.name if isinstance(function, Name) else ""

    def _keywords(self, node: ast.Call, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for one in node.keywords:
            value = self._value(one.value, scope)
            if one.arg is not None:
                yield one.arg, value
                continue
            if isinstance(value, dict | CallRecord):
                fields = value.fields if isinstance(value, CallRecord) else value
                yield from ((key, part) for key, part in fields.items() if isinstance(key, str))
            if isinstance(value, Unknown) or (isinstance(value, CallRecord) and value.last[:1].islower()):
                yield SPREAD, Unknown(ast.unparse(one.value)[:80])


WRAPPED = ("Partial", "Config", "partial")
"""Calls that keep another with its arguments (NeMo-Run, functools)."""


SPREAD = "**"
"""The keyword of a call that stands for those which only a run has."""


def module_file(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module below a folder."""
    if not parts:
        return None
    place = folder.joinpath(*parts)
    return next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
