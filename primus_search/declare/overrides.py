"""Values from the command line and the environment, laid over a space file before it is checked.

Flags win over the environment, the environment over the file. An overridden value keeps its origin, so that a message
about it points at the flag or variable, and the run can record what won.

    --nodes 32   --set tp=8   --set micro_batch_size=[1,2]   --set search.method=tpe   --set hardware.nic_GBps=100
    PRIMUS_TP  PRIMUS_PP  PRIMUS_EP  NNODES  GPUS_PER_NODE
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.declare.axes import AXIS
from primus_search.declare.space_schema import SECTIONS, SpaceFile
from primus_search.files.source import Document, Keys, parse, plain
from primus_search.space import Override
from primus_search.space.tokens import axis_name
from primus_search.values.knobs import KNOBS

ENVIRONMENT: Mapping[str, Keys] = {
    **{knob.variable: ("space", knob.name) for knob in KNOBS if knob.variable},
    "NNODES": ("nodes",),
    "GPUS_PER_NODE": ("gpus_per_node",),
}
"""The variables AMD Primus reads, and the key of a space file each stands for."""


@dataclass(frozen=True, slots=True)
class _Given:
    keys: Keys
    value: Any
    text: str
    origin: str


def applied(
    document: Document, *, nodes: int | None, sets: Sequence[str], environ: Mapping[str, str]
) -> tuple[Document, tuple[Override, ...], list[Problem]]:
    """The document with overrides laid over it, which of them won, and what is wrong with those that were left out.

    One of `sets` is `key=value`, from `--set`; or `--flag key=value`, from a flag that stands for that key.
    """
    problems: list[Problem] = []
    given = [*_from_environment(environ), *_from_sets(sets, problems)]
    if nodes is not None:
        given.append(_Given(("nodes",), nodes, str(nodes), "--nodes"))
    if not isinstance(document.data, dict) or not given:
        return document, (), problems
    data, origins = dict(document.data), dict(document.origins)
    winners: dict[Keys, Override] = {}
    for one in given:
        _put(data, one.keys, one.value)
        origins[one.keys] = one.origin
        winners.pop(one.keys, None)
        winners[one.keys] = Override(key=".".join(str(k) for k in one.keys), value=one.text, origin=one.origin)
    return Document(document.name, data, document.lines, origins), tuple(winners.values()), problems


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for variable, keys in ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if text:
            yield _Given(keys, plain(text), text, f"${variable}")


def _from_sets(sets: Sequence[str], problems: list[Problem]) -> Iterator[_Given]:
    for given in sets:
        flag, _, text = given.partition(" ") if given.startswith("--") else ("", "", given)
        name, equals, value = text.partition("=")
        origin = flag or f"--set {text}"
        keys = key_path(name.strip())
        if not equals or not name.strip() or not value.strip():
            problems.append(Problem(origin, f"write {flag or '--set'} key=value, for example --set tp=8"))
        elif keys is None:
            what = f"unknown key '{name.strip()}'{did_you_mean(name.strip(), _bare_names())}"
            problems.append(Problem(origin, what))
        else:
            try:
                yield _Given(keys, parse(value, origin).data, value.strip(), origin)
            except InputError as error:
                problems += [Problem(origin, problem.what) for problem in error.problems]


def set_values(sets: Sequence[str]) -> dict[str, str]:
    """What `--set` gives as text, by the dotted key of a space file, or by a name that is none; the last one wins."""
    pairs = ([part.strip() for part in text.partition("=")[::2]] for text in sets)
    return {".".join(map(str, key_path(name) or (name,))): value for name, value in pairs}


def key_path(name: str) -> Keys | None:
    """The key of a space file that a dotted name or a bare axis, workload or search name stands for."""
    name = axis_name(name)
    if name.startswith(("hardware.", "stack.")):
        return ("space", name)
    first, _, rest = name.partition(".")
    if first == "space" and rest:
        return ("space", axis_name(rest))
    if first in SpaceFile.model_fields:
        return tuple(name.split("."))
    section = next((section for section in _ALONE if name in SECTIONS[section]), None)
    return (section, name) if section else None


_ALONE = ("space", "workload", "search")


def _bare_names() -> list[str]:
    return [*AXIS, *SpaceFile.model_fields, *(name for section in _ALONE[1:] for name in SECTIONS[section])]


def _put(data: dict[str, Any], keys: Keys, value: Any) -> None:
    """Set a nested value, copying every mapping on the way; a scalar in the way is replaced."""
    for key in keys[:-1]:
        inner = data.get(str(key))
        copied = dict(inner) if isinstance(inner, dict) else {}
        data[str(key)] = copied
        data = copied
    data[str(keys[-1])] = value
