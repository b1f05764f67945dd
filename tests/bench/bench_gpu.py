"""Measure this machine's accelerator, fit its hardware file, and report errors on shapes left out of the fit.

Without a CUDA or ROCm device it says so and ends well. With one it writes results/measurements/<device>.csv (the
sweep of GEMM, attention and expert shapes), <device>.jsonl (single-device layers of real models, measured) and prints
    kernels   median error of points left out of the fit (primus-search calibrate)
    layers    median error of projected layer seconds against measured ones, with the fitted file
    memory    median error of traced layer activations against the device's allocator
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("llama3.1_8b", "mixtral_8x7b", "deepseek_v2_lite")
SEQ, BUDGET_S = 4096, 10.0


def device_slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def layer_errors(accelerator, kind: str, names, seq: int, budget_s: float, dtype: str):
    """Measured layers, and projected over measured seconds and traced over allocated bytes of each, with names."""
    from primus_search.candidates import Candidates
    from primus_search.cost.layer import layer_operations
    from primus_search.cost.work import tally
    from primus_search.declare.hardware import load_stack
    from primus_search.declare.models import load_model
    from primus_search.measure.bench import Piece, bench
    from primus_search.measure.shard import Shard
    from primus_search.workload import Workload

    workload, stack = Workload(seq_length=seq, global_batch_size=1), load_stack("torchtitan")
    measurements, lines = [], []
    for name in names:
        model = load_model(name)
        c = Candidates.table(micro_batch_size=1)
        for layer in model.kinds:
            piece = Piece(piece="layer", model=model, shard=Shard.of(c, 0, workload, dtype), kind=layer)
            measured = bench(piece, kind=kind, budget_s=budget_s)
            operations = layer_operations(model, layer, workload, accelerator, stack, c)
            projected = float(tally(operations, acc=accelerator, stack=stack, rows=1).seconds.sum())
            ratio = projected / sum(measured.seconds.values())
            lines.append((f"{name} {'moe' if layer.is_moe else 'dense'}", ratio))
            measurements.append(measured)
    return measurements, lines


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="", help="hardware file to fit; default: the one named like the device")
    parser.add_argument("--sweep", default="full", choices=("full", "tiny"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "measurements")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("no CUDA or ROCm device on this machine: nothing measured")
        return 0
    return run(options, "cuda")


def run(options, kind: str) -> int:
    """The sweep, the fit and the report, on a device of that kind."""
    from primus_search.calibrate.points import read_points
    from primus_search.calibrate.run import calibrate_hardware
    from primus_search.declare.hardware import load_hardware
    from primus_search.declare.places import Kind, names
    from primus_search.measure.cache import save
    from primus_search.measure.device import describe
    from primus_search.measure.device_table import measure_device

    info = describe(kind)
    slug = device_slug(info.name)
    known = [name for name in names(Kind.HARDWARE) if name.split("_")[0] in slug]
    hardware = options.hardware or (max(known, key=len) if known else "")
    if not hardware:
        print(f"{info.name}: no hardware file is named like it; name one with --hardware")
        return 2
    gpu = load_hardware(hardware).name
    table = options.out / f"{slug}.csv"
    for line in measure_device(table, kind=kind, gpu=gpu, sweep=options.sweep):
        print(f"not measured: {line}")
    accelerator = load_hardware(hardware).accelerator
    if options.sweep == "full":
        result = calibrate_hardware(hardware, read_points(table), gpu)
        accelerator = result.calibration.accelerator
        for stage in result.calibration.stages:
            if stage.num_points:
                print(f"{stage.name}: {stage.num_points} points, left out: median error {stage.median_error:.1%}")
    dtype = "bfloat16" if kind == "cuda" else "float32"
    names_, seq, budget_s = (LAYERS, SEQ, BUDGET_S) if options.sweep == "full" else (("tiny",), 64, 0.1)
    measurements, lines = layer_errors(accelerator, kind, names_, seq, budget_s, dtype)
    save(options.out / f"{slug}.jsonl", [replace(m) for m in measurements])
    for name, ratio in lines:
        print(f"layer {name}: projected over measured {ratio:.3f}")
    print(f"layers: median error {median(abs(ratio - 1.0) for _, ratio in lines):.1%} on {info.label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
