"""Reads `hardware/switches/*.yaml`: switches that measured runs had together. `python -m tools.fit ranges` writes it.

shares:
  moe: {value: 0.78, pairs: 25, source: "..."}
devices:
  B200:
    48 layers of 2048, 128 experts: [{runs: 5, fp8: mxfp8, deepep: true, cuda_graph: partial}]
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from primus_search.base.errors import InputError
from primus_search.cost.confidence.switch_evidence import SWITCHES, SwitchEvidence
from primus_search.declare.search_path import roots
from primus_search.declare.source import Document, read
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB

FOLDER = "hardware/switches"
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
        for path in sorted((root / FOLDER).glob("*.yaml")):
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
