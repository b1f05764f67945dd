"""DeepSpeed without Megatron: its timer and its pipeline engine count samples; seconds a step need the batch."""

from dataclasses import replace
from statistics import median

from primus_search.learning.conclusion import conclude, gpus_of_batch
from primus_search.learning.log_table import LogTable
from primus_search.learning.reading import Assumption, LogReading
from primus_search.learning.transcript import PREFERRED, Transcript, observe_nothing

BATCH_SLACK = 0.25
"""A batch from times and rates counts where it is this near to a multiple of the micro-batch, in micro-batches."""


observe = observe_nothing


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of a DeepSpeed log."""
    facts = table.fields(seen)
    micro = facts["micro_batch_size"]
    accumulation = seen.whole("gradient_accumulation_steps", "flag:gradient_accumulation_steps")
    has_pipeline = PREFERRED in seen.scratch
    alone = ("ep",) if has_pipeline else ("tp", "pp", "cp", "ep")
    assumed = {name: Assumption(value=1, because="plain DeepSpeed prints none") for name in alone}
    batch = facts["global_batch_size"] = facts["global_batch_size"] or _batch_from_times(seen, micro, assumed)
    facts["gpus"] = facts["gpus"] or gpus_of_batch(batch, micro, accumulation)
    if batch is None:
        seen.note("samples per second without a printed batch: no step time")
    if not has_pipeline:
        seen.steps = [replace(line, seconds=line.seconds * (batch or 0)) for line in seen.steps]
    seen.note("sequences may be shorter than the printed length")
    return conclude(seen, table.name, facts, assumed, settings=table.settings, samples_are_full=False)


def _batch_from_times(seen: Transcript, micro: int | None, assumed: dict[str, Assumption]) -> int | None:
    """The global batch as samples/s times seconds a step, where that is near a multiple of the micro-batch."""
    products = seen.scratch.get("batches", [])
    if not products or not micro:
        return None
    count = median(products) / micro
    if round(count) < 1 or abs(count - round(count)) > BATCH_SLACK:
        return None
    batch = int(micro * round(count))
    assumed["global_batch_size"] = Assumption(
        value=batch, because="samples/s times the time between lines, rounded to a multiple of the micro-batch"
    )
    return batch
