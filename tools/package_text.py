"""What functions of a Python package return, by its text: assignments, calls, branches and loops over plain values.

    Package(Path("Megatron-Bridge/src")).call("megatron.bridge.recipes.llama.llama3", "llama3_8b_pretrain_config")

Nothing is imported. An instance of a class is a `Record` of its fields, a member of an enumeration its name, and what
no text of the roots defines is `Unknown`, whose attributes and results are unknown, too; a branch on it is `Unread`.
"""

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


class Unread(ValueError):
    """What is not plain enough to be read; the message says what and where."""


class Raised(ValueError):
    """An exception that the text itself raises."""


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that no text defines: its dotted name, and what it was called with."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class Record:
    """An instance of a class: values of its fields, defaults among them, and the names that were given or assigned."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)

    def put(self, name: str, value: Any) -> None:
        self.fields[name] = value
        self.given.add(name)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module."""

    module: str
    node: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Class:
    """A class of a module."""

    module: str
    node: ast.ClassDef


PLAIN = ("len", "any", "all", "list", "dict", "set", "tuple", "str", "int", "float", "bool", "range", "zip",
         "enumerate", "sum", "min", "max", "sorted", "abs", "divmod")  # fmt: skip
OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
KINDS: Mapping[str, type] = {
    "str": str,
    "int": int,
    "bool": bool,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "float": float,
}
Scope = dict[str, Any]


class Package:
    """The texts of some source roots, and methods of objects that are replaced (`results`, by the method's name)."""

    def __init__(self, *roots: Path, results: Mapping[str, Callable[[Unknown], Any]] | None = None) -> None:
        self._roots, self._results = roots, results or {}
        self.tree = cache(self._tree)
        self.name_in = cache(self._name_in)

    def call(self, module: str, name: str) -> Any:
        """What a function without arguments returns. Raises `Unread`."""
        return self._call(self.name_in(module, name), [], {})

    def instance(self, module: str, name: str) -> Record:
        """An instance of a class, all its fields at their defaults."""
        return self._instance(self.name_in(module, name), [], {})

    # --- names --------------------------------------------------------------------------------------------------------

    def _tree(self, module: str) -> ast.Module | None:
        for root in self._roots:
            path = root.joinpath(*module.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    return ast.parse(file.read_text(encoding="utf-8"))
        return None

    def _name_in(self, module: str, name: str) -> Any:
        """What a name of a module is: the last definition of it, of those in branches and `try`, too."""
        tree = self.tree(module)
        if tree is None:
            return Unknown(f"{module}.{name}")
        for node in reversed(list(_statements(tree.body))):
            match node:
                case ast.FunctionDef() if node.name == name:
                    return Function(module, node)
                case ast.ClassDef() if node.name == name:
                    return Class(module, node)
                case ast.Assign() if name in {ast.unparse(one) for one in node.targets}:
                    return self._value(node.value, module, {})
                case ast.AnnAssign(value=ast.expr() as value) if ast.unparse(node.target) == name:
                    return self._value(value, module, {})
                case ast.Import() | ast.ImportFrom():
                    found = self._imported(node, module, name)
                    if found is not None:
                        return found
        return Unknown(f"{module}.{name}")

    def _imported(self, node: ast.Import | ast.ImportFrom, module: str, name: str) -> Any:
        for one in node.names:
            if isinstance(node, ast.Import) and (one.asname or one.name.partition(".")[0]) == name:
                return Unknown(one.name if one.asname else name)
            if isinstance(node, ast.ImportFrom) and (one.asname or one.name) == name:
                source = "." * node.level + (node.module or "")
                if node.level:
                    is_package = any((r.joinpath(*module.split(".")) / "__init__.py").is_file() for r in self._roots)
                    parts = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
                    source = ".".join([*parts, *([node.module] if node.module else [])])
                return self.name_in(source, one.name)
        return None

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, called: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        match called:
            case Function(_, node) if node.name in self._results:
                return self._results[node.name](Unknown(node.name, tuple(arguments)))
            case Function(module, node):
                scope = self._bound(module, node.args, arguments, named)
                try:
                    self._run(node.body, module, scope)
                except _Returned as done:
                    return done.value
                return None
            case Class(_, node):
                return self._instance(called, arguments, named)
            case Unknown(name):
                last = name.rpartition(".")[2]
                return self._results[last](called) if last in self._results else Unknown(name, tuple(arguments))
            case _ if callable(called):
                return called(*arguments, **named)
        raise Unread(f"a call of {called!r}")

    def _bound(self, module: str, args: ast.arguments, given: Sequence[Any], named: Mapping[str, Any]) -> Scope:
        names = [one.arg for one in (*args.posonlyargs, *args.args)]
        defaults = zip(names[len(names) - len(args.defaults) :], args.defaults, strict=True)
        scope = {name: self._value(value, module, {}) for name, value in defaults}
        only = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        scope |= {one.arg: self._value(value, module, {}) for one, value in only if value is not None}
        return scope | dict(zip(names, given, strict=False)) | dict(named)

    def _instance(self, of: Class, arguments: Sequence[Any], named: Mapping[str, Any]) -> Record:
        made = Record(of.node.name)
        for one in reversed(list(self._lineage(of))):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    made.fields[node.target.id] = self._default(node.value, one.module)
        for name, value in [*zip(made.fields, arguments, strict=False), *named.items()]:
            made.put(name, value)
        return made

    def _lineage(self, of: Class) -> Iterator[Class]:
        """A class and those that it extends, as far as texts define them."""
        yield of
        for base in of.node.bases:
            found = self._value(base, of.module, {})
            if isinstance(found, Class):
                yield from self._lineage(found)

    def _default(self, node: ast.expr, module: str) -> Any:
        """The default of a field: of `field(default=...)` or `field(default_factory=...)`, too."""
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
            words = {one.arg: one.value for one in node.keywords}
            if "default_factory" in words:
                return self._call(self._value(words["default_factory"], module, {}), [], {})
            return self._value(words["default"], module, {}) if "default" in words else None
        try:
            return self._value(node, module, {})
        except Unread:
            return Unknown(ast.unparse(node))

    # --- statements ---------------------------------------------------------------------------------------------------

    def _run(self, body: Sequence[ast.stmt], module: str, scope: Scope) -> None:
        for node in body:
            self._statement(node, module, scope)

    def _statement(self, node: ast.stmt, module: str, scope: Scope) -> None:
        match node:
            case ast.Assign(targets, value):
                found = self._value(value, module, scope)
                for target in targets:
                    self._assign(target, found, module, scope)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self._assign(target, self._value(value, module, scope), module, scope)
            case ast.AugAssign(target, how, value):
                held = self._value(target, module, scope)
                self._assign(target, self._operated(how, held, self._value(value, module, scope)), module, scope)
            case ast.Expr(value):
                self._value(value, module, scope)
            case ast.Return(value):
                raise _Returned(None if value is None else self._value(value, module, scope))
            case ast.If(test, body, orelse):
                self._run(body if self._holds(test, module, scope) else orelse, module, scope)
            case ast.For(target, over, body):
                for one in self._value(over, module, scope):
                    self._assign(target, one, module, scope)
                    self._run(body, module, scope)
            case ast.With(body=body):
                self._run(body, module, scope)
            case ast.Try(body, handlers):
                try:
                    self._run(body, module, scope)
                except Raised:
                    self._run(handlers[0].body, module, scope)
            case ast.Raise(what):
                raise Raised(ast.unparse(what) if what else "")
            case ast.FunctionDef(name):
                scope[name] = Function(module, node)
            case ast.Import() | ast.ImportFrom():
                for one in node.names:
                    name = one.asname or one.name.partition(".")[0]
                    scope[name] = self._imported(node, module, name)
            case ast.Pass() | ast.Assert() | ast.Global() | ast.Delete():
                pass
            case _:
                raise Unread(f"{module}:{node.lineno}: {type(node).__name__}")

    def _assign(self, target: ast.expr, value: Any, module: str, scope: Scope) -> None:
        match target:
            case ast.Name(name):
                scope[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                many = [value] * len(parts) if isinstance(value, Unknown) else value
                for part, one in zip(parts, many, strict=True):
                    self._assign(part, one, module, scope)
            case ast.Attribute(of, name):
                held = self._value(of, module, scope)
                if isinstance(held, Record):
                    held.put(name, value)
                elif not isinstance(held, Unknown):
                    raise Unread(f"{module}:{target.lineno}: {ast.unparse(target)} of {held!r}")
            case ast.Subscript(of, index):
                self._value(of, module, scope)[self._value(index, module, scope)] = value
            case _:
                raise Unread(f"{module}:{target.lineno}: {ast.unparse(target)}")

    # --- expressions --------------------------------------------------------------------------------------------------

    def _holds(self, node: ast.expr, module: str, scope: Scope) -> bool:
        found = self._value(node, module, scope)
        if isinstance(found, Unknown):
            raise Unread(f"{module}:{node.lineno}: depends on {ast.unparse(node)}")
        return bool(found) or isinstance(found, Record)

    def _value(self, node: ast.expr, module: str, scope: Scope) -> Any:
        def of(one: ast.expr) -> Any:
            return self._value(one, module, scope)

        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._name(name, module, scope)
            case ast.Attribute(held, name):
                return self._attribute(of(held), name)
            case ast.Call():
                return self._called(node, module, scope)
            case ast.List(parts) | ast.Tuple(parts) | ast.Set(parts):
                found = [
                    one for part in parts for one in (of(part.value) if isinstance(part, ast.Starred) else [of(part)])
                ]
                return (
                    found if isinstance(node, ast.List) else tuple(found) if isinstance(node, ast.Tuple) else set(found)
                )
            case ast.Dict(keys, values):
                pairs = [of(v).items() if k is None else [(of(k), of(v))] for k, v in zip(keys, values, strict=True)]
                return {key: value for many in pairs for key, value in many}
            case ast.BoolOp(how, parts):
                return self._either(isinstance(how, ast.Or), parts, module, scope)
            case ast.UnaryOp(how, operand):
                return not self._holds(operand, module, scope) if isinstance(how, ast.Not) else -of(operand)
            case ast.BinOp(left, how, right):
                return self._operated(how, of(left), of(right))
            case ast.Compare(left, hows, rights):
                values = [of(left), *map(of, rights)]
                found = [self._operated(how, *pair) for how, pair in zip(hows, pairwise(values), strict=True)]
                return next((one for one in found if isinstance(one, Unknown)), all(found))
            case ast.IfExp(test, body, orelse):
                return of(body) if self._holds(test, module, scope) else of(orelse)
            case ast.Subscript(held, index):
                return self._item(of(held), of(index))
            case ast.Slice(lower, upper, step):
                return slice(*(of(one) if one else None for one in (lower, upper, step)))
            case ast.JoinedStr() | ast.Lambda():
                return Unknown(ast.unparse(node))
            case ast.ListComp(made, loops) | ast.SetComp(made, loops) | ast.GeneratorExp(made, loops):
                rows = [self._value(made, module, inner) for inner in self._looped(loops, module, scope)]
                return set(rows) if isinstance(node, ast.SetComp) else rows
            case ast.DictComp(key, made, loops):
                inners = list(self._looped(loops, module, scope))
                return {self._value(key, module, inner): self._value(made, module, inner) for inner in inners}
        raise Unread(f"{module}:{node.lineno}: {ast.unparse(node)[:80]}")

    def _either(self, is_or: bool, parts: Sequence[ast.expr], module: str, scope: Scope) -> Any:
        """The value that decides `or` or `and`; an unknown one counts only where no known one decides."""
        found: list[Any] = []
        for part in parts:
            found.append(self._value(part, module, scope))
            if not isinstance(found[-1], Unknown) and bool(found[-1]) == is_or:
                return found[-1]
        return next((one for one in found if isinstance(one, Unknown)), found[-1])

    def _looped(self, loops: Sequence[ast.comprehension], module: str, scope: Scope) -> Iterator[Scope]:
        if not loops:
            yield scope
            return
        for one in self._value(loops[0].iter, module, scope):
            inner = dict(scope)
            self._assign(loops[0].target, one, module, inner)
            if all(self._holds(test, module, inner) for test in loops[0].ifs):
                yield from self._looped(loops[1:], module, inner)

    def _name(self, name: str, module: str, scope: Scope) -> Any:
        if name in scope:
            return scope[name]
        found = self.name_in(module, name)
        if isinstance(found, Unknown) and found.name == f"{module}.{name}":
            return getattr(builtins, name) if name in PLAIN else Unknown(name)
        return found

    def _attribute(self, held: Any, name: str) -> Any:
        match held:
            case Record(kind, fields):
                return fields[name] if name in fields else Unknown(f"{kind}.{name}")
            case Unknown(of, arguments):
                return Unknown(f"{of}.{name}", arguments)
            case Class(_, node):
                is_member = any(
                    ast.unparse(t) == name for one in node.body if isinstance(one, ast.Assign) for t in one.targets
                )
                return name if is_member else Unknown(f"{node.name}.{name}")
            case Function():
                return Unknown(f"{held.node.name}.{name}")
        return getattr(held, name)

    def _item(self, held: Any, index: Any) -> Any:
        if isinstance(held, Class):
            return index  # a member of an enumeration by its name
        if isinstance(held, Unknown) or isinstance(index, Unknown):
            return Unknown(f"{getattr(held, 'name', '')}[]")
        return held[index]

    def _operated(self, how: ast.AST, left: Any, right: Any) -> Any:
        if isinstance(how, ast.Is | ast.IsNot):
            return OPERATORS[type(how)](left, right)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return Unknown(f"{getattr(left, 'name', left)} {type(how).__name__} {getattr(right, 'name', right)}")
        return OPERATORS[type(how)](left, right)

    def _called(self, node: ast.Call, module: str, scope: Scope) -> Any:
        values = [self._value(one.value if isinstance(one, ast.Starred) else one, module, scope) for one in node.args]
        arguments = [
            x for one, v in zip(node.args, values, strict=True) for x in (v if isinstance(one, ast.Starred) else [v])
        ]
        named: dict[str, Any] = {}
        for word in node.keywords:
            value = self._value(word.value, module, scope)
            named |= {word.arg: value} if word.arg else value if isinstance(value, dict) else {}
        name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in scope else ""
        if name in ("hasattr", "getattr", "setattr", "isinstance"):
            return _of_object(name, arguments, [ast.unparse(one) for one in node.args])
        called = self._value(node.func, module, scope)
        is_plain = callable(called) and not isinstance(called, Unknown)
        if is_plain and any(isinstance(one, Unknown) for one in arguments):
            if isinstance(getattr(called, "__self__", None), list | dict | set):
                raise Unread(f"{module}:{node.lineno}: {ast.unparse(node)[:80]}")
            return Unknown(f"{ast.unparse(node.func)}()")
        return self._call(called, arguments, named)


def _of_object(name: str, arguments: Sequence[Any], texts: Sequence[str]) -> Any:
    """`hasattr`, `getattr`, `setattr` and `isinstance` of records and plain values."""
    held = arguments[0]
    if name == "isinstance":
        kinds = [KINDS[word] for word in texts[1].strip("()").replace(" ", "").split(",") if word in KINDS]
        return isinstance(held, tuple(kinds)) or (isinstance(held, Record) and held.kind in texts[1])
    fields = held.fields if isinstance(held, Record) else {}
    if name == "setattr" and isinstance(held, Record):
        return held.put(arguments[1], arguments[2])
    if name == "hasattr":
        return arguments[1] in fields
    return fields.get(arguments[1], arguments[2] if len(arguments) > 2 else Unknown(str(arguments[1])))


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those in branches and `try` among them."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "handlers"):
            for one in getattr(node, inner, []) if isinstance(node, ast.If | ast.Try) else []:
                yield from _statements(one.body if isinstance(one, ast.ExceptHandler) else [one])
