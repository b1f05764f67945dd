"""The stack file of a site: it extends that of the chosen hypothesis and gives the numbers that its runs moved."""

import json
from collections.abc import Mapping
from typing import Any

from primus_search.base.units import to_base, yaml_keys
from primus_search.files.learned_stacks import HEAD
from primus_search.learning.hypotheses import NUMBERS
from primus_search.learning.site_stack import SiteStack
from primus_search.values.machine.stack import GROUP_OF, number_of

KEPT = 0.005
"""Relative difference from the hypothesis' number below which the runs said nothing of it."""


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "activation_share", "peaks_seen"):
        value = float(number_of(site.stack, field))
        is_kept = abs(value - float(number_of(site.chosen.stack, field))) <= KEPT * abs(value)
        key, value = _as_written(field, value)
        text = f"as {site.chosen.name}, {date}: own runs do not identify it" if is_kept else source
        groups.setdefault(GROUP_OF[field], {})[key] = {"value": value, "source": text}
    for field, value in site.chosen.settings.items():
        if field not in [number.field for number in NUMBERS]:
            groups.setdefault(GROUP_OF[field], {})[field] = {"value": value, "source": source}
    ends = ("low", "high", "runs")
    errors = {
        key: {end: {"value": round(float(band.__getattribute__(end)), 4), "source": source} for end in ends}
        for key, band in site.stack.errors.items()
    }
    runs = {
        name: {
            "regime": run.regime,
            "place": {"value": [round(at, 3) for at in run.place], "source": source},
            "ratio": {"value": round(run.ratio, 4), "source": source},
        }
        for name, run in site.stack.own_runs.items()
    }
    weights = "; ".join(f"{name} {weight:.2f}" for name, weight in site.leading)
    head = f"# Software of a site, {source}.\n# Probabilities of the hypotheses: {weights}.\n"
    head += f"# {site.warning}.\n" if site.warning else ""
    data = {**HEAD, "name": site.stack.name, "extends": site.chosen.stack.name, **groups, "errors": errors}
    data |= {"own_runs": runs} if runs else {}
    return head + "".join(_block(key, value) for key, value in data.items())


def _as_written(field: str, value: float) -> tuple[str, float]:
    """The YAML key of a number, with the unit in which it is 1 to 1000 where it has one, and its value in it."""
    key = field
    for one in yaml_keys(field):
        scaled = value / to_base(one, 1.0)[1] if one != field else value
        if 1.0 <= abs(scaled) < 1000.0:
            key = one
            break
    factor = to_base(key, 1.0)[1] if key != field else 1.0
    return key, float(f"{value / factor:.6g}")


def _block(key: str, value: Any, indent: int = 0) -> str:
    """A key of a YAML file; mappings of mappings as blocks, all else in the flow style that JSON is."""
    lead = "  " * indent
    is_block = isinstance(value, Mapping) and "value" not in value
    if not is_block:
        return f"{lead}{key}: {json.dumps(value, ensure_ascii=False)}\n"
    return f"{lead}{key}:\n" + "".join(_block(str(k), v, indent + 1) for k, v in value.items())
