"""What a function of a Python file returns, from its syntax tree: calls with their arguments, nothing is run.

    module = PythonModule.of(Path("config_registry.py"))
    module.returned("llama3_8b")          # CallRecord("Trainer.Config", fields={"training": CallRecord(...), ...})

Functions of the file, and of files that it imports and that are there, are followed; every other call is kept as a
`CallRecord`, whose fields later statements may set. What cannot be known without running it is `Unknown`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from primus_search.base.dataclass import dataclass, field
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.python.python_operators import NOTHING, of_function, of_method, operated
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
    options: dict[str, Any] | None = None
    guess: str = ""
    depth: int = 0
    steps: int = 0

    @classmethod
    def of(cls, path: Path, text: str | None = None, depth: int = 0) -> "PythonModule":
        """The module of a file. Raises ValueError for a text that is not Python."""
        try:
            tree = ast.parse(read_text(path, most=MAX_TABLE_BYTES) if text is None else text)
        except (SyntaxError, RecursionError) as error:
            raise ValueError(f"is no Python that can be read: {error}") from None
        found = cls(path, depth=depth, body=tree.body)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found.functions[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign):
                found._statement(node, found.names)
        return found

    def started(self, options: dict[str, Any]) -> list[CallRecord]:
        """The calls of the file as a program, fields of its data classes first: what it runs, then functions that it
        only names. Parameters of those are `Unknown`, their fields those of `options`; what stands under a test that
        has no answer is `Unknown`, too."""
        self.made, self.options, self.names["__name__"] = [], options, "__main__"
        for node in self.body:
            if isinstance(node, ast.ClassDef):
                given = [(one.target, one.value) for one in node.body if isinstance(one, ast.AnnAssign) and one.value]
                fields = {ast.unparse(target): _default(self._value(value, self.names)) for target, value in given}
                self.made.append(CallRecord(node.name, (), fields))
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
                self.functions |= {f"{node.name}.{one.name}": one for one in methods}
        self._run(self.body, self.names)
        for name in self.functions:
            if name not in self.entered:
                self.returned(name)
        return self.made

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
        scope |= dict(zip(given, arguments, strict=False)) | dict(keywords or {})
        try:
            self._run(node.body, scope)
        except _Return as found:
            return found.value
        finally:
            self.depth -= 1
        return None

    # --- statements ---

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for node in body:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise ValueError("functions of so many steps are not read")
            self._statement(node, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Return(value) if not self.guess:
                raise _Return(None if value is None else self._value(value, scope))
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
                elif self.options is not None:
                    before, self.guess = self.guess, ast.unparse(test)[:80]
                    self._run([*body, *otherwise], scope)
                    self.guess = before
            case ast.For(target, over, body):
                self._loop(target, self._value(over, scope), body, scope)
            case ast.With(_, body) | ast.Try(body):
                self._run(body, scope)
            case ast.Import(names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    scope[alias.asname or first] = Name(alias.name if alias.asname else first)
            case ast.ImportFrom(module, names, level):
                self._import(module or "", names, level, scope)

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
                other = PythonModule.of(file, depth=self.depth + 1)
                node = other.functions.get(name)
                returns = ast.unparse(node.returns) if node is not None and node.returns is not None else ""
                return (other, name) if returns == "None" or returns.endswith(FOLLOWED) else None
        return None

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
                owner = self._value(of, scope)
                if isinstance(owner, CallRecord):
                    owner.fields[name] = value
                elif owner == SELF and self.options is not None:
                    self.options[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                values = value if isinstance(value, list | tuple) and len(parts) == len(value) else map(_unknown, parts)
                if isinstance(value, CallRecord) and self.options is not None:
                    values = [CallRecord(value.name, value.arguments) for _ in parts]
                for part, one in zip(parts, values, strict=True):
                    self._assign(part, one, scope)
            case ast.Subscript(of, key):
                owner, at = self._value(of, scope), self._value(key, scope)
                if isinstance(owner, dict | list) and isinstance(at, str | int):
                    owner[at] = value  # type: ignore[index]
                elif isinstance(owner, Name) and isinstance(at, str):
                    self.stored[at] = value

    # --- expressions ---

    def _value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        self.steps += 1
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return scope[name] if name in scope else self.names.get(name, Name(name))
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
                result = operated(op, self._value(left, scope), self._value(right, scope))
                return Unknown(ast.unparse(node)[:80]) if result is NOTHING else result
            case ast.BoolOp(op, values):
                found: Any = None
                for one in values:
                    found = self._value(one, scope)
                    if is_open(found):
                        return Unknown(ast.unparse(node))
                    if bool(found) is isinstance(op, ast.Or):
                        break
                return found
            case ast.Lambda(args, body) if self.options is not None:
                self._value(body, scope | {one.arg: Unknown(one.arg) for one in args.args})
            case ast.ListComp(one, [ast.comprehension(target, over, tests)]):
                return self._comprehended(one, target, self._value(over, scope), tests, dict(scope))
            case ast.IfExp(test, body, otherwise):
                answer = self._value(test, scope)
                if not is_open(answer):
                    return self._value(body if answer else otherwise, scope)
            case ast.Subscript(of, key):
                owner, at = self._value(of, scope), self._value(key, scope)
                if isinstance(owner, CallRecord):  # one of several alike
                    return owner
                is_there = isinstance(owner, list | str) and isinstance(at, int) and -len(owner) <= at < len(owner)
                if is_there or (isinstance(owner, dict) and isinstance(at, str | int) and at in owner):
                    return owner[at]
        return Unknown(ast.unparse(node)[:80])

    def _comprehended(
        self, one: ast.expr, target: ast.expr, over: Any, tests: Sequence[ast.expr], scope: dict[str, Any]
    ) -> Any:
        """The values of a list that is made of another; `Unknown` where one of its tests has no answer."""
        if not isinstance(over, list):
            return Unknown(ast.unparse(one)[:80])
        made = []
        for value in over:
            if self.steps > MOST_STEPS:
                raise ValueError("functions of so many steps are not read")
            self._assign(target, value, scope)
            answers = [self._value(test, scope) for test in tests]
            if any(is_open(answer) for answer in answers):
                return Unknown(ast.unparse(one)[:80])
            made += [self._value(one, scope)] if all(answers) else []
        return made

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, CallRecord):
            return owner.part(name)
        if isinstance(owner, Name):
            return Name(f"{owner.name}.{name}")
        return (self.options or {}).get(name, Unknown(name))

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        arguments = [self._value(one, scope) for one in node.args if not isinstance(one, ast.Starred)]
        keywords = {key: Unknown(self.guess) if self.guess else one for key, one in self._keywords(node, scope)}
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value, scope)
            if node.func.attr == "add_argument" and arguments:
                option = str(arguments[-1]).lstrip("-").replace("-", "_")
                absent = Unknown(f"--{option}") if keywords.get("required") is True else None
                self.made.append(CallRecord("Arguments", (), {option: keywords.get("default", absent)}))
            if (result := of_method(owner, node.func.attr, arguments)) is not NOTHING:
                return result
            if isinstance(owner, CallRecord):
                self.made.append(CallRecord(f"{owner.last}.{node.func.attr}", tuple(arguments), keywords))
                of = arguments[0].name if arguments and isinstance(arguments[0], Name) else ""
                if node.func.attr == "traverse":
                    return owner.part(f"{EVERY}{of}")
                is_followed = self.options is not None and not node.func.attr.startswith("parse")
                return self.made[-1] if is_followed else Unknown(ast.unparse(node)[:80])
        function = self._value(node.func, scope)
        if (followed := self._followed(function)) is not None:
            module, name = followed
            module.steps, module.depth = max(module.steps, self.steps), max(module.depth, self.depth)
            found = module.returned(name, arguments, keywords)
            self.made += module.made if module is not self else []
            is_built = isinstance(found, CallRecord) and found.name in BUILT
            return Unknown(f"{name}()") if is_built and self.options is not None else found
        name = function.name if isinstance(function, Name) else ""
        if isinstance(function, CallRecord) and function.name:
            name = f"{function.last}.called"
        elif isinstance(function, Unknown) and function.text.isidentifier() and self.options is not None:
            name = function.text  # what a parameter or a field of the program's own holds
        if name.rpartition(".")[2] in ("replace", "deepcopy") and arguments and isinstance(arguments[0], CallRecord):
            copied = deepcopy(arguments[0])
            copied.fields |= keywords
            return copied
        if name.rpartition(".")[2] == WORLD and self.options is not None:
            return self.options.get(WORLD, Unknown(f"{WORLD}()"))
        if (result := of_function(name, arguments)) is not NOTHING:
            return result
        if name.rpartition(".")[2] in WRAPPED and arguments and isinstance(arguments[0], Name):
            name, *arguments = arguments[0].name, *arguments[1:]
        if not name:
            return Unknown(ast.unparse(node)[:80])
        self.made.append(CallRecord(name, tuple(arguments), keywords))
        return self.made[-1]

    def _keywords(self, node: ast.Call, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for one in node.keywords:
            value = self._value(one.value, scope)
            if one.arg is not None:
                yield one.arg, value
            elif isinstance(value := value.fields if isinstance(value, CallRecord) else value, dict):
                yield from ((key, part) for key, part in value.items() if isinstance(key, str))


WORLD = "get_world_size"
"""The function, and the option, that has the number of processes."""


def _unknown(node: ast.expr) -> Unknown:
    return Unknown(ast.unparse(node)[:80])


SELF = Unknown("self")
"""An object of a class of the file, whose attributes are kept with the options."""
BUILT = ("list", "set", "sorted", "tuple")
"""Calls of Python's own whose values only a run has: the function that returns one is named."""
WRAPPED = ("Partial", "Config", "partial")
"""Calls that keep another with its arguments (NeMo-Run, functools)."""


def _default(value: Any) -> Any:
    """What `field(default=...)` of a data class gives."""
    return value.fields.get("default") if isinstance(value, CallRecord) and value.last == "field" else value


def module_file(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module below a folder."""
    if not parts:
        return None
    place = folder.joinpath(*parts)
    return next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
