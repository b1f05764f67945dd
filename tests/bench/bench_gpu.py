"""Measure this machine's accelerator, fit its hardware file, and hold projections against layers and training steps.

Without a CUDA or ROCm device it says so and ends well. With one it writes into results/measurements/
    <device>.csv    the sweep: GEMM (BF16, FP8), attention, expert products, collectives between the node's devices
    <device>.yaml   the hardware file with the numbers fitted to the sweep, and the sweep as its table
    <device>.jsonl  layers of real models, measured (a benchmark file: primus-search run --load-benchmark)
    <device>.json   errors of the fit on points left out of it, of layers, of training steps and of their peak memory,
                    none of whose shapes the fit has seen; with device, versions and date
Every measurement is a process of its own: what fails or is missing is a line under "not measured"; others go on. The
JSON is written again after every model, and no model is begun after `--minutes`, about what all of it takes on an H200.
"""

import argparse
import datetime
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from primus_search.values.job import Job
from primus_search.values.knobs import Fp8, StateFormat
from primus_search.values.machine.stack import with_numbers

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("llama3.1_8b", "mixtral_8x7b", "deepseek_v2_lite")
STACK = "torch_eager"
MICROBATCHES, STEPS, WARMUP = 2, 8, 3
MOST_LAYERS, MEMORY_SHARE = 4, 0.85
SAME_MEMORY = 0.05  # by which a device's memory may differ from its hardware file's
LIMIT_S = 600.0
WANTED = {"layer": 0.06, "step": 0.05, "memory": 0.03}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: which sweep, whether it is enough for a fit, tokens of a sequence, seconds for a layer's
    pieces and for a stream."""

    sweep: str
    fits: bool
    seq: int
    layer_s: float
    stream_s: float


SCALES = {
    "full": Scale(sweep="full", fits=True, seq=4096, layer_s=20.0, stream_s=1.0),
    "tiny": Scale(sweep="tiny", fits=False, seq=64, layer_s=0.2, stream_s=0.01),
}


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What was found: rows by kind, and what could not be measured."""

    machine: dict
    fit: list = field(default_factory=list)
    layers: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    missing: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    streams: dict = field(default_factory=dict)

    def medians(self):
        """Median absolute errors; None where nothing was measured."""
        errors = {
            "layer": [row["projected_s"] / row["measured_s"] - 1.0 for row in self.layers],
            "step": [row["projected_s"] / row["trained_s"] - 1.0 for row in self.steps],
            "step_with_measured_layers": [row["composed_s"] / row["trained_s"] - 1.0 for row in self.steps],
            "memory": [
                row["projected_bytes"] / row["allocated_bytes"] - 1.0 for row in self.steps if row["allocated_bytes"]
            ],
        }
        return {name: median(map(abs, found)) if found else None for name, found in errors.items()}

    def as_json(self):
        medians = self.medians()
        holds = {name: medians[name] is not None and medians[name] <= wanted for name, wanted in WANTED.items()}
        facts = {"median_errors": medians, "wanted": WANTED, "holds": holds}
        return (
            self.machine
            | facts
            | {"fit": self.fit, "streams": self.streams, "layers": self.layers, "steps": self.steps}
            | {"not_measured": self.missing, "notes": self.notes}
        )

    def lines(self):
        """What a reader at the terminal wants."""
        for one in self.fit:
            yield (
                f"{one['stage']}: {one['points']} points, left out: median error {one['median_error']:.1%}, "
                f"90th percentile {one['p90_error']:.1%}"
            )
        for row in self.layers:
            yield f"layer {row['name']}: {row['measured_s'] * 1e3:.3f} ms, projected {row['projected_s'] * 1e3:.3f} ms"
        for row in self.steps:
            yield (
                f"step {row['name']}: {row['trained_s']:.4f} s, projected {row['projected_s']:.4f} s, with measured "
                f"layers {row['composed_s']:.4f} s; peak {row['allocated_bytes'] / 1e9:.2f} GB, projected "
                f"{row['projected_bytes'] / 1e9:.2f} GB"
            )
        for name, error in self.medians().items():
            wanted = f" (wanted <= {WANTED[name]:.0%})" if name in WANTED else ""
            yield f"{name}: median error {'not measured' if error is None else f'{error:.1%}'}{wanted}"
        yield from (f"not measured: {line}" for line in self.missing)
        yield from self.notes


def device_slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def hardware_for(slug: str) -> str:
    """The hardware file all parts of whose name begin a word of the device's, the longest; empty if there is none."""
    from primus_search.files.search_path import FileKind, names

    words = slug.split("-")
    known = [
        name
        for name in names(FileKind.HARDWARE)
        if all(any(word.startswith(part) for word in words) for part in name.split("_"))
    ]
    return max(known, key=len) if known else ""


def hardware_like(info, memory_bytes: float) -> str:
    """The hardware file of that architecture whose memory is the nearest, for devices that do not say their name."""
    from primus_search.files.hardware_files import load_hardware
    from primus_search.files.search_path import FileKind, names
    from primus_search.measure.device.device_info import is_architecture_of

    away = {}
    for name in names(FileKind.HARDWARE):
        acc = load_hardware(name).accelerator
        if is_architecture_of(info, acc.arch, acc.name):
            away[name] = abs(memory_bytes / acc.hbm_bytes - 1.0)
    nearest = min(away, key=lambda name: away[name], default="")
    return nearest if nearest and away[nearest] <= SAME_MEMORY else ""


def fitted(hardware: str, table: Path, kind: str, scale: Scale, evidence: Evidence, date: str):
    """The accelerator with laws and tables of the sweep and the rates of this package's streams.

    Writes the hardware file with the laws and the table beside the sweep.
    """
    from primus_search.cost.laws.optimizer import bytes_per_param
    from primus_search.files.evidence_files import read_tables
    from primus_search.files.hardware_files import load_hardware, load_stack
    from primus_search.measure.calibrate.hardware_edits import with_fitted, with_tables
    from primus_search.measure.calibrate.kernel_fit import calibrate_hardware
    from primus_search.measure.calibrate.points import read_points
    from primus_search.measure.isolate import ProcessVerdict, isolated
    from primus_search.measure.modules.streams import memory_law
    from tests.support.single_device import SIZES, device_rates

    loaded = load_hardware(hardware)
    accelerator = loaded.accelerator
    points = read_points(table)
    if scale.fits and points:
        calibration = calibrate_hardware(hardware, points, loaded.name, is_own_sweep=True).calibration
        accelerator = calibration.accelerator
        evidence.fit += [stage_facts(stage) for stage in calibration.stages if stage.num_points]
        text = with_fitted(loaded.path.read_text(encoding="utf-8"), calibration, date, str(loaded.path))
        table.with_suffix(".yaml").write_text(with_tables(text, table.name), encoding="utf-8")
    payload = {"device": kind, "sweep": scale.sweep, "budget_s": scale.stream_s}
    streams = isolated("tests.support.single_device:measure_streams", payload, limit_s=LIMIT_S)
    if streams.verdict is ProcessVerdict.DONE:
        per_param = float(bytes_per_param(load_stack(STACK), np.array(StateFormat.STACK), np.array(Fp8.NONE)))
        rate = device_rates(SIZES[scale.sweep], streams.value, per_param)
        law = memory_law(rate, accelerator.hbm_bytes_per_s, streams.value["small_kernel_s"])
        accelerator = replace(accelerator, memory=law)
        evidence.streams = {"bytes_per_s": rate, "small_kernel_s": streams.value["small_kernel_s"]}
    else:
        evidence.missing.append(f"streams: {streams.verdict.value}: {streams.cause}")
    kernels, _, _ = read_tables(table)
    return replace(accelerator, tables=kernels)


def stage_facts(stage) -> dict:
    """What one stage of a fit found: errors of points left out of it, numbers, and numbers refused with the reason."""
    return {
        "stage": stage.name,
        "points": stage.num_points,
        "median_error": stage.median_error,
        "p90_error": stage.p90_error,
        "bias": stage.bias,
        "numbers": {one.path: one.value for one in stage.fitted},
        "refused": {one.path: one.reason for one in stage.refused},
    }


def one_device(hardware: str, accelerator):
    """A cluster of one device."""
    from primus_search.files.hardware_files import load_hardware, load_stack, on_gpus
    from primus_search.values.machine.cluster import Cluster

    network = on_gpus(load_hardware(hardware).network, 1)
    return Cluster(accelerator=accelerator, network=network, stack=load_stack(STACK), num_nodes=1)


def that_fit(model, cluster, workload, c):
    """As many first layers of the model as one device trains, at most MOST_LAYERS; at least one."""
    from primus_search.cost.project import Projector
    from tests.support.single_device import first_layers

    for count in range(MOST_LAYERS, 1, -1):
        part = first_layers(model, count)
        memory = Projector(Job(part, cluster, workload)).project(c).memory
        if memory.total[0] <= MEMORY_SHARE * cluster.accelerator.hbm_bytes:
            return part
    return first_layers(model, 1)


def measure_layers(bencher, cluster, workload, c, label: str, scale: Scale, evidence: Evidence) -> bool:
    """Layers of one model at one precision, alone on the device, against their projection; whether all were."""
    from primus_search.cost.parts.layer import layer_operations
    from primus_search.cost.parts.operations import tally

    model = bencher.model
    if not bencher.measure(c, [0], scale.layer_s):
        failure = bencher.failures[-1]
        evidence.missing.append(f"layers of {model.name} {label}: {failure.verdict.value}: {failure.cause}")
        return False
    for piece, layer in zip(bencher.pieces_of(c, 0), model.kinds, strict=False):
        measured = bencher.used[piece.piece, piece.shape]
        operations = layer_operations(Job(model, cluster, workload), layer, c)
        work = tally(operations, acc=cluster.accelerator, stack=cluster.stack, rows=1)
        row = {"name": f"{model.name} {'moe' if layer.is_moe else 'dense'} {label}"}
        row |= {"measured_s": sum(measured.seconds.values()), "projected_s": float(work.seconds.sum())}
        by_pass = zip(("forward", "input_grad", "weight_grad"), work.seconds, strict=True)
        row |= {"projected_passes": {name: float(part.sum()) for name, part in by_pass}}
        facts = {"passes": measured.seconds, "notes": list(measured.notes), "clocks": measured.clocks}
        evidence.layers.append(row | facts)
    return True


def measure_step(bencher, cluster, workload, c, kind: str, evidence: Evidence) -> None:
    """Training steps of the model on the device, against their projection with laws and with measured layers."""
    from primus_search.cost.project import Projector
    from primus_search.measure.device.timing import Watch
    from primus_search.measure.isolate import ProcessVerdict, isolated

    model = bencher.model
    payload = {"piece": bencher.pieces_of(c, 0)[0].to_json(), "device": kind}
    payload |= {"microbatches": MICROBATCHES, "steps": STEPS, "warmup": WARMUP}
    with Watch() if kind == "cuda" else nullcontext() as watch:
        outcome = isolated("tests.support.single_device:train_alone", payload, limit_s=LIMIT_S)
    if outcome.verdict is not ProcessVerdict.DONE:
        evidence.missing.append(f"step of {model.name}: {outcome.verdict.value}: {outcome.cause}")
        return
    found = outcome.value
    plain = Projector(Job(model, cluster, workload)).project(c)
    composed = Projector(Job(model, cluster, workload), measured=bencher.layers(c, [0])).project(c)
    row = {"name": f"{model.name}, {model.num_layers} layers", "trained_s": found["step_s"]}
    row |= {"projected_s": float(plain.step.total[0]), "composed_s": float(composed.step.total[0])}
    # The activation is several kernels to the clock, but keeps what the fused one keeps (fused_operations.py).
    keeps = replace(cluster, stack=with_numbers(cluster.stack, {"has_fused_activation": True}))
    row |= {"projected_bytes": float(Projector(Job(model, keeps, workload)).project(c).memory.allocated[0])}
    row |= {name: found[name] for name in ("allocated_bytes", "reserved_bytes", "spread_s", "notes")}
    row |= {"clocks": watch.text, "notes": [*found["notes"], *watch.warnings]} if watch is not None else {}
    evidence.steps.append(row)


def measure_models(models, hardware: str, accelerator, kind: str, scale: Scale, cache, evidence: Evidence):
    """Layers and steps of every model, one at a time; yields its name after each."""
    from primus_search.measure.candidate_bench import Bencher
    from primus_search.measure.device.device_info import describe
    from primus_search.measure.device.preflight import preflight
    from primus_search.values.candidates import Candidates, Fp8
    from primus_search.values.workload import Workload

    cluster = one_device(hardware, accelerator)
    evidence.notes += preflight(cluster, kind)
    workload = Workload(seq_length=scale.seq, global_batch_size=MICROBATCHES)
    c = Candidates.table(micro_batch_size=1, loss_fusion=True)
    eighth = Candidates.table(micro_batch_size=1, loss_fusion=True, fp8=int(Fp8.HYBRID))
    for model in models:
        part = that_fit(model, cluster, workload, c)
        bencher = Bencher(model=part, workload=workload, device=describe(kind), dtype="bfloat16", cache=cache)
        if measure_layers(bencher, cluster, workload, c, "bf16", scale, evidence):
            measure_step(bencher, cluster, workload, c, kind, evidence)
        measure_layers(bencher, cluster, workload, eighth, "fp8", scale, evidence)
        yield model.name


def run(options, kind: str, models) -> int:
    """The sweep, the fit, layers and steps, and the report, on a device of that kind."""
    from primus_search.files.hardware_files import load_hardware
    from primus_search.measure.candidate_bench import MeasurementCache
    from primus_search.measure.device.device_info import describe
    from primus_search.measure.device.device_table import measure_device
    from primus_search.measure.device.torch_device import memory_bytes

    deadline = time.monotonic() + 60.0 * options.minutes
    info, scale = describe(kind), SCALES[options.sweep]
    slug = device_slug(info.name)
    hardware = options.hardware or hardware_for(slug) or hardware_like(info, memory_bytes(kind))
    if not hardware:
        print(f"{info.name} ({info.arch}): no hardware file is named like it; name one with --hardware")
        return 2
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    evidence = Evidence(machine={"device": info.name, "versions": info.versions, "hardware": hardware, "date": date})
    table, layers = options.out / f"{slug}.csv", options.out / f"{slug}.jsonl"
    say(f"{info.label}: hardware file {hardware}; sweep of GEMM, attention, experts, links")
    evidence.missing += measure_device(table, kind=kind, gpu=load_hardware(hardware).name, sweep=scale.sweep)
    say("fit of the hardware file, rates of streams")
    accelerator = fitted(hardware, table, kind, scale, evidence, date)
    layers.unlink(missing_ok=True)
    say("preflight; layers and training steps")
    done = measure_models(models, hardware, accelerator, kind, scale, MeasurementCache(layers), evidence)
    for number, name in enumerate(done, start=1):
        say(f"{name} measured")
        write(evidence, options.out / f"{slug}.json")
        if time.monotonic() > deadline and number < len(models):
            left = ", ".join(model.name for model in models[number:])
            evidence.missing.append(f"layers and steps of {left}: {options.minutes:g} minutes were up")
            break
    write(evidence, options.out / f"{slug}.json")
    for line in evidence.lines():
        print(line)
    return 0


def unseen(version: str) -> str:
    """What to do where the system has a GPU that this build of torch does not see; empty where it has none."""
    vendors = {"AMD": Path("/dev/kfd"), "NVIDIA": Path("/proc/driver/nvidia/version")}
    there = [name for name, path in vendors.items() if path.exists()]
    if not there:
        return ""
    return f" (there is an {there[0]} driver, which torch {version} does not see: rm -r .venv, then TORCH_INDEX=...)"


def say(what: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {what}", flush=True)


def write(evidence: Evidence, path: Path) -> None:
    path.write_text(json.dumps(evidence.as_json(), indent=2, default=float) + "\n", encoding="utf-8")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="", help="hardware file to fit; default: the one named like the device")
    parser.add_argument("--sweep", default="full", choices=tuple(SCALES))
    parser.add_argument("--models", default=",".join(MODELS), help="model presets, commas between")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no further model is begun")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "measurements")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print(f"no CUDA or ROCm device on this machine: nothing measured{unseen(torch.__version__)}")
        return 0
    from primus_search.models.model_files import load_model

    return run(options, "cuda", [load_model(name) for name in options.models.split(",")])


if __name__ == "__main__":
    sys.exit(main())
