"""TensorBoard event files, read with the `tensorboard` package where it is installed.

Megatron writes its arguments as texts, and per iteration `iteration-time`, `batch-size` and torch's memory counters;
NeMo, torchtitan and MaxText write their step time under tags of their own. Without a step time the wall time between
losses counts.
"""

import importlib
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from primus_search.base.guards.values import finite_number
from primus_search.base.units import GIB
from primus_search.learning.conclusion import conclude
from primus_search.learning.logs.megatron import SETTING_ARGUMENTS, megatron_facts
from primus_search.learning.readers import refuse
from primus_search.learning.reading import LogReading, MemoryKind, StepLine
from primus_search.learning.transcript import Transcript

NAME = "tensorboard"
TIME_TAGS = ("iteration-time", "train_step_timing in s", "time_metrics/end_to_end(s)", "perf/step_time_seconds")
LOSS_TAGS = ("lm loss", "reduced_train_loss", "loss_metrics/global_avg_loss", "train/loss")
_MEMORY_TAGS = {
    "mem-max-allocated-bytes": (MemoryKind.ALLOCATED, 1.0),
    "mem-reserved-bytes": (MemoryKind.RESERVED, 1.0),
    "memory/max_reserved(GiB)": (MemoryKind.RESERVED, GIB),
}
_TEXT_SUFFIX = "/text_summary"


def owns(path: Path, head: bytes) -> bool:
    """Whether a file is a TensorBoard event file: by its name, or by the version record it begins with."""
    return ".tfevents." in path.name or b"brain.Event:" in head[:64]


def _events(path: Path) -> Iterator[Any]:
    """Every complete event of a file; what is cut off at the end is left out."""
    try:
        loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
        decode_error = importlib.import_module("google.protobuf.message").DecodeError
        record_error = importlib.import_module("tensorboard.compat").tf.errors.OpError
    except ImportError as error:
        reason = "is a TensorBoard event file; reading it takes the package tensorboard: pip install tensorboard"
        raise refuse(path, reason) from error
    try:
        yield from loader.LegacyEventFileLoader(str(path)).Load()
    except (ValueError, struct.error, decode_error, record_error) as error:
        raise refuse(path, f"holds a record that is no TensorBoard event: {error}") from error


def read(path: Path) -> LogReading:
    """The run of one event file."""
    seen = Transcript(source=str(path))
    losses: list[tuple[int, float]] = []
    batch: int | None = None
    for event in _events(path):
        for value in event.summary.value:
            number = finite_number(value.simple_value)
            if value.tag.endswith(_TEXT_SUFFIX) and value.tensor.string_val:
                seen.facts[value.tag.removesuffix(_TEXT_SUFFIX)] = value.tensor.string_val[0].decode(errors="replace")
            elif number is None:
                continue
            elif value.tag == "batch-size":
                batch = int(number)
            elif value.tag in _MEMORY_TAGS:
                kind, unit = _MEMORY_TAGS[value.tag]
                seen.peak(kind, number * unit)
            elif value.tag == "world-size":
                seen.facts["line:world"] = str(int(number))
            elif value.tag in TIME_TAGS:
                seen.add_step(StepLine(iteration=event.step, seconds=number, shape=(batch,)))
            elif value.tag in LOSS_TAGS:
                losses.append((event.step, event.wall_time))
    if not seen.steps:
        for (first, begin), (last, end) in pairwise(losses):
            if last > first and end > begin:
                seen.add_step(StepLine(iteration=last, seconds=(end - begin) / (last - first), span=last - first))
    if not seen.steps:
        raise refuse(path, f"holds none of the tags {', '.join((*TIME_TAGS, *LOSS_TAGS))}")
    facts, assumed = megatron_facts(seen)
    return conclude(seen, NAME, facts, assumed, settings=SETTING_ARGUMENTS)
