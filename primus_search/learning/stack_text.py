"""The stack file of a site: it extends that of the chosen hypothesis and gives the numbers that its runs moved."""

from typing import Any

from primus_search.base.units import in_readable_unit
from primus_search.files.hardware_files import load_stack
from primus_search.files.learned_stacks import HEAD
from primus_search.files.source import written
from primus_search.learning.inference.hypotheses import NUMBERS
from primus_search.learning.site_stack import SiteStack
from primus_search.values.machine.stack import GROUP_OF, number_of

KEPT = 0.005
"""Relative difference from the hypothesis' number below which the runs said nothing of it."""


def stack_yaml(site: SiteStack, date: str) -> str:
    """The stack file: it extends that of the chosen hypothesis and gives the learned numbers and the bands."""
    source = f"learned {date} from {len(site.runs)} own runs, from {site.chosen.name}"
    file = load_stack(site.chosen.stack.name)
    groups: dict[str, dict[str, Any]] = {}
    for field in (*(number.field for number in NUMBERS), "fixed_bytes", "activation_share", "peaks_seen"):
        value = float(number_of(site.stack, field))
        kept = [abs(value - float(number_of(one, field))) <= KEPT * abs(value) for one in (file, site.chosen.stack)]
        origin = f"as {site.chosen.name}" if kept[0] else "between the stacks that it may be"
        text = f"{origin}, {date}: own runs do not identify it" if kept[1] else source
        key, value = in_readable_unit(field, value)
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
    data |= {"varied": sorted(site.stack.varied)} if site.stack.varied else {}
    data |= {"own_runs": runs} if runs else {}
    return head + written(data, has_dense_leaves=True)
