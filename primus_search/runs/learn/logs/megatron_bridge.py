"""Megatron-Bridge: its configuration as YAML, then Megatron's iteration lines."""

import re

from primus_search.runs.learn.megatron_lines import (
    LAYOUT_ARGUMENTS,
    MODEL_ARGUMENTS,
    SETTING_ARGUMENTS,
    megatron_facts,
    observe_iteration,
    observe_layout,
    observe_memory,
)
from primus_search.runs.learn.reading import Assumption, LogReading
from primus_search.runs.learn.transcript import Transcript, conclude, observe_configuration

_NAMES = frozenset((*LAYOUT_ARGUMENTS, *MODEL_ARGUMENTS, *SETTING_ARGUMENTS))
_LOCAL_RANK = re.compile(r"^\s*local_rank: (\d+)\s*$")


def observe(seen: Transcript, line: str) -> None:
    """One line of a Megatron-Bridge log."""
    if not seen.steps:
        observe_configuration(seen, line, _NAMES)
        rank = _LOCAL_RANK.match(line)
        if rank:
            seen.ranks.add(int(rank[1]))
    observe_layout(seen, line)
    observe_iteration(seen, line)
    observe_memory(seen, line)


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a Megatron-Bridge log."""
    if seen.text("gated_linear_unit") is not None:
        seen.facts.setdefault("swiglu", seen.facts["gated_linear_unit"])
    facts, assumed = megatron_facts(seen)
    if facts["gpus"] is None and len(seen.ranks) > 1 and seen.ranks == set(range(len(seen.ranks))):
        because = f"{len(seen.ranks)} local ranks print their configuration; the world size is not printed"
        assumed["gpus"] = Assumption(value=len(seen.ranks), because=because)
    return conclude(seen, "megatron-bridge", facts, assumed, settings=SETTING_ARGUMENTS)
