"""Megatron-DeepSpeed: Megatron's lines with DeepSpeed's arguments and consumed tokens."""

from primus_search.runs.learn.logs import megatron_lm
from primus_search.runs.learn.megatron_lines import megatron_facts, printed_settings
from primus_search.runs.learn.reading import LogReading
from primus_search.runs.learn.transcript import Transcript, conclude

observe = megatron_lm.observe


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a Megatron-DeepSpeed log."""
    facts, assumed = megatron_facts(seen)
    if seen.text("ds_sequence_parallel_size") not in (None, "1"):
        seen.note("DeepSpeed's sequence parallelism (Ulysses)")
    if seen.text("random_ltd") == "True":
        seen.note("random-LTD drops tokens inside the layers")
    return conclude(seen, "megatron-deepspeed", facts, assumed, settings=printed_settings(seen))
