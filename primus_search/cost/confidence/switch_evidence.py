"""Which switches (`Knob.is_switch`) measured runs had on together, per device and family of models.

A projected gain of switches that no run on the device had together is a claim that nobody checked. Of such gains,
measured pairs of runs show on average the share `shares[family]` of what was projected of them with their source left
out of the fit: the expected gain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from primus_search.candidates import Bools, Candidates, Floats, Ints, joined
from primus_search.cost.memo import distinct
from primus_search.knobs import KNOBS
from primus_search.model import Model

SWITCHES = tuple(knob.name for knob in KNOBS if knob.is_switch)
_DEFAULTS = np.array([[knob.column_default for knob in KNOBS if knob.is_switch]], dtype=np.int64)

Sets = Mapping[str, Mapping[str, Candidates]]
"""Device -> `dense` or `moe` -> one row per combination of switches that was measured, the one with most runs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEvidence:
    """What was measured, and the share of unmeasured gains to expect, by family."""

    sets: Sets
    shares: Mapping[str, float]

    def beside(self, sets: Sets) -> "SwitchEvidence":
        """The same with more measured combinations."""
        merged = {device: dict(by_family) for device, by_family in self.sets.items()}
        for device, by_family in sets.items():
            for name, rows in by_family.items():
                known = merged.setdefault(device, {})
                known[name] = joined([known[name], rows]) if name in known else rows
        return replace(self, sets=merged)

    def measured_part(self, device: str, model: Model, table: Candidates) -> Candidates:
        """The table with every switch that no run on the device had beside the others at a measured value.

        Each row is held against the nearest combination, and what that one lacks is set to its value: a switch that
        is off there is twice as far as one at another value. Where the device and family have no runs, all are off.
        """
        found = self.sets.get(device, {}).get(family(model))
        known = _DEFAULTS if found is None else _codes(found)
        codes = _codes(table)
        number, first = distinct(list(codes.T))
        rows = codes[first]
        is_on = rows != _DEFAULTS
        lacking = is_on[:, None, :] & (rows[:, None, :] != known[None, :, :])
        distance = lacking.sum(axis=2) + (lacking & (known == _DEFAULTS)[None, :, :]).sum(axis=2)
        best = known[distance.argmin(axis=1)]
        nearest = np.where(is_on & (rows != best), best, rows)[number]
        columns = {name: nearest[:, i] for i, name in enumerate(SWITCHES)}
        return table.with_columns(columns)

    def expected_share(self, model: Model, step_s: Floats, measured_part_s: Floats) -> Floats:
        """Expected over projected rate of rows, from their step and that of their measured part, in seconds.

        Only gains are discounted: a switch that slows a row down is taken at its projection.
        """
        gain = np.maximum(np.log(measured_part_s / step_s), 0.0)
        share: Floats = np.exp((self.shares.get(family(model), 1.0) - 1.0) * gain)
        return share


def family(model: Model) -> str:
    """Models that switches act alike on."""
    return "moe" if model.is_moe else "dense"


def unmeasured(table: Candidates, measured_part: Candidates) -> Bools:
    """Rows that differ from their measured part."""
    found: Bools = (_codes(table) != _codes(measured_part)).any(axis=1)
    return found


def _codes(table: Candidates) -> Ints:
    columns = table.columns()
    return np.stack([columns[name].astype(np.int64) for name in SWITCHES], axis=1)
