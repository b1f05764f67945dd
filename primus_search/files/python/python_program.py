"""What the calls of a Python file are given when it is started as a program, from its syntax tree: nothing is run.

    Program.of(Path("train.py"), text).started({"lr": 1e-4}, {"model_name": "gpt2"})      # [CallRecord(...), ...]

Functions, classes and names of modules beside the file are followed, documents that it loads are read, and its command
line is at its defaults. Libraries are not followed: their calls are kept.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from primus_search.files.known_keys import key_table
from primus_search.files.python.program_nodes import REFLECTIONS, reflected, takes_steps
from primus_search.files.python.python_module import SPREAD, PythonModule, module_file
from primus_search.files.python.python_operators import NOTHING, known_end, unknown
from primus_search.files.python.python_values import CallRecord, Name, Unknown

ARGUMENTS = "Arguments"
"""The name of the calls that stand for options of a command line with their defaults."""
DOCUMENT = "document"
"""The name of the calls that stand for a document that is loaded: the folder of the module, its name there."""
ACCUMULATED = "accumulated"
"""The name of the calls that stand for a step of the optimizer once in so many micro-batches."""
WORLD = "get_world_size"
"""The function, and the option, that has the number of processes."""
SELF = Unknown("self")
"""An object of a class of the file, whose attributes are kept with the options."""
_CONSENT = re.compile(r"(?<![\w/])(y|yes)\s?/\s?no?(?![\w/])", re.IGNORECASE)
"""What a program asks that is to be agreed with, and how; `directory/name` is another question."""
MOST_MODULES, DEEP = 60, 6
"""Modules of a program, and folders above a file in which its modules are sought."""


def known(kind: str) -> list[str]:
    """The names of a kind that libraries have (`spaces/keys/python_names.yaml`)."""
    names: list[str] = key_table("python_names")[kind]
    return names


@dataclass(slots=True)
class Program(PythonModule):
    """A file that is started: its classes, the options that it has, and the flags that its command gives."""

    options: dict[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    built: set[str] = field(default_factory=set)
    modules: "dict[Path, Program]" = field(default_factory=dict)
    load: Callable[[Path, str], Any] = lambda beside, name: None

    def started(self, options: dict[str, Any], flags: Mapping[str, Any] | None = None) -> list[CallRecord]:
        """The calls of the file as a program: what it runs, then functions that it only names, then classes of which
        it makes no object, at their defaults. Parameters of those functions are `Unknown`, their fields those of
        `options`; what stands under a test that has no answer is `Unknown`, too."""
        self.made, self.options, self.flags, self.names["__name__"] = [], options, flags or {}, "__main__"
        self._run(self.body, self.names)
        for name, node in [*self.functions.items()]:
            if name not in self.entered:
                given = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
                self.returned(name, keywords={key: one for key, one in self.flags.items() if key in given})
        self.made += [CallRecord(one, (), self._fields(one)) for one in self.classes if one not in self.built]
        return self.made

    def entered_at(self, name: str) -> list[CallRecord]:
        """The calls of a function that is started by its name; a call of it under the name of the file first."""
        node = self.functions[name].args
        pairs = [*zip(node.args[len(node.args) - len(node.defaults) :], node.defaults, strict=True)]
        given = {one.arg: self._value(value, self.names) for one, value in pairs}
        given |= {key: one for key, one in self.flags.items() if key in given}
        record = CallRecord(f"{self.path.stem}.{name}", (), given)
        self.made = [record]
        found = self.returned(name, keywords=given)
        record.fields |= _opened(found).fields if isinstance(found, CallRecord) else {}
        return self.made

    def __post_init__(self) -> None:
        """Notes the classes of the file, their methods as functions."""
        self.names["__file__"] = str(self.path)
        for node in self.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
                self.functions |= {f"{node.name}.{one.name}": one for one in methods}

    # --- names of other files ---

    def _home(self, of: Any) -> "tuple[Program, str] | None":
        """The module of the program's own that defines a name, and the name in it."""
        if not isinstance(of, Name):
            return None
        if of.name in self.functions or of.name in self.classes:
            return self, of.name
        parts = of.name.split(".")
        if not of.folders:
            return None
        is_library = parts[0] in key_table("other_files")["libraries"]
        for count in range(len(parts) - 1, 0, -1):
            for folder in of.folders[:DEEP]:
                inner = parts[1:count] if parts[0] == folder.name else parts[:count]
                file = module_file(folder, parts[:count]) or module_file(folder, inner)
                is_own = file is not None and (not is_library or file.parent == self.path.parent)
                if file is not None and is_own and file.resolve() != self.path.resolve():
                    return self._module(file.resolve()), ".".join(parts[count:])
        return None

    def _module(self, file: Path) -> "Program":
        """Another module of the program, read once. Raises ValueError for more than are read."""
        if file not in self.modules:
            if len(self.modules) >= MOST_MODULES:
                raise ValueError("programs of so many modules are not read")
            self.modules[file] = Program(file)  # for what imports it while it is opened
            self.modules[file] = Program.of(
                file, options=self.options, flags=self.flags, modules=self.modules, load=self.load
            )
        found = self.modules[file]
        found.made, found.steps, found.depth = self.made, max(found.steps, self.steps), self.depth + 1
        return found

    def _named(self, value: Any) -> Any:
        if not isinstance(value, Name) or not value.folders or (home := self._home(value)) is None:
            return value
        module, name = home
        first, _, rest = name.partition(".")
        if first in module.classes and rest:
            return module._fields(first).get(rest, value)
        found = module.names.get(name, value)
        return found if found == value or self.depth > DEEP else module._named(found)

    def _attribute(self, owner: Any, name: str) -> Any:
        match owner:
            case Name("sys") if name == "argv":
                return [str(self.path)]
            case Name(of, folders):
                found = self._fields(of).get(name) if of in self.classes else None
                return self._named(Name(f"{of}.{name}", folders)) if found is None else found
            case dict():
                return owner.get(name, Unknown(name))
            case Unknown(is_whole=True):
                return owner
            case str() if name in ("parent", "name", "stem"):
                return str(getattr(PurePosixPath(owner), name))
            case CallRecord() if name not in owner.fields and owner.last in self.built:
                return Unknown(f"--{name}")
            case CallRecord():
                return owner.part(name)
        is_line = isinstance(owner, Unknown) and owner != SELF and self._is_settings(owner)
        return self.options.get(name, Unknown(f"--{name}" if is_line else name))

    @staticmethod
    def _is_settings(owner: Unknown) -> bool:
        """Whether an object's attributes are options."""
        return owner.text in known("settings") or "parse" in owner.text

    # --- classes ---

    def _fields(self, name: str) -> dict[str, Any]:
        """The defaults of the fields of a class, of those that it extends, too."""
        node, found = self.classes[name], dict[str, Any]()
        for base in node.bases:
            home = self._home(self._value(base, self.names))
            if home and home[1] in home[0].classes and home[1] != name:
                found |= home[0]._fields(home[1])
        for one in node.body:
            match one:
                case ast.AnnAssign(ast.Name(target), _, None):
                    found[target] = Unknown(f"--{target}")
                case ast.AnnAssign(ast.Name(target), _, ast.expr() as value) | ast.Assign([ast.Name(target)], value):
                    found[target] = self._default(value, {**self.names, **found})
        return found

    def _default(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """What `field(default=...)` of a data class, or of pydantic, gives."""
        value = self._value(node, scope)
        if not (isinstance(node, ast.Call) and isinstance(value, CallRecord) and value.last in known("fields")):
            return value
        factory = next((one.value for one in node.keywords if one.arg == "default_factory"), None)
        if isinstance(factory, ast.Lambda):
            return self._value(factory.body, scope)
        if factory is not None:
            return self._result(self._value(factory, scope), [], {})
        return value.fields.get("default", value.arguments[0] if value.arguments else None)

    def _object(self, home: "tuple[Program, str]", arguments: Sequence[Any], keywords: Mapping[str, Any]) -> CallRecord:
        """An object of a class, kept as a call of it and of the classes of libraries that it extends."""
        module, name = home
        module.built.add(name)
        self.built.add(name)
        fields = module._fields(name)
        is_made = f"{name}.__init__" in module.functions
        if not is_made:
            fields |= dict(zip(fields, arguments, strict=False))
        if SPREAD in keywords:  # whatever it holds may stand for any of them
            fields = dict.fromkeys(fields, keywords[SPREAD])
        record = CallRecord(name, tuple(arguments), {**fields, **keywords})
        self.made += [record, *(CallRecord(one, record.arguments, record.fields) for one in module._outside(name))]
        if is_made and not self.guess:
            module.returned(f"{name}.__init__", [SELF, *arguments], keywords)
        return record

    def _given(self, of: Any) -> Any:
        """An object of a class as the command line fills it."""
        home = self._home(of)
        if home is None or home[1] not in home[0].classes:
            record = CallRecord(of.name if isinstance(of, Name) else "", (), dict(self.flags))
            self.built.add(record.last)
            self.made.append(record)
            return record
        fields, extends = home[0]._fields(home[1]), home[0]._outside(home[1])
        return self._object(home, [], {key: one for key, one in self.flags.items() if key in fields or extends})

    def _outside(self, name: str) -> list[str]:
        """The classes of libraries that a class of the file extends."""
        bases = [self._value(one, self.names) for one in self.classes[name].bases]
        named = [one.name for one in bases if isinstance(one, Name) and self._home(one) is None]
        return [one for one in named if one.rpartition(".")[2] not in known("plain_bases")]

    # --- statements ---

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Expr(ast.Constant()):
                pass
            case ast.FunctionDef(name) if scope is not self.names:
                self.functions.setdefault(name, node)
                self.stored[name] = scope
            case ast.While(_, body):
                self._run(body, scope)
            case ast.Import(names):
                folders = tuple(self.path.resolve().parents[:DEEP])
                for alias in names:
                    first = alias.name.partition(".")[0]
                    scope[alias.asname or first] = Name(alias.name if alias.asname else first, folders)
            case _:
                PythonModule._statement(self, node, scope)

    def _undecided(self, node: ast.If, scope: dict[str, Any]) -> None:
        for one in ast.walk(node.test):
            match one:
                case ast.Compare(ast.BinOp(_, ast.Mod(), by), [ast.Eq()], [ast.Constant(0)]) if takes_steps(node.body):
                    self.made.append(CallRecord(ACCUMULATED, (), {"steps": self._value(by, scope)}))
        before, self.guess = self.guess, ast.unparse(node.test)[:80]
        self._run([*node.body, *node.orelse], scope)
        self.guess = before

    def _loop(self, target: ast.expr, over: Any, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        PythonModule._loop(self, target, CallRecord("every") if isinstance(over, Unknown) else over, body, scope)

    def _assign_field(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, CallRecord):
            owner.fields[name] = value
        elif isinstance(owner, dict):
            owner[name] = value
        elif isinstance(owner, Unknown) and self._is_settings(owner):
            self.options[name] = value

    def _parts(self, value: Any, targets: Sequence[ast.expr]) -> list[Any]:
        if isinstance(value, CallRecord):
            return [CallRecord(value.name, value.arguments) for _ in targets]
        if isinstance(value, list) and 0 < len(value) < len(targets):
            return [*value, *map(unknown, targets[len(value) :])]
        return PythonModule._parts(self, value, targets)

    def _bound(self, node: ast.FunctionDef, scope: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(self.stored.get(node.name) or {})
        for name, value in scope.items():
            if isinstance(value, CallRecord) and value.last in known("options"):
                first = value.arguments[0] if value.arguments else value.fields.get("default")
                found[name] = Unknown(f"--{name}") if first in (..., None) else first
            else:
                found[name] = value
        for one in node.decorator_list:
            called = self._value(one, self.names)
            if not isinstance(called, CallRecord):
                continue
            flags = [str(flag).lstrip("-").replace("-", "_") for flag in called.arguments if str(flag)[:2] == "--"]
            if called.last == "option" and flags:
                found[flags[0]] = called.fields.get("default", Unknown(f"--{flags[0]}"))
            document = called.fields.get("config_name")
            if called.last in known("hydra") and isinstance(document, str) and scope:
                folder = str(called.fields.get("config_path") or "")
                document = document if document.endswith((".yaml", ".yml")) else f"{document}.yaml"
                found[next(iter(scope))] = self._loaded(str(PurePosixPath(folder, document)))
        return found

    # --- calls ---

    def _value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Lambda):
            PythonModule._value(self, node.body, scope | {one.arg: Unknown(one.arg) for one in node.args.args})
        return PythonModule._value(self, node, scope)

    def _loaded(self, name: str) -> Any:
        """What a document beside the program holds; `Unknown` where it is not there."""
        found = self.load(self.path.parent, name)
        self.made.append(CallRecord(DOCUMENT, (self.path.parent, name)))
        return Unknown(f"{name}, which is not beside the file", is_whole=True) if found is None else found

    def _method(self, name: str, owner: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if name == "add_argument" and arguments:
            option = str(arguments[-1]).lstrip("-").replace("-", "_")
            option = str(keywords.get("dest", option))
            switched = {"store_true": False, "store_false": True}.get(str(keywords.get("action")))
            absent = Unknown(f"--{option}") if keywords.get("required") is True else switched
            self.made.append(CallRecord(ARGUMENTS, (), {option: keywords.get("default", absent)}))
        match owner:
            case CallRecord("open") if name in ("read", "read_text"):
                return owner
            case str() if name in known("same_path"):
                return owner
            case str() if name in ("open", "read_text"):
                return CallRecord("open", (owner,))
            case str() if name == "joinpath" and all(isinstance(one, str) for one in arguments):
                return str(PurePosixPath(owner, *arguments))
            case CallRecord(fields=fields) if name.startswith("parse") and owner.last in known("parsers"):
                classes = owner.arguments[0] if owner.arguments else fields.get("dataclass_types")
                return [self._given(one) for one in (classes if isinstance(classes, list) else [classes])]
            case CallRecord() if (home := self._home(Name(f"{owner.last}.{name}"))) and home[1] in self.functions:
                return self.returned(home[1], [SELF, *arguments], keywords)
        own = [one for one in self.functions if one.endswith(f".{name}")] if owner == SELF else []
        if len(own) == 1:
            is_new = own[0] not in self.entered
            return self.returned(own[0], [SELF, *arguments], keywords) if is_new else Unknown(f"{name}()")
        result = PythonModule._method(self, name, owner, arguments, keywords)
        if result is None and isinstance(owner, CallRecord) and not name.startswith("parse"):
            return self.made[-1]
        return result

    def _result(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        name = self._called(function)
        last = name.rpartition(".")[2]
        first = arguments[0] if arguments else NOTHING
        if name == "input" and isinstance(first, str) and (prompt := _CONSENT.search(first)):
            return prompt[1].lower()  # whether to start
        if last == WORLD:
            return self.options.get(WORLD, Unknown(f"{WORLD}()"))
        if last in known("starters") and isinstance(first, Name) and (home := self._home(first)):
            if home[1] in home[0].classes:
                return self._given(first)
            return home[0].returned(home[1], keywords=self.flags)
        if last in known("loaders") and name.partition(".")[0] in known("documents"):
            path = _path_of(first)
            return self._loaded(path) if isinstance(path, str) else Unknown(f"what {name}() reads")
        if name in known("mappings") or last in known("mapping_classes"):
            return {**(first if isinstance(first, dict) else {}), **keywords}
        if last in known("same_path") and isinstance(first, str):
            return str(PurePosixPath(*arguments)) if all(isinstance(one, str) for one in arguments) else first
        if name == "os.path.join" and all(isinstance(one, str) for one in arguments):
            return str(PurePosixPath(*arguments))
        if name == "os.path.join" and (end := known_end(arguments, "/")):
            return Unknown(f"{name}()", end=end)
        if last in ("str", *known("same_path")) and isinstance(first, Unknown) and first.end:
            return first
        if name == "os.path.dirname" and isinstance(first, str):
            return str(PurePosixPath(first).parent)
        if name in ("hasattr", "getattr") and isinstance(first, Unknown) and self._is_settings(first):
            key = str(arguments[1]) if arguments[1:] else ""
            return NOTHING if key not in self.options else name == "hasattr" or self.options[key]
        if name in REFLECTIONS and arguments:
            return reflected(name, first, arguments[1:])
        if (home := self._home(function)) and home[1] in home[0].classes:
            return self._object(home, arguments, keywords)
        found = PythonModule._result(self, function, arguments, keywords)
        is_built = isinstance(found, CallRecord) and found.name in known("built")
        return Unknown(f"{last}()") if is_built and self._followed(function) else found

    def _followed(self, of: Any) -> "tuple[PythonModule, str] | None":
        home = self._home(of)
        if home and home[1] in home[0].functions:
            return home
        return PythonModule._followed(self, of)

    def _called(self, function: Any) -> str:
        if isinstance(function, Unknown) and function.text.isidentifier():
            return function.text  # what a parameter or a field of the program's own holds
        return PythonModule._called(self, function)


def _opened(record: CallRecord) -> CallRecord:
    """A call without its name, and so those of its sections, whose fields then have dotted names."""
    parts = {key: one for key, one in record.fields.items() if isinstance(one, CallRecord) and key in known("sections")}
    return CallRecord("", (), {**record.fields, **{key: _opened(one) for key, one in parts.items()}})


def _path_of(value: Any) -> Any:
    """The path of what a loader is given: a file that is open, or its name."""
    if isinstance(value, CallRecord) and value.name == "open" and value.arguments:
        return value.arguments[0]
    return value
