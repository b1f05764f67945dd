"""Primus on its Megatron backend: iteration lines with current/average values and the device's memory."""

import re

from primus_search.runs.learn.logs import megatron_lm
from primus_search.runs.learn.megatron_lines import megatron_facts, printed_settings
from primus_search.runs.learn.reading import LogReading, MemoryKind
from primus_search.runs.learn.transcript import GIB, Transcript, conclude

_DEVICE = re.compile(r"(?:hip|rocm) mem usage/free/total/usage_ratio: (\d+(?:\.\d+)?)GB")
_WORST_RANK = re.compile(r"rocm max mem usage/usage_ratio: (\d+(?:\.\d+)?)GB")


def observe(seen: Transcript, line: str) -> None:
    """One line of a Primus log."""
    megatron_lm.observe(seen, line)
    if "mem usage" in line:
        for pattern in (_DEVICE, _WORST_RANK):
            for size in pattern.findall(line):
                seen.peak(MemoryKind.DEVICE, float(size) * GIB)


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a Primus log."""
    facts, assumed = megatron_facts(seen)
    return conclude(seen, "primus", facts, assumed, settings=printed_settings(seen))
