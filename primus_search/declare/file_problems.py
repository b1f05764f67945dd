"""Problems and notes that are found in one document, collected so that all are shown at once."""

from dataclasses import dataclass, field
from typing import Any

from primus_search.base.errors import Problem
from primus_search.files.source import Document, Keys


@dataclass(slots=True)
class FileProblems:
    """What is wrong with a document, and what a reader of the result should know.

    `skip` names top-level keys whose structure is already known to be wrong.
    """

    document: Document
    skip: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, keys: Keys, what: str) -> None:
        """Note what is wrong with the value at some keys."""
        self.problems.append(self.document.problem(keys, what))

    def listed(self, key: str, given: Any) -> list[tuple[Any, Keys]]:
        """The entries of a key that takes a value or a list, each once, with its place; a problem for an empty list."""
        if not isinstance(given, list):
            return [(given, (key,))]
        if not given and key not in self.skip:
            least = "number" if key == "nodes" else "name"
            self.problem((key,), f"is an empty list; give at least one {least}")
        twice = dict.fromkeys(str(one) for i, one in enumerate(given) if one in given[:i])
        self.notes += [f"{key}: {one} is listed more than once; searched once" for one in twice]
        return [(one, (key, i)) for i, one in enumerate(given) if one not in given[:i]]
