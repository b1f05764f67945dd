"""Fields of configuration classes, read from sources as text: inherited ones, nested classes, classes imported by name.

    fields = Sources([root]).fields(Path(".../torchtitan/trainer.py"), "Trainer.Config")

Nothing is imported, so a framework is read whose dependencies are not installed.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from primus_search.files.python.python_module import module_file

MAX_DEPTH = 6
"""Nested configuration classes; deeper ones are classes that name themselves."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field with its annotation and its default as the source writes them; `default` is empty where it has none."""

    name: str
    annotation: str
    default: str
    is_settable: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """A class and the module that declares it."""

    path: Path
    node: ast.ClassDef


class Sources:
    """Classes of Python files below some folders, found from a module by the name that it uses."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(roots)
        self.names = cache(self._names)

    def _names(self, path: Path) -> dict[str, ast.ClassDef | tuple[str, str] | ast.expr]:
        """What each name of a module is: a class, (module, name) that it is imported from, or what it is set to."""
        found: dict[str, ast.ClassDef | tuple[str, str] | ast.expr] = {}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = self._absolute(path, node)
                found.update({one.asname or one.name: (module, one.name) for one in node.names})
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, node.value)
        return found

    def _absolute(self, path: Path, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        root = next(one for one in self.roots if path.is_relative_to(one))
        folder = path.relative_to(root).parts[: -node.level]
        return ".".join((*folder, *([node.module] if node.module else [])))

    def file(self, module: str) -> Path | None:
        """The file of a module, where it is below a root."""
        found = (module_file(root, module.split(".")) for root in self.roots)
        return next((path for path in found if path), None)

    def find(self, path: Path, name: str) -> Found | None:
        """The class that a module means by a name, `Outer.Inner` for a nested one."""
        head, *nested = name.split(".")
        found = self._top(path, head, 0)
        for one in nested:
            found = found and self._inner(found, one)
        return found

    def _inner(self, outer: Found, name: str) -> Found | None:
        """A nested class, that of a base where the class itself has none."""
        for node in outer.node.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return Found(outer.path, node)
        inherited = (self._inner(base, name) for base in self._bases(outer))
        return next((one for one in inherited if one), None)

    def _bases(self, of: Found) -> list[Found]:
        """Classes that a class inherits from, as far as they are below a root."""
        found = (self.find(of.path, ast.unparse(base)) for base in of.node.bases)
        return [one for one in found if one and one.node is not of.node]

    def _top(self, path: Path, name: str, depth: int) -> Found | None:
        value = self.names(path).get(name)
        if isinstance(value, ast.ClassDef):
            return Found(path, value)
        if isinstance(value, tuple) and depth < MAX_DEPTH:
            module, original = value
            file = self.file(module)
            return self._top(file, original, depth + 1) if file else None
        return None

    def fields(self, path: Path, name: str) -> list[Field]:
        """Fields of a class, nested configurations with dots; KeyError where the class is not found."""
        found = self.find(path, name)
        if found is None:
            raise KeyError(f"{path}: no class {name}")
        return list(self._nested(found, "", ()))

    def _nested(self, found: Found, prefix: str, above: tuple[str, ...]) -> Iterator[Field]:
        for field, path in self._own(found).values():
            if not field.is_settable:
                continue
            inner = self._configuration(path, field)
            key = f"{prefix}{field.name}"
            if inner and inner.node.name not in above[-1:] and len(above) < MAX_DEPTH:
                yield from self._nested(inner, f"{key}.", (*above, inner.node.name + str(inner.path)))
            else:
                yield Field(key, field.annotation, self._literal(path, field.default))

    def _own(self, found: Found) -> dict[str, tuple[Field, Path]]:
        """Fields of a class with those of its bases, each with the module that declares it."""
        fields: dict[str, tuple[Field, Path]] = {}
        for base in reversed(self._bases(found)):
            fields |= self._own(base)
        for node in found.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                field = _field(node)
                if not field.annotation.startswith("ClassVar") and not field.name.startswith("_"):
                    fields[field.name] = (field, found.path)
        return fields

    def _configuration(self, path: Path, field: Field) -> Found | None:
        """The configuration class of a field that is one: its default's, else that of its annotation."""
        if field.default.startswith("None"):
            return None
        for text in (_factory(field.default), field.annotation):
            if text.replace(".", "").replace("_", "").isalnum():
                found = self.find(path, text)
                if found and self._own(found):
                    return found
        return None

    def _literal(self, path: Path, default: str) -> str:
        """A default; a constant of the module as its value."""
        value = self.names(path).get(default)
        return ast.unparse(value) if isinstance(value, ast.Constant) else default


def _field(node: ast.AnnAssign) -> Field:
    assert isinstance(node.target, ast.Name)
    annotation = ast.unparse(node.annotation)
    default, is_settable = "" if node.value is None else ast.unparse(node.value), True
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).split(".")[-1] == "field":
        words = {str(one.arg): one.value for one in node.value.keywords}
        is_settable = ast.unparse(words["init"]) != "False" if "init" in words else True
        if "default_factory" in words:
            default = f"{ast.unparse(words['default_factory'])}()"
        else:
            default = ast.unparse(words["default"]) if "default" in words else ""
    return Field(node.target.id, annotation, default, is_settable)


def _factory(default: str) -> str:
    """The class that a default is made of: `Training()` is of `Training`, `lambda: A.B(x=1)` of `A.B`."""
    text = default.removesuffix("()").removeprefix("(").removesuffix(")")
    return text.removeprefix("lambda: ").partition("(")[0].strip()
