"""What a name of a Python file stands for: plain values, calls that are kept with their arguments, what only a run has.

CallRecord("Trainer.Config", fields={"training": CallRecord(...)}).at("training.steps")
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

EVERY = "every "
"""What begins the field that stands for all parts of a class (`model.traverse(RMSNorm.Config)`)."""


@dataclass(slots=True)
class CallRecord:
    """A call that is not followed: the dotted name, arguments by position, and fields: keywords and what is set later.

    A field that is read before it is set is a `CallRecord` without a name: what it holds is at its default.
    """

    name: str = ""
    arguments: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """The name without the modules before it; of `X.Config`, X."""
        return self.name.removesuffix(".Config").rpartition(".")[2]

    def part(self, name: str) -> Any:
        return self.fields.setdefault(name, CallRecord())

    def at(self, path: str, default: Any = None) -> Any:
        """What is set below it by a dotted name."""
        part: Any = self
        for step in path.split("."):
            if not isinstance(part, CallRecord) or step not in part.fields:
                return default
            part = part.fields[step]
        return part


@dataclass(frozen=True, slots=True)
class Name:
    """A name that something else defines, dotted."""

    name: str
    folders: tuple[Path, ...] = ()
    """Where the file may be that defines it."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only a run has, as it is written."""

    text: str
    is_whole: bool = False
    """Whether its parts are it, as those of a document that is not there."""
    end: str = ""
    """The names at the end of a path that are known."""


def is_open(value: Any) -> TypeGuard[Unknown | CallRecord | Name]:
    """Whether a value is no plain one, so that a test of it has no answer."""
    return isinstance(value, Unknown | CallRecord | Name)


def plain(value: Any) -> Any:
    """A value with calls as their keywords. Raises ValueError for one that only a run has."""
    match value:
        case CallRecord(fields=fields):
            return {name: plain(one) for name, one in fields.items()}
        case list():
            return [plain(one) for one in value]
        case Unknown() | Name():
            raise ValueError(f"{value} is known only when it runs")
    return value
