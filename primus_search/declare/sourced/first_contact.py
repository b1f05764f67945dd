"""Reads `hardware/sites/first_contact.yaml`: errors of a cluster that no fit has seen, and publishers in the fits."""

from dataclasses import dataclass
from functools import lru_cache

from primus_search.base.errors import InputError, Problem
from primus_search.declare.search_path import roots
from primus_search.declare.source import read
from primus_search.declare.sourced.records import Reading, build
from primus_search.values.machine.stack import SiteErrors

FILE = "hardware/sites/first_contact.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Errors at first contact, and the publishers whose own clusters have none beside those of their software."""

    errors: SiteErrors
    publishers: frozenset[str]

    def of(self, publisher: str) -> SiteErrors | None:
        """What the cluster of a publisher has; None where runs of theirs are in the fits."""
        return None if publisher in self.publishers else self.errors


@lru_cache(maxsize=1)
def load_sites() -> Sites:
    """The first file in reach. Raises InputError for one that holds something else, or where there is none."""
    path = next((root / FILE for root in roots() if (root / FILE).is_file()), None)
    if path is None:
        raise InputError([Problem(FILE, "is missing from the installation")])
    document = read(path)
    data = document.data if isinstance(document.data, dict) else {}
    reading = Reading(document)
    errors = build(SiteErrors, data.get("errors"), ("errors",), reading)
    if errors is None or reading.problems:
        raise InputError(reading.problems)
    return Sites(errors=errors, publishers=frozenset(map(str, data.get("publishers") or ())))
