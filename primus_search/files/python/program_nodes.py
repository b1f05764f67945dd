"""What is in the syntax tree of a program, wherever it stands, and functions of Python's own over its objects.

cut_in(tree.body, {})      # 384: `ids[:MAX_LENGTH]`
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from primus_search.files.python.python_operators import NOTHING
from primus_search.files.python.python_values import CallRecord, Unknown


def layers_of(modules: Iterable[tuple[Sequence[ast.stmt], Mapping[str, ast.ClassDef]]]) -> list[str]:
    """The classes of layers that modules have and of which one of them makes objects."""
    own = [*modules]
    nodes = [node for body, _ in own for part in body for node in ast.walk(part)]
    made = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    classes = [pair for _, one in own for pair in one.items() if pair[0] in made]
    return [name for name, node in classes if extends_module(node)]


def extends_module(node: ast.ClassDef) -> bool:
    """Whether a class is one of layers."""
    return any(ast.unparse(base).endswith("Module") for base in node.bases)


def cut_in(body: Sequence[ast.stmt], known: Mapping[str, Any]) -> int | Unknown | None:
    """The number that rows are cut at under a name of the program's own (`min(MAX_LENGTH, ...)`, `ids[:MAX_LENGTH]`);
    `Unknown` where parts are cut at several, None where there is none."""
    nodes = [node for part in body for node in ast.walk(part)]
    named = ((target, one.value) for one in nodes if isinstance(one, ast.Assign) for target in one.targets)
    given = {at.id: one.value for at, one in named if isinstance(at, ast.Name) and isinstance(one, ast.Constant)}
    calls = [one for one in nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
    least = [arg for one in calls if ast.unparse(one.func) == "min" for arg in one.args]
    ends = [one.slice.upper for one in nodes if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Slice)]
    for places in (least, ends):
        names = sorted({one.id for one in places if isinstance(one, ast.Name) and "len" in one.id.lower()})
        found = {name: {**known, **given}.get(name) for name in names}
        whole = {name: one for name, one in found.items() if type(one) is int}
        if whole:
            return next(iter(whole.values())) if len(whole) == 1 else Unknown(" and ".join(whole))
    return None


def takes_steps(body: Sequence[ast.stmt]) -> bool:
    """Whether an optimizer takes a step there."""
    return any("optim" in ast.unparse(one) and ".step(" in ast.unparse(one) for one in body)


REFLECTIONS = ("setattr", "hasattr", "getattr", "vars", "asdict", "dataclasses.asdict", "OmegaConf.to_container")


def reflected(name: str, owner: Any, arguments: Sequence[Any]) -> Any:
    """What a function returns that treats an object as the mapping of its fields, changed in place."""
    fields = owner.fields if isinstance(owner, CallRecord) else owner if isinstance(owner, dict) else None
    key = arguments[0] if arguments else None
    if fields is None or (key is None) is not (name not in REFLECTIONS[:3]):
        return NOTHING
    if key is None:
        return dict(fields)
    if not isinstance(key, str):  # one of them, or all, are others
        if name == "setattr":
            fields.update(dict.fromkeys(fields, Unknown("a field that only a run names")))
        return NOTHING
    if name == "setattr":
        fields[key] = arguments[1] if arguments[1:] else None
        return None
    return key in fields if name == "hasattr" else fields.get(key, *arguments[1:2])
