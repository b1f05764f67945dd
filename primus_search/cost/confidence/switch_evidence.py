"""Which switches (`Knob.is_switch`) measured runs had on together, per device, model and number format of products.

A projected gain over the nearest combination that was measured is a claim that nobody checked, whether a switch is on
or off that was not in the run (DeepEP without an overlap that every run with DeepEP had). Of such gains, measured
pairs of runs show on average the share `shares[family]` of what was projected of them with their source and model left
out of the fit: the expected gain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from primus_search.space.memo import distinct
from primus_search.values.candidates import Bools, Candidates, Floats, Ints, joined
from primus_search.values.knobs import KNOBS
from primus_search.values.model import Model

SWITCHES = tuple(knob.name for knob in KNOBS if knob.is_switch)
_DEFAULTS = np.array([[knob.column_default for knob in KNOBS if knob.is_switch]], dtype=np.int64)

Sets = Mapping[str, Mapping[str, Candidates]]
"""Device -> `shape_of` a model, or a family (counts for all its models) -> one row per combination of switches and
number format that was measured, the one with most runs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEvidence:
    """What was measured, and the share of unmeasured gains to expect, by family (`dense` or `moe`)."""

    sets: Sets
    shares: Mapping[str, float]

    def beside(self, sets: Sets) -> "SwitchEvidence":
        """The same with more measured combinations."""
        merged = {device: dict(by_name) for device, by_name in self.sets.items()}
        for device, by_name in sets.items():
            for name, rows in by_name.items():
                known = merged.setdefault(device, {})
                known[name] = joined([known[name], rows]) if name in known else rows
        return replace(self, sets=merged)

    def measured_part(self, device: str, model: Model, table: Candidates) -> Candidates:
        """The table with switches as in the nearest combination that a run of the model on the device had together.

        Compared in the row's number format; a switch that is off in the combination and on in the row is twice as far
        as any other difference. A row with every switch off stays; where there are no runs, all are off.
        """
        by_model = self.sets.get(device, {})
        known = [by_model[name] for name in (shape_of(model), family(model)) if name in by_model]
        codes, formats = _codes(table), table.fp8
        number, first = distinct([*codes.T, formats])
        nearest = np.empty((len(first), len(SWITCHES)), dtype=np.int64)
        for number_format in np.unique(formats[first]):
            here = formats[first] == number_format
            own = [_codes(rows.take(np.flatnonzero(rows.fp8 == number_format))) for rows in known]
            measured = np.concatenate(own) if own else _DEFAULTS[:0]
            nearest[here] = _nearest(codes[first][here], measured if len(measured) else _DEFAULTS)
        columns = {name: nearest[number, i] for i, name in enumerate(SWITCHES)}
        return table.with_columns(columns)

    def expected_share(self, model: Model, step_s: Floats, measured_part_s: Floats) -> Floats:
        """Expected over projected rate of rows, from their step and that of their measured part, in seconds.

        Only gains are discounted: a switch that slows a row down is taken at its projection.
        """
        gain = np.maximum(np.log(measured_part_s / step_s), 0.0)
        return np.exp((self.shares.get(family(model), 1.0) - 1.0) * gain)


def shape_of(model: Model) -> str:
    """Layers, width and experts: models of one shape are one model under whatever name."""
    experts = f", {model.moe.num_experts} experts" if model.moe is not None else ""
    return f"{model.num_layers} layers of {model.hidden}{experts}"


def family(model: Model) -> str:
    """Models that switches act alike on."""
    return model.family


def unmeasured(table: Candidates, measured_part: Candidates) -> Bools:
    """Rows that differ from their measured part."""
    mask: Bools = (_codes(table) != _codes(measured_part)).any(axis=1)
    return mask


def _nearest(rows: Ints, known: Ints) -> Ints:
    """The nearest known combination of every row, of equally near ones the first; a row with every switch off stays."""
    differs = rows[:, None, :] != known[None, :, :]
    is_off = (known == _DEFAULTS)[None, :, :]
    distance = differs.sum(axis=2) + (differs & is_off).sum(axis=2)
    is_plain = (rows == _DEFAULTS).all(axis=1)
    return np.where(is_plain[:, None], rows, known[distance.argmin(axis=1)])


def _codes(table: Candidates) -> Ints:
    columns = table.columns()
    return np.stack([columns[name].astype(np.int64) for name in SWITCHES], axis=1)
