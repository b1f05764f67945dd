"""torchtitan: step lines with memory and tokens per second per device, the device mesh, the batch sizes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from primus_search.base.guards.values import whole_number
from primus_search.launch.read.torchtitan import setting_keys
from primus_search.learning.conclusion import conclude, product
from primus_search.learning.log_table import LogTable
from primus_search.learning.reading import Assumption, LogReading
from primus_search.learning.transcript import Transcript

_OLD_MESH = re.compile(r"\d-D device mesh with \[([^\]]{0,200})\], \[([^\]]{0,200})\]")
MESH_KEYS = {
    "dp_replicate": "data_parallel_replicate_degree", "dp_shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree", "etp": "expert_tensor_parallel_degree",
}  # fmt: skip
"""Sizes of the device mesh as keys of a job file's section `parallelism`."""
AFTER_THE_MODEL = ("memory usage for model", "Trainer is initialized", "Trainer initialized", "Training starts at step")
"""Marks of lines that follow those of activation checkpointing and compilation, where these are on."""
OPTION = "activation_checkpoint.selective_ac_option"
FLAGS = frozenset(f"flag:{key}" for key in setting_keys())


def observe(seen: Transcript, line: str) -> None:
    """The device mesh as older releases print it, and whether the model was announced whole."""
    if not seen.steps and any(mark in line for mark in AFTER_THE_MODEL):
        seen.facts["announced"] = "True"
    old = _OLD_MESH.search(line) if "-D device mesh with [" in line and not seen.steps else None
    if old is None:
        return
    names = [name.strip(" '\"") for name in old[1].split(",") if name.strip()]
    sizes = [size.strip() for size in old[2].split(",") if size.strip()]
    counts = [whole_number(size) for size in sizes]
    if len(names) == len(sizes) and None not in counts:
        found = dict.fromkeys(("pp", "cp", "tp"), "1") | dict(zip(names, sizes, strict=True))
        kept = {name: found.get(name, "") for name in ("pp", "cp", "tp", "dp_shard_in_ep")}
        seen.facts |= {"mesh:" + name: size for name, size in kept.items()}
        seen.facts["mesh:world"] = str(product(*counts))


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of a torchtitan log; its memory is what torch reserved at most on the rank that prints."""
    mesh = {name: seen.whole("mesh:" + name) for name in MESH_KEYS}
    facts = table.fields(seen)
    if mesh["pp"] is not None and mesh["pp"] > 1:  # splits the local batch further, by a number that is not printed
        facts["micro_batch_size"] = seen.whole("flag:parallelism.pipeline_parallel_microbatch_size")
    if seen.text("model_name"):
        facts["model"] = {"model_name": seen.text("model_name"), "total_params": seen.whole("total_params")}
    assumed = {}
    inside = seen.whole("mesh:dp_shard_in_ep")
    if inside is not None and facts["ep"] is None and mesh["tp"] == 1:  # with TP it may be part of the experts' group
        facts["ep"] = product(inside, mesh["cp"])
    if inside is None and mesh["ep"] is None and mesh["tp"] is not None:
        assumed["ep"] = Assumption(value=1, because="the release prints no expert parallelism")
    _times_from_rates(seen, facts)
    return conclude(seen, table.name, facts, assumed, settings=_settings(seen, mesh, assumed))


def _settings(seen: Transcript, mesh: Mapping[str, int | None], assumed: dict[str, Assumption]) -> dict[str, Any]:
    """What the run is set to, by the keys of a job file; what a log that goes on behind the model does not
    announce is off; one that is cut before prints nothing of it."""
    found: dict[str, Any] = {}
    if mesh["tp"] is not None and seen.text("announced"):
        found = {"compile.enable": False, "model.converters": [], "activation_checkpoint.mode": "none"}
    found |= {name.removeprefix("flag:"): text for name, text in seen.facts.items() if name in FLAGS}
    found |= {f"parallelism.{key}": mesh[name] for name, key in MESH_KEYS.items() if mesh[name] is not None}
    if seen.text("activation_checkpointing"):
        found["activation_checkpoint.mode"] = seen.text("activation_checkpointing")
    if found.get("activation_checkpoint.mode") == "selective" and OPTION not in found:
        found[OPTION] = "op"
        assumed[OPTION] = Assumption(value="op", because="the log prints 'selective' without its option")
    if seen.text("fp8"):
        name = "mx" if seen.text("fp8") == "mxfp8" else "float8"
        found["model.converters"] = [f"quantize.linear.{name}"]
        found[f"quantize.linear.{name}.recipe_name"] = "mxfp8_cublas" if name == "mx" else None
    compiled = [part for part in ("model", "loss") if seen.text("compiled:" + part)]
    if compiled:
        found |= {"compile.enable": True, "compile.components": compiled}
    return found


def _times_from_rates(seen: Transcript, facts: dict[str, Any]) -> None:
    """Step times from printed rates where the time stamps are whole seconds or absent."""
    if any(line.seconds > 0.0 for line in seen.steps):
        return
    tokens = product(facts["global_batch_size"], facts["seq_length"])
    if tokens is None or facts["gpus"] is None:
        return
    devices = float(facts["gpus"])
    seen.steps = [replace(s, seconds=tokens / (s.rate * devices)) if s.rate else s for s in seen.steps]
