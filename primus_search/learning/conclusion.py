"""The reading that the transcript of a log amounts to: the reader's own facts with what every log may hold."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from primus_search.base.units import GIB
from primus_search.learning.reading import Assumption, LogReading
from primus_search.learning.transcript import Transcript

RATE_SLACK = 0.10
"""Relative difference of a printed and a computed rate from which on it is said."""


def gpus_of_batch(batch: int | None, micro: int | None, accumulation: int | None) -> int | None:
    """Data-parallel GPUs as the global batch over micro-batch and accumulation; None where they do not divide it."""
    if batch and micro and accumulation and batch % (micro * accumulation) == 0:
        return batch // (micro * accumulation)
    return None


def product(*numbers: int | None) -> int | None:
    """The product of counts, None where one of them is not known."""
    known = [number for number in numbers if number is not None]
    return math.prod(known) if len(known) == len(numbers) else None


def tokens_per_s_per_gpu(reading: Mapping[str, Any]) -> float | None:
    """Tokens/s/GPU from batch, sequence length, GPUs and step time, where all of them are known."""
    names = ("global_batch_size", "seq_length", "step_s", "gpus")
    known = [float(part) for part in map(reading.get, names) if part is not None]
    if len(known) < len(names):
        return None
    batch, length, step_s, gpus = known
    return batch * length / step_s / gpus


def conclude(
    seen: Transcript,
    framework: str,
    facts: Mapping[str, Any],
    assumed: Mapping[str, Assumption] | None = None,
    *,
    settings: Iterable[str] | Mapping[str, Any] = (),
    samples_are_full: bool = True,
) -> LogReading:
    """The reading of a transcript: the reader's own facts with what every log has in common.

    `facts`: fields of `LogReading` that the reader found. `settings`: names of printed facts to keep, None where
    printed as none, or the settings themselves.
    Where every sample is a full sequence, a rate that is not printed follows from batch, length,
    GPUs and step.
    """
    found = seen.steady()
    peak, kind = seen.memory()
    values: dict[str, Any] = {
        "step_s": found.step_s if found else None,
        "noise": found.noise if found else None,
        "steps": len(found.lines) if found else 0,
        "tokens_per_s_per_gpu": found.rate if found else None,
        "peak_memory_bytes": peak,
        "memory_kind": kind,
        "device": seen.devices[0] if len(seen.devices) == 1 else None,
        "died": seen.died(),
        "device_bytes": float(seen.facts["device_GiB"]) * GIB if "device_GiB" in seen.facts else None,
    } | dict(facts)
    computed = tokens_per_s_per_gpu(values) if samples_are_full else None
    printed = values["tokens_per_s_per_gpu"]
    if printed is None:
        values["tokens_per_s_per_gpu"] = computed
    elif printed and computed and abs(printed / computed - 1.0) > RATE_SLACK:
        seen.note(f"prints {printed:,.0f} tokens/s/GPU; batch, length, GPUs and step time give {computed:,.0f}")
    if found is None and seen.steps:
        seen.note("too few iterations for a steady step time")
    if isinstance(settings, Mapping):
        kept = dict(settings)
    else:
        kept = {name: seen.text(flag) for name in settings if (flag := "flag:" + name) in seen.facts}
        kept |= {name: seen.text(name) for name in settings if name in seen.facts}
    return LogReading(
        source=seen.source,
        framework=framework,
        settings=kept,
        assumed=dict(assumed or {}),
        not_modelled=tuple(seen.notes),
        lines=tuple(seen.step_lines),
        **values,
    )
