"""What a framework answers to a job."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NODE = 8
"""Processes of a node, as far as the checks of frameworks see them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a framework accepts a job.

    `where` is the file and line that refuses it, `given` its settings as the framework first has them, `args` what it
    resolves of an accepted one.
    """

    accepted: bool
    why: str = ""
    where: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException, given: Mapping[str, Any] | None = None) -> "Verdict":
        """A refusal by an exception."""
        return cls(False, f"{type(error).__name__}: {str(error)[:300]}", place(error), given or {})


def place(error: BaseException) -> str:
    """File and line that raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def processes(world: int) -> dict[str, str]:
    """The environment of the first of `world` processes."""
    return {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(min(world, NODE))}
