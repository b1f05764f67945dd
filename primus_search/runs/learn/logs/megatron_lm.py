"""Megatron-LM and Megatron-Core's example scripts: argument dump, iteration lines, torch's memory report."""

from primus_search.runs.learn.megatron_lines import (
    megatron_facts,
    observe_iteration,
    observe_layout,
    observe_memory,
    observe_restart,
    printed_settings,
)
from primus_search.runs.learn.reading import LogReading
from primus_search.runs.learn.transcript import Transcript, conclude, observe_dotted, observe_flags


def observe(seen: Transcript, line: str) -> None:
    """One line of a Megatron-LM log."""
    observe_restart(seen, line)
    if not seen.steps:
        observe_dotted(seen, line)
        observe_flags(seen, line)
        observe_layout(seen, line)
    observe_iteration(seen, line)
    observe_memory(seen, line)


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a Megatron-LM log."""
    facts, assumed = megatron_facts(seen)
    return conclude(seen, "megatron-lm", facts, assumed, settings=printed_settings(seen))
