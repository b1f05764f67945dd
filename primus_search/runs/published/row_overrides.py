"""What differed in single runs of published tables, and no column says: `run_overrides.yaml` beside the tables.

    - runs: [tt-001, tt-002]
      set: {stack.attention_kernel: sdpa}
      reason: torchtitan uses cuDNN's attention since 2025-10; these runs are older
      source: torchtitan/models/attention.py

Keys: `stack.FIELD`, `stack.variant` (one that the stack's file lists), `hardware.FIELD` (accelerator or network; base
units), `model.FIELD`, or a column of the candidate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.declare.source import Document, read
from primus_search.values.candidates import DEFAULTS, Candidates
from primus_search.values.machine.cluster import Cluster
from primus_search.values.measured_run import overridden
from primus_search.values.model import Model

FILE, VARIANT = "run_overrides.yaml", "stack.variant"
_KEYS = ("runs", "set", "reason", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOverrides:
    """Values by key, and the reason of each."""

    values: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The variant of the stack's file that the run was made with; empty: the file as it stands."""
        return str(self.values.get(VARIANT, ""))

    def on_model(self, model: Model) -> Model:
        """The model with what differs; ValueError where that is no model."""
        return replace(model, **{k[len("model.") :]: v for k, v in self.values.items() if k.startswith("model.")})

    def on_cluster(self, cluster: Cluster) -> Cluster:
        """The cluster with what differs in its stack, accelerator and network."""
        named = {key: value for key, value in self.values.items() if key.startswith(("stack.", "hardware."))}
        machine = {key: value for key, value in named.items() if key != VARIANT}
        return overridden(cluster, machine)

    def on_candidates(self, candidates: Candidates) -> Candidates:
        """The candidate with the columns that differ."""
        columns = {name: value for name, value in self.values.items() if name in DEFAULTS}
        return Candidates.from_words(candidates.row(0) | columns) if columns else candidates

    def reason(self, key: str) -> str:
        """Why the number with this dotted path differs; empty where the row's own words say so."""
        part, _, path = key.partition(".")
        same = (name for name in self.reasons if name.startswith(f"{part}.") and f".{path}".endswith(name[len(part) :]))
        return next((self.reasons[name] for name in same), "")


NONE = RowOverrides()


@lru_cache(maxsize=64)
def overrides_beside(table: str) -> Mapping[str, RowOverrides]:
    """Overrides of the runs of a table by id; empty where no file stands beside it. Raises InputError for a bad one."""
    path = Path(table).parent / FILE
    return _read(read(path)) if table and path.is_file() else {}


def _read(document: Document) -> Mapping[str, RowOverrides]:
    problems: list[Problem] = []
    found: dict[str, RowOverrides] = {}
    entries = document.data if isinstance(document.data, list) else []
    if not entries:
        problems.append(document.problem((), f"expected a list of entries with {', '.join(_KEYS)}"))
    for i, entry in enumerate(entries):
        faults = _faults(entry)
        if faults:
            problems += [document.problem((i,), fault) for fault in faults]
            continue
        why = f"{entry['reason']} ({entry['source']})"
        for name in entry["runs"]:
            before = found.get(str(name), NONE)
            found[str(name)] = RowOverrides(
                values={**before.values, **entry["set"]}, reasons={**before.reasons, **dict.fromkeys(entry["set"], why)}
            )
    if problems:
        raise InputError(problems)
    return found


def _faults(entry: Any) -> list[str]:
    """What is wrong with one entry of the file."""
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        return [f"expected a mapping with {', '.join(_KEYS)}"]
    if not isinstance(entry["runs"], list) or not isinstance(entry["set"], dict):
        return ["expected runs: [ids] and set: {key: value}"]
    known = ("stack.", "hardware.", "model.")
    unknown = [key for key in entry["set"] if not str(key).startswith(known) and key not in DEFAULTS]
    return [f"unknown key {key!r}; a column of the candidate or {', '.join(known)}FIELD" for key in unknown]
