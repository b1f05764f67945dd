"""Workers that stand in for the real benchmark: they answer at once, or fail in a chosen way."""

import os
import signal
import time

from primus_search.measure.device.device_info import describe
from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.trace import trace_layer

LAYER_S = {"forward": 0.010, "input_grad": 0.011, "weight_grad": 0.012}


def quick(payload):
    """Every layer takes the same, known time; wide micro-batches take proportionally more."""
    info = describe("cpu")
    found = []
    for text in payload["pieces"]:
        piece = TimedPiece.from_json(text)
        scale = piece.shard.micro_batch_size
        seconds = {name: value * scale for name, value in LAYER_S.items()}
        if piece.shard.recompute:
            seconds["recompute"] = 0.010 * scale
        if piece.piece == "optimizer":
            seconds = {"step_per_param": 1e-9}
        found.append(
            {
                "kernel": piece.piece,
                "shape": piece.shape,
                "dtype": piece.shard.dtype,
                "seconds": seconds,
                "spreads_s": dict.fromkeys(seconds, 0.0),
                "device": info.name,
                "versions": info.versions,
                "date": "2026-01-01",
                "memory_bytes": 0.0,
                "peaks_bytes": {},
                "notes": [],
            }
        )
    return found


def holds_a_tenth_more(payload):
    """As `quick`, on a device whose allocator says that layers hold a tenth more than their tensors."""
    found = quick(payload)
    for text, one in zip(payload["pieces"], found, strict=True):
        piece = TimedPiece.from_json(text)
        if piece.piece == "layer":
            one["memory_bytes"] = 1.1 * trace_layer(piece.model, piece.shard, piece.kind).activation_bytes
    return found


def hangs_on_two(payload):
    """Hangs for micro-batches of two, answers otherwise."""
    if TimedPiece.from_json(payload["pieces"][0]).shard.micro_batch_size == 2:
        time.sleep(600)
    return quick(payload)


def killed_on_two(payload):
    if TimedPiece.from_json(payload["pieces"][0]).shard.micro_batch_size == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(payload)


def not_finite(payload):
    from primus_search.measure.layer_bench import NotFiniteError

    raise NotFiniteError("the output holds NaN or infinity")


def says_its_peaks(payload):
    """As `holds_a_tenth_more`, on a device that says its peaks too: a kernel's 3 MB, an eighth cached, 1 GB."""
    found = holds_a_tenth_more(payload)
    for text, one in zip(payload["pieces"], found, strict=True):
        piece = TimedPiece.from_json(text)
        if piece.piece == "layer":
            came = one["memory_bytes"] + trace_layer(piece.model, piece.shard, piece.kind).workspace_bytes + 1e6 + 3e6
            one["peaks_bytes"] = {"modules": 1.0, "resident": 5e6, "gradient": 1e6, "allocated": 5e6 + came}
            one["peaks_bytes"]["reserved"] = 5e6 + 1.125 * came
            one["peaks_bytes"]["driver"] = 5e6 + 1.125 * came + 1e9
    return found
