"""Training steps of a model's first layers and bandwidth-bound operations, timed on one device for the GPU benchmark.

As many layers of a real model as fit, with embedding and head, in the mixed precision of Megatron-Core: BF16 weights,
FP32 main gradients, FP32 masters and moments (18 bytes per parameter; stack file `torch_eager`). No collective runs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from primus_search.measure.device.device_info import CPU, CUDA, describe
from primus_search.measure.device.timing import measure, summarize
from primus_search.measure.device.torch_device import clock, heat, placed, synchronize
from primus_search.measure.layer_bench import NotFiniteError, TimedPiece
from primus_search.measure.modules.products import precise8
from primus_search.measure.modules.shard import COUNTED_BYTES
from primus_search.measure.modules.streams import (
    MasterAdamW,
    Sizes,
    master_update,
    rates,
    stream_seconds,
)
from primus_search.values.model import Model
from tools.truth.training import ModelPart


def first_layers(model: Model, count: int) -> Model:
    """The model with only its first layers, embedding and head as they were."""
    kept = min(count, model.num_layers)
    return replace(model, num_layers=kept, moe_layers=model.moe_layers[:kept], windows=model.windows[:kept])


def train_alone(payload: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of a step, its spread, peak bytes of the allocator (0 on a CPU), losses. Runs isolated.

    Payload: piece (model and shard; the piece's own name does not matter), device, microbatches, steps, warmup.
    """
    piece, kind = TimedPiece.from_json(payload["piece"]), payload["device"]
    if kind == CPU:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    heat(kind)
    with placed(kind, piece.shard.dtype):
        step = _step(piece, payload["microbatches"])
        losses = [step() for _ in range(payload["warmup"])]
        if kind == CUDA:
            synchronize(kind)
            torch.cuda.reset_peak_memory_stats()
        stopwatch = clock(kind)
        walls = [stopwatch(lambda: losses.append(step())) for _ in range(payload["steps"])]
    if not all(bool(torch.isfinite(loss)) for loss in losses):
        raise NotFiniteError("the loss is NaN or infinite")
    timing = summarize(walls)
    is_gpu = kind != CPU
    return {
        "step_s": timing.median_s,
        "spread_s": timing.spread_s,
        "notes": list(timing.notes),
        "allocated_bytes": float(torch.cuda.max_memory_allocated()) if is_gpu else 0.0,
        "reserved_bytes": float(torch.cuda.max_memory_reserved()) if is_gpu else 0.0,
        "losses": [float(loss) for loss in losses],
        "device": describe(kind).label,
    }


def _step(piece: TimedPiece, microbatches: int) -> Callable[[], Tensor]:
    """One step: every micro-batch forward and backward, then the optimizer; returns the mean loss, on the device."""
    model, shard = piece.model, piece.shard
    part = ModelPart(model, shard, range(model.num_layers), rank=0, has_embedding=True, has_head=True)
    optimizer = MasterAdamW(part)

    def step() -> Tensor:
        total = torch.zeros((), dtype=torch.float32)
        for _ in range(microbatches):
            tokens = torch.randint(0, model.vocab_size, (shard.micro_batch_size, shard.seq_length + 1))
            loss = part(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            torch.autograd.backward(loss / microbatches)
            total += loss.detach().float() / microbatches
        optimizer.step()
        return total

    return step


LARGE = Sizes(rows=4096, hidden=4096, vocabulary=32768, optimizer_params=1 << 28)
SMALL = Sizes(rows=64, hidden=64, vocabulary=128, optimizer_params=1 << 12)
SIZES = {"full": LARGE, "tiny": SMALL}


def measure_streams(payload: dict[str, Any]) -> dict[str, Any]:
    """Inside an isolated process: `stream_seconds` of a device in BF16. Payload: device, sweep, budget_s."""
    kind = payload["device"]

    def seconds(run: Callable[[], object]) -> float:
        return measure(run, device=kind, budget_s=payload["budget_s"]).median_s

    sizes = SIZES[payload["sweep"]]
    heat(kind)
    with placed(kind, "bfloat16"):
        found = stream_seconds(sizes, seconds, master_update, adds_gradients=kind == CPU)
        if kind != CPU:
            x = torch.randn(sizes.rows, sizes.hidden)
            found["cast_s"] = seconds(lambda: precise8(x))
            x8, _ = precise8(x)
            found["turn_s"] = seconds(lambda: x8.t().contiguous())
    return found


# Per element cast to FP8 with one scale and turned for its second product: two reads, two copies.
CAST_BYTES = 4.0 + 2.0


def device_rates(sizes: Sizes, f: dict[str, Any], optimizer_bytes: float) -> dict[str, float]:
    """`rates`; of a GPU with that of casts, and its activation counted kernel by kernel (stack `torch_eager`)."""
    found, elements = rates(sizes, f, optimizer_bytes), sizes.rows * sizes.hidden
    if "cast_s" in f:
        found["cast"] = CAST_BYTES * elements / (f["cast_s"] + f["turn_s"])
        found["stream"] = 3 * elements * COUNTED_BYTES / f["add_s"]
    return found
