"""Reads what measurements cover: `hardware/ranges/*.yaml` and `hardware/switches/*.yaml` (written by
`python -m tools.fit ranges`), and `hardware/sites/first_contact.yaml`, errors of a cluster that no fit has seen.

    shares:
      moe: {value: 0.78, pairs: 25, source: "..."}
    devices:
      B200:
        48 layers of 2048, 128 experts: [{runs: 5, fp8: mxfp8, deepep: true, cuda_graph: partial}]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.cost.confidence.switch_evidence import SWITCHES, SwitchEvidence
from primus_search.declare.search_path import roots
from primus_search.declare.source import Document, read
from primus_search.declare.sourced.records import Reading, build
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from primus_search.values.machine.accelerator import Range, Ranges
from primus_search.values.machine.stack import SiteErrors

RANGES = "hardware/ranges"
_KEYS = ("points", "low", "high", "source")


@lru_cache(maxsize=1)
def load_ranges() -> Ranges:
    """Every range in reach; an owner in an earlier root hides the same owner in a later one."""
    found: dict[str, dict[str, Range]] = {}
    problems: list[Problem] = []
    for root in roots():
        mine: dict[str, dict[str, Range]] = {}
        for path in sorted((root / RANGES).glob("*.yaml")):
            document = read(path)
            owners = document.data if isinstance(document.data, dict) else {}
            for owner, kinds in owners.items():
                for kind, raw in (kinds if isinstance(kinds, dict) else {}).items():
                    try:
                        mine.setdefault(owner, {})[kind] = _range(raw)
                    except (TypeError, ValueError) as error:
                        problems.append(_problem(document, owner, kind, error))
        found = mine | found
    if problems:
        raise InputError(problems)
    return found


def _range(raw: Any) -> Range:
    if not isinstance(raw, dict) or set(raw) != set(_KEYS):
        raise ValueError(f"expected {{{', '.join(_KEYS)}}}")
    low, high = (tuple(float(size) for size in raw[name]) for name in ("low", "high"))
    return Range(points=int(raw["points"]), low=low, high=high, source=str(raw["source"]))


def _problem(document: Document, owner: str, kind: str, error: Exception) -> Problem:
    return document.problem((owner, kind), str(error))


SWITCH_FOLDER = "hardware/switches"
RUNS, FORMAT = "runs", "fp8"
COLUMNS = (FORMAT, *SWITCHES)
"""What an entry may say beside how many runs: the number format of products, and switches."""


@lru_cache(maxsize=1)
def load_switches() -> SwitchEvidence:
    """What every file in reach says; a device in an earlier root hides the same device in a later one.

    Raises InputError for a file that holds something else.
    """
    sets: dict[str, dict[str, Candidates]] = {}
    shares: dict[str, float] = {}
    for root in roots():
        for path in sorted((root / SWITCH_FOLDER).glob("*.yaml")):
            document = read(path)
            data = document.data if isinstance(document.data, dict) else {}
            sets = {device: _sets(document, device, raw) for device, raw in (data.get("devices") or {}).items()} | sets
            shares = {name: float(raw["value"]) for name, raw in (data.get("shares") or {}).items()} | shares
    return SwitchEvidence(sets=sets, shares=shares)


def _sets(document: Document, device: str, raw: Any) -> dict[str, Candidates]:
    """The combinations of a device, by shape of the model."""
    found = {}
    for shape, entries in (raw if isinstance(raw, dict) else {}).items():
        try:
            rows = [{key: value for key, value in entry.items() if key != RUNS} for entry in entries]
            strange = sorted({key for row in rows for key in row} - set(COLUMNS))
            if strange or not rows:
                raise ValueError(f"expected {RUNS}, {FORMAT} and switches, found {', '.join(strange) or 'nothing'}")
            columns: dict[str, Any] = {name: [_value(row, name) for row in rows] for name in COLUMNS}
            found[shape] = Candidates.table(**columns)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError([document.problem(("devices", device, shape), str(error))]) from error
    return found


def _value(row: Mapping[str, Any], name: str) -> Any:
    """A switch of a combination as a column holds it."""
    knob = KNOB[name]
    if name not in row:
        return knob.column_default
    return row[name] if knob.words is None else knob.code(row[name])


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
