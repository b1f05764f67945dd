"""Megatron-Bridge, NeMo 1 and 2 (Lightning): a configuration as YAML; step timing of the bar, DLLogger or console.

`train_step_timing` is a running mean over a few steps; the precise lines are preferred to the bar's three digits.
"""

import re

from primus_search.learning.logs import megatron
from primus_search.learning.transcript import Transcript, clock_s, observe_configuration, observe_progress

_NAMES = frozenset(("num_nodes", "devices", "activation", "bias")).union(
    megatron.LAYOUT_ARGUMENTS, megatron.MODEL_ARGUMENTS, megatron.SETTING_ARGUMENTS
)
_BAR = re.compile(r"global_step=(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?=[\s,|\]]|$)")
_BAR_CLOCK = re.compile(r"(?<!\d)\d{1,12}/\d{1,12} \[((?:\d{1,6}:)?\d{1,6}:\d\d)<")
_GROUPS = re.compile(
    r"All (context parallel|tensor model parallel|pipeline model parallel) group ranks: \[\[([\d, ]+)\]"
)


def observe(seen: Transcript, line: str) -> None:
    """Configuration, groups of ranks, and the bar of a release without step timing: its clock has whole seconds."""
    if not seen.steps:
        observe_configuration(seen, line, _NAMES)
        groups = _GROUPS.search(line) if "group ranks: " in line else None
        if groups:
            seen.facts[f"line:{groups[1].replace(' ', '-')}"] = str(groups[2].count(",") + 1)
        if "swiglu" in (seen.text("activation") or ""):
            seen.facts.setdefault("swiglu", "True")
    if "global_step=" in line and "train_step_timing" not in line:
        step, clock = _BAR.search(line), _BAR_CLOCK.search(line)
        if step and clock:
            observe_progress(seen, round(float(step[1])), clock_s(clock[1]))


conclude_run = megatron.conclude_run
